// @ts-check
/** Buttons; see widgets.js for their usage. */

import {h, replace} from "./dom.js";
import {icon} from "./icons.js";

/** @typedef {import("./dom.js").Child} Child */

const COPIED_MS = 1600;

/**
 * @param {Child} label
 * @param {(event: Event) => unknown} onClick
 * @param {{kind?: string, icon?: string, disabled?: boolean, type?: string, attributes?: object}} [options]
 * @returns {HTMLButtonElement}
 */
export function button(label, onClick, options = {}) {
  const kinds = (options.kind ?? "")
    .split(" ")
    .filter(Boolean)
    .map((kind) => `button-${kind}`);
  return h(
    "button",
    {
      type: options.type ?? "button",
      class: ["button", ...kinds],
      disabled: options.disabled ?? false,
      on: {
        click: (/** @type {Event} */ event) =>
          disableWhilePending(/** @type {any} */ (event.currentTarget), onClick(event)),
      },
      ...options.attributes,
    },
    options.icon && icon(options.icon),
    label,
  );
}

/** @param {HTMLButtonElement} element @param {unknown} result */
async function disableWhilePending(element, result) {
  if (!(result instanceof Promise)) return;
  element.disabled = true;
  try {
    await result;
  } finally {
    element.disabled = false;
  }
}

/** @param {string | (() => string)} what @param {string} [label] */
export function copyButton(what, label = "Copy") {
  const labelElement = h("span", {"aria-live": "polite"}, label);
  const iconElement = h("span", {class: "button-icon"}, icon("copy"));
  const copy = async () => {
    await writeToClipboard(typeof what === "function" ? what() : what);
    replace(labelElement, "Copied");
    replace(iconElement, icon("check"));
    setTimeout(() => (replace(labelElement, label), replace(iconElement, icon("copy"))), COPIED_MS);
  };
  return button([iconElement, labelElement], copy, {
    kind: "small quiet",
    attributes: {class: "button button-small button-quiet copy"},
  });
}

/** @param {string} text navigator.clipboard exists only in secure contexts */
async function writeToClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const textarea = h("textarea", {class: "unseen", readOnly: true});
  textarea.value = text;
  document.body.append(textarea);
  textarea.select();
  document.execCommand("copy");
  textarea.remove();
}
