// @ts-check
/** Dialogs for creating a key and for showing it once. */

import {action} from "../../api.js";
import {h, newId, replace} from "../../dom.js";
import {button, copyButton, dialog, errorBox, field, select} from "../../widgets.js";

/** @type {[string, string][]} roles and their descriptions */
const ROLES = [
  ["reader", "Read-only: search, read, ask"],
  ["writer", "All tools, including add and delete"],
  ["service", "Like writer, and can act for other users and tenants"],
  ["admin", "All tools, and administration"],
];

const NO_ADMIN = "Once this key exists, administration needs a key with the role admin.";

/** @type {[string, string][]} */
const EXPIRY_OPTIONS = [
  ["", "Never"],
  ["7d", "In a week"],
  ["30d", "In 30 days"],
  ["90d", "In 90 days"],
  ["365d", "In a year"],
];

/**
 * @param {{toolsets: string[], servers: string[], isFirst: boolean}} options possible values
 * @returns {Promise<any>} response of `make_key`, or null if cancelled
 */
export function askForNewKey(options) {
  return new Promise((resolve) => {
    const form = new KeyForm(options, (created) => handle.close(created));
    const make = h("button", {class: "button button-primary", type: "submit", form: form.element.id}, "Create key");
    const handle = dialog({
      title: options.isFirst ? "Create the first key" : "Create a key",
      body: form.element,
      actions: [button("Cancel", () => handle.close()), make],
      onClose: (created) => resolve(created ?? null),
      className: "key-dialog",
    });
    form.focus();
  });
}

class KeyForm {
  #done;
  #isFirst;

  /** @param {{toolsets: string[], servers: string[], isFirst: boolean}} options @param {(made: any) => void} done */
  constructor({toolsets, servers, isFirst}, done) {
    this.#done = done;
    this.#isFirst = isFirst;
    const input = (/** @type {object} */ more = {}) =>
      h("input", {class: "input", maxlength: 255, autocomplete: "off", ...more});
    this.name = input({required: true, name: "name", placeholder: "such as alice-laptop"});
    this.user = input({name: "user"});
    this.tenant = input({name: "tenant", placeholder: "default"});
    this.expires = select(EXPIRY_OPTIONS, "", {name: "expires"});
    this.roles = choices("Roles", ROLES, isFirst ? ["admin"] : ["writer"]);
    this.toolsets = choices(
      "Only these toolsets",
      toolsets.map((name) => [name, ""]),
      [],
      "All if none is selected.",
    );
    this.servers = input({name: "servers", placeholder: "*", spellcheck: "false"});
    this.errorArea = h("div");
    const serverHint = [
      "Names and patterns, separated by spaces. All if empty. ",
      servers.length > 0 && `Available: ${servers.join(", ")}.`,
    ];
    this.element = h(
      "form",
      {id: newId("key-form"), class: "key-form", on: {submit: (/** @type {Event} */ event) => this.#submit(event)}},
      isFirst && firstKeyNotice(),
      h("div", {class: "field-pair"}, field("Name", this.name), field("Expires", this.expires)),
      h(
        "div",
        {class: "field-pair"},
        field("User", this.user, "Defaults to the name."),
        field("Tenant", this.tenant, "Each tenant has its own documents."),
      ),
      this.roles.element,
      h(
        "details",
        {class: "fold"},
        h("summary", "More restrictions"),
        this.toolsets.element,
        field("Servers", this.servers, serverHint),
      ),
      this.errorArea,
    );
  }

  focus() {
    this.name.focus();
  }

  /** @param {Event} event */
  async #submit(event) {
    event.preventDefault();
    const roles = this.roles.getSelected();
    if (this.#isFirst && !roles.includes("admin") && !this.errorArea.hasChildNodes()) {
      const message = `${NO_ADMIN} Press the button again to create the key anyway.`;
      return void replace(this.errorArea, errorBox(new Error(message)));
    }
    try {
      this.#done(await action("make_key", this.#params(roles)));
    } catch (error) {
      replace(this.errorArea, errorBox(error));
    }
  }

  /** @param {string[]} roles */
  #params(roles) {
    const servers = this.servers.value.split(/[\s,]+/).filter(Boolean);
    const toolsets = this.toolsets.getSelected();
    return {
      name: this.name.value.trim(),
      user: this.user.value.trim() || undefined,
      tenant: this.tenant.value.trim() || undefined,
      expires: this.expires.value || undefined,
      roles,
      toolsets: toolsets.length ? toolsets : undefined,
      servers: servers.length ? servers : undefined,
    };
  }
}

/**
 * Group of checkboxes.
 * @param {string} legend @param {[string, string][]} options @param {string[]} selected @param {string} [hint]
 */
function choices(legend, options, selected, hint) {
  const boxes = options.map(([value]) => h("input", {type: "checkbox", value, checked: selected.includes(value)}));
  const lines = options.map(([value, about], at) =>
    h(
      "label",
      {class: "choice"},
      boxes[at],
      h("span", h("strong", value), about && h("span", {class: "faint"}, ` ${about}`)),
    ),
  );
  const element = h(
    "fieldset",
    {class: "choices"},
    h("legend", legend),
    hint && h("p", {class: "field-hint"}, hint),
    lines,
  );
  return {element, getSelected: () => boxes.filter((box) => box.checked).map((box) => box.value)};
}

export function firstKeyNotice() {
  return h(
    "div",
    {class: "notice"},
    h("p", h("strong", "The first key changes permissions.")),
    h(
      "p",
      "So far, everyone on this machine is an administrator. Once a key exists, administration needs a key with the role ",
      h("strong", "admin"),
      ". Create that one first.",
    ),
  );
}

/** Show a new key once. @param {{key: string, entry: any}} created @returns {Promise<void>} */
export function showKey({key, entry}) {
  return new Promise((resolve) => {
    const line = formatSetupCommand(key);
    const handle = dialog({
      title: `The key ${entry.name}`,
      body: [
        h(
          "p",
          "Copy it now: it is shown only once. Its user is ",
          h("strong", entry.user),
          ".",
        ),
        h("div", {class: "secret"}, h("code", {class: "secret-key"}, key), copyButton(key, "Copy key")),
        h("h3", "Connect a client"),
        h("div", {class: "secret"}, h("code", line), copyButton(line, "Copy command")),
        h(
          "p",
          {class: "faint"},
          "The command is for Claude Code. Other clients send the key in the header Authorization: Bearer.",
        ),
      ],
      actions: button("I have copied it", () => handle.close(), {kind: "primary"}),
      onClose: () => resolve(),
      className: "key-dialog",
    });
  });
}

/** @param {string} key */
function formatSetupCommand(key) {
  const url = new URL("../../../mcp", import.meta.url);
  return `claude mcp add --transport http refdesk ${url} --header "Authorization: Bearer ${key}"`;
}
