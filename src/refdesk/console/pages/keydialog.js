// @ts-check
/** Asks for an API key when the server requires one. A single dialog serves all rejected calls. */

import {getKey, setKey} from "./api.js";
import {button} from "./buttons.js";
import {dialog} from "./dialogs.js";
import {h} from "./dom.js";
import {field} from "./widgets.js";

/** @type {Promise<boolean> | null} */
let pending = null;

/** @param {string} [refusal] the server's message @returns {Promise<boolean>} whether there is a new key to try */
export function askForKey(refusal) {
  pending ??= openDialog(refusal).finally(() => (pending = null));
  return pending;
}

/** @param {string} [refusal] @returns {Promise<boolean>} */
function openDialog(refusal) {
  const previousKey = getKey();
  const input = h("input", {
    class: "input",
    type: "password",
    autocomplete: "off",
    spellcheck: "false",
    required: true,
  });
  const problem = h(
    "p",
    {class: "field-error", role: "alert"},
    previousKey ? `${refusal ?? "The key was rejected."}` : null,
  );
  return new Promise((resolve) => {
    const submit = (/** @type {Event} */ event) => {
      event.preventDefault();
      const key = input.value.trim();
      if (!key) return;
      setKey(key);
      handle.close(true);
    };
    const handle = dialog({
      title: "This server requires a key",
      body: [explanation(), h("form", {id: "key-form", on: {submit}}, field("API key", input), problem)],
      actions: [
        button("Not now", () => handle.close(false)),
        button("Sign in", () => {}, {kind: "primary", type: "submit", attributes: {form: "key-form"}}),
      ],
      onClose: (value) => resolve(value === true),
    });
    input.focus();
  });
}

function explanation() {
  return [
    h("p", "An administrator creates keys on the server:"),
    h("pre", {class: "command"}, h("code", "refdesk keys make NAME --user YOU")),
    h("p", {class: "faint"}, "The key is stored in this tab only, until you close it."),
  ];
}
