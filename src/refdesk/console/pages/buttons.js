// @ts-check
/** Buttons; widgets.js says how they are used. */

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
      on: {click: (/** @type {Event} */ event) => whileBusy(/** @type {any} */ (event.currentTarget), onClick(event))},
      ...options.attributes,
    },
    options.icon && icon(options.icon),
    label,
  );
}

/** @param {HTMLButtonElement} element @param {unknown} outcome */
async function whileBusy(element, outcome) {
  if (!(outcome instanceof Promise)) return;
  element.disabled = true;
  try {
    await outcome;
  } finally {
    element.disabled = false;
  }
}

/** @param {string | (() => string)} what @param {string} [label] */
export function copyButton(what, label = "Copy") {
  const said = h("span", {"aria-live": "polite"}, label);
  const drawn = h("span", {class: "button-icon"}, icon("copy"));
  const copy = async () => {
    await toClipboard(typeof what === "function" ? what() : what);
    replace(said, "Copied");
    replace(drawn, icon("check"));
    setTimeout(() => (replace(said, label), replace(drawn, icon("copy"))), COPIED_MS);
  };
  return button([drawn, said], copy, {
    kind: "small quiet",
    attributes: {class: "button button-small button-quiet copy"},
  });
}

/** @param {string} text browsers offer the newer way only where the page came over TLS or from this machine */
async function toClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const held = h("textarea", {class: "unseen", readOnly: true});
  held.value = text;
  document.body.append(held);
  held.select();
  document.execCommand("copy");
  held.remove();
}
