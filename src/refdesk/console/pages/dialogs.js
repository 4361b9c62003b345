// @ts-check
/** Modal dialogs based on <dialog>, which traps and restores focus and closes on Esc. */

import {button} from "./buttons.js";
import {h, newId} from "./dom.js";

/** @typedef {import("./dom.js").Child} Child */

/**
 * @param {{title: Child, body: Child, actions?: Child, onClose?: (value?: any) => void, className?: string}} parts
 * @returns {{element: HTMLDialogElement, close: (value?: any) => void}}
 */
export function dialog({title, body, actions, onClose = () => {}, className}) {
  const id = newId("dialog");
  /** @type {any} */
  let outcome;
  const close = (/** @type {any} */ value = undefined) => ((outcome = value), element.close());
  const element = h(
    "dialog",
    {class: ["dialog", className], "aria-labelledby": id, on: {close: () => (element.remove(), onClose(outcome))}},
    h("h2", {id}, title),
    h("div", {class: "dialog-body"}, body),
    h("div", {class: "dialog-actions"}, actions ?? button("Close", () => close())),
  );
  document.body.append(element);
  element.showModal();
  return {element, close};
}

/**
 * @param {Child} question
 * @param {{detail?: Child, yes?: string, danger?: boolean}} [options]
 * @returns {Promise<boolean>}
 */
export function confirm(question, {detail, yes = "Yes", danger = false} = {}) {
  return new Promise((resolve) => {
    const handle = dialog({
      title: question,
      body: detail ?? null,
      actions: [
        button("Cancel", () => handle.close(false)),
        button(yes, () => handle.close(true), {kind: danger ? "danger" : "primary"}),
      ],
      onClose: (value) => resolve(value === true),
      className: "dialog-confirm",
    });
  });
}
