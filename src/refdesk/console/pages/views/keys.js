// @ts-check
/** Keys and tenants view, for administrators. */

import {action, getKey, setKey} from "../api.js";
import {h, replace} from "../dom.js";
import {bytes, day, number, time} from "../format.js";
import {badge, button, emptyState, errorBox, pageHeader, spinner, table} from "../widgets.js";
import {askForNewKey, firstKeyNotice, showKey} from "./keys/making.js";

export const title = "Keys";

/** @param {any} context */
export function view(context) {
  if (!context.me.may_administer) return accessDenied(context.me);
  const page = new KeysPage(context);
  page.load();
  return page.element;
}

const NOT_AN_ADMIN =
  "Only keys with the role admin can create and revoke keys. Sign in with one, or ask an administrator.";

const NO_KEY_YET = "This server is reachable over the network and has no key yet. Create the first one on the server:";

/** @param {any} me */
function accessDenied(me) {
  const command = "refdesk keys make NAME --role admin";
  const text = me.has_keys ? NOT_AN_ADMIN : [NO_KEY_YET, " ", h("code", command)];
  return h("div", pageHeader("Keys"), emptyState({title: "This page is for administrators", text}));
}

class KeysPage {
  #context;

  /** @param {any} context */
  constructor(context) {
    this.#context = context;
    const make = button("Create a key", () => this.#make(), {kind: "primary", icon: "plus"});
    this.keys = h("section", {"aria-label": "Keys"}, spinner());
    this.tenants = h("section", {class: "tenants-panel", "aria-label": "Tenants"});
    const lead = "Who can use this server. Each tenant has its own documents.";
    this.element = h("div", {class: "keys-view"}, pageHeader("Keys and tenants", lead, make), this.keys, this.tenants);
    /** @type {any[]} */
    this.all = [];
  }

  async load() {
    const {signal} = this.#context;
    try {
      const [{keys}, {tenants}] = await Promise.all([action("keys", {}, {signal}), action("tenants", {}, {signal})]);
      this.all = keys;
      replace(this.keys, keys.length ? this.#table(keys) : noKeys());
      replace(this.tenants, h("h2", "Tenants"), tenantTable(tenants));
    } catch (error) {
      if (!signal.aborted)
        replace(
          this.keys,
          errorBox(error, () => this.load()),
        );
    }
  }

  /** @param {any[]} keys */
  #table(keys) {
    return table({
      caption: "Keys",
      columns: [
        {title: "Name", cell: (key) => h("strong", key.name || "–")},
        {title: "User", cell: (key) => key.user},
        {title: "Tenant", cell: (key) => key.tenant},
        {title: "Roles", cell: (key) => badgeList(key.roles, "none: every tool")},
        {title: "Access", cell: scopeText},
        {title: "Created", className: "cell-time", cell: (key) => (key.created ? time(key.created) : "–")},
        {title: "Expires", className: "cell-time", cell: expiryCell},
        {title: "Actions", hidden: true, className: "cell-actions", cell: (key) => this.#revokeCell(key)},
      ],
      rows: keys,
      key: (key) => key.name,
      className: "keys-table",
    });
  }

  /** @param {any} key */
  #revokeCell(key) {
    if (key.source === "configuration") return h("span", {class: "faint"}, "in the configuration");
    const attributes = {"aria-label": `Revoke ${key.name}`};
    return button("Revoke", () => this.#revoke(key), {kind: "small quiet", icon: "bin", attributes});
  }

  async #make() {
    const isFirst = this.all.length === 0 && !this.#context.me.has_keys;
    const created = await askForNewKey({
      toolsets: this.#context.me.toolsets ?? [],
      servers: await this.#loadServerNames(),
      isFirst,
    });
    if (!created) return;
    await showKey(created);
    // Administration requires a key from now on, so continue with the one just created.
    if (isFirst && !getKey() && created.entry.roles.includes("admin")) {
      setKey(created.key);
      this.#context.toast("This tab now uses the new key.", "good");
    }
    await this.load();
  }

  /** Return the server names, if the caller may list them. @returns {Promise<string[]>} */
  async #loadServerNames() {
    try {
      return (await action("servers")).servers.map((/** @type {any} */ server) => server.name);
    } catch {
      // Only a hint in the form: names can be typed without it.
      return [];
    }
  }

  /** @param {any} key */
  async #revoke(key) {
    const detail = `Requests of ${key.user} with this key are rejected from now on. This cannot be undone.`;
    if (!(await this.#context.confirm(`Revoke the key “${key.name}”?`, {detail, yes: "Revoke", danger: true}))) return;
    try {
      await action("revoke_key", {name: key.name});
      this.#context.toast(`Key ${key.name} revoked.`, "good");
    } catch (error) {
      this.#context.toast(/** @type {Error} */ (error).message, "bad");
    }
    await this.load();
  }
}

function noKeys() {
  return h(
    "div",
    {class: "no-keys"},
    firstKeyNotice(),
    emptyState({title: "No keys yet", text: "No key is needed: the server can only be reached from this machine."}),
  );
}

/** @param {any[]} tenants */
function tenantTable(tenants) {
  return table({
    caption: "Tenants",
    columns: [
      {title: "Tenant", cell: (tenant) => h("strong", tenant.id)},
      {title: "Collections", className: "numeric", cell: (tenant) => number(tenant.collections)},
      {title: "Documents", className: "numeric", cell: (tenant) => number(tenant.documents)},
      {title: "Size", className: "numeric", cell: (tenant) => bytes(tenant.bytes)},
      {title: "Keys", className: "numeric", cell: (tenant) => number(tenant.keys)},
    ],
    rows: tenants,
    empty: "No tenant has documents or keys yet.",
    key: (tenant) => tenant.id,
  });
}

/** @param {string[]} list @param {string} none */
function badgeList(list, none) {
  return list.length
    ? h(
        "span",
        list.map((word) => badge(word)),
      )
    : h("span", {class: "faint"}, none);
}

/** @param {any} key */
function scopeText(key) {
  const toolsets = key.toolsets.length ? key.toolsets.join(", ") : "all toolsets";
  const servers = key.servers.length ? key.servers.join(", ") : "all servers";
  return h("span", {class: "faint"}, `${toolsets}; ${servers}`);
}

/** @param {any} key */
function expiryCell(key) {
  if (!key.expires) return "never";
  return Date.parse(key.expires) < Date.now()
    ? badge("expired", "bad")
    : h("span", {title: key.expires}, day(key.expires));
}
