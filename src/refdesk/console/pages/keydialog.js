// @ts-check
/** Asks for an API key when the desk wants one. One dialog at a time, however many calls were refused. */

import {getKey, setKey} from "./api.js";
import {button} from "./buttons.js";
import {dialog} from "./dialogs.js";
import {h} from "./dom.js";
import {field} from "./widgets.js";

/** @type {Promise<boolean> | null} */
let asking = null;

/** @param {string} [refusal] what the desk said @returns {Promise<boolean>} whether there is a new key to try */
export function askForKey(refusal) {
  asking ??= ask(refusal).finally(() => (asking = null));
  return asking;
}

/** @param {string} [refusal] @returns {Promise<boolean>} */
function ask(refusal) {
  const had = getKey();
  const input = h("input", {
    class: "input",
    type: "password",
    autocomplete: "off",
    spellcheck: "false",
    required: true,
  });
  const problem = h("p", {class: "field-error", role: "alert"}, had ? `${refusal ?? "The key was refused."}` : null);
  return new Promise((resolve) => {
    const submit = (/** @type {Event} */ event) => {
      event.preventDefault();
      const key = input.value.trim();
      if (!key) return;
      setKey(key);
      opened.close(true);
    };
    const opened = dialog({
      title: "This desk asks for a key",
      body: [explanation(), h("form", {id: "key-form", on: {submit}}, field("API key", input), problem)],
      actions: [
        button("Not now", () => opened.close(false)),
        button("Sign in", () => {}, {kind: "primary", type: "submit", attributes: {form: "key-form"}}),
      ],
      onClose: (value) => resolve(value === true),
    });
    input.focus();
  });
}

function explanation() {
  return [
    h("p", "Whoever runs the desk makes one for you, on the machine where it runs:"),
    h("pre", {class: "command"}, h("code", "refdesk keys make NAME --user YOU")),
    h("p", {class: "faint"}, "The key stays in this tab and is forgotten when the tab is closed."),
  ];
}
