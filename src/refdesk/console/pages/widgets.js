// @ts-check
/**
 * Shared components. All return elements; their classes are styled in styles/widgets.css.
 *
 *   button(label, onClick, {kind, icon, disabled, type, attributes})  kind: "primary" | "danger" | "quiet" | "small"
 *                                    (several, separated by spaces); the button is disabled while a promise
 *                                    returned by onClick is pending
 *   copyButton(text | () => text, label = "Copy")
 *   badge(text, kind)                kind: "good" | "bad" | "warn" | "info" | "plain"
 *   spinner(label = "Loading")       announces the label to screen readers
 *   errorBox(error, retry?)          an ApiError or any Error; `retry` adds a button. role="alert"
 *   emptyState({title, text, actions})   text: child or children; actions: elements
 *   field(label, control, hint?)     a labelled control; the control gets an id if it has none
 *   select(options, value, attributes)   options: [[value, label], ...]
 *   toggle(label, checked, onChange(checked), attributes)   a checkbox with the switch role
 *   table({caption, columns, rows, empty, key, className})
 *                                    columns: [{title, cell: (row) => child, className?, hidden?: true shows the title
 *                                    to screen readers only}]; key(row) becomes data-key of the <tr>; on narrow
 *                                    screens each row becomes a card with the titles beside the values
 *   meter(share, label)              a slim bar, 0 to 1
 *   tabs(label, [[name, title, element], ...], {onChange(name), selected})
 *   details(summary, ...children)    a collapsible section
 *   dialog({title, body, actions, onClose}) -> {element, close(value)}   a modal <dialog>, opened at once; `actions` are
 *                                    elements (use `button`); Esc closes it with undefined; `onClose(value)`
 *   confirm(question, {detail, yes, danger}) -> Promise<boolean>
 *   toast(message, kind = "info")    kind: "info" | "good" | "bad"; disappears by itself, "bad" ones on click
 *   announce(message)                announces a line to screen readers only
 *   pageHeader(title, lead?, actions?)   the h1 of a view; every view starts with it
 */

import {button} from "./buttons.js";
import {h, newId} from "./dom.js";
import {icon} from "./icons.js";

export {icon};
export {button, copyButton} from "./buttons.js";
export {confirm, dialog} from "./dialogs.js";
export {announce, toast} from "./notices.js";
export {tabs} from "./tabs.js";

/** @typedef {import("./dom.js").Child} Child */

/** @param {Child} label @param {string} [kind] */
export function badge(label, kind = "plain") {
  return h("span", {class: ["badge", `badge-${kind}`]}, label);
}

/** @param {string} [label] */
export function spinner(label = "Loading") {
  return h("div", {class: "spinner", role: "status"}, h("span", {class: "spinner-mark", "aria-hidden": "true"}), label);
}

/** @param {any} error @param {() => unknown} [retry] */
export function errorBox(error, retry) {
  return h(
    "div",
    {class: "error-box", role: "alert", data: {away: error.status === 0 ? "yes" : "no"}},
    icon("warning"),
    h("div", h("p", error.message), error.hint && h("p", {class: "faint"}, error.hint)),
    retry && button("Try again", retry, {kind: "small"}),
  );
}

/** @param {{title: string, text?: Child, actions?: Child}} parts */
export function emptyState({title, text, actions}) {
  return h(
    "div",
    {class: "empty"},
    h("h2", title),
    text && h("p", {class: "faint"}, text),
    actions && h("div", {class: "empty-actions"}, actions),
  );
}

/** @param {Child} label @param {any} control @param {Child} [hint] */
export function field(label, control, hint) {
  control.id ||= newId("field");
  const hintElement = hint ? h("p", {class: "field-hint", id: `${control.id}-hint`}, hint) : null;
  if (hintElement) control.setAttribute("aria-describedby", hintElement.id);
  return h("div", {class: "field"}, h("label", {for: control.id}, label), control, hintElement);
}

/** @param {[string, string][]} options @param {string} value @param {object} [attributes] */
export function select(options, value, attributes = {}) {
  const optionElements = options.map(([key, label]) => h("option", {value: key, selected: key === value}, label));
  return h("select", {class: "input", ...attributes}, optionElements);
}

/**
 * @param {Child} label
 * @param {boolean} checked
 * @param {(checked: boolean) => unknown} onChange
 * @param {object} [attributes]
 */
export function toggle(label, checked, onChange, attributes = {}) {
  const change = (/** @type {any} */ event) => onChange(event.currentTarget.checked);
  const box = h("input", {type: "checkbox", role: "switch", checked, on: {change}, ...attributes});
  return h(
    "label",
    {class: "toggle"},
    box,
    h("span", {class: "toggle-track", "aria-hidden": "true"}),
    h("span", label),
  );
}

/**
 * @template Row
 * @param {{caption: string, rows: Row[], empty?: Child, key?: (row: Row) => string, className?: string,
 *   columns: {title: string, cell: (row: Row) => Child, className?: string, hidden?: boolean}[]}} parts
 */
export function table({caption, columns, rows, empty, key, className}) {
  const head = columns.map(({title, hidden, className: name}) =>
    h("th", {scope: "col", class: name}, hidden ? h("span", {class: "unseen"}, title) : title),
  );
  const body = rows.map((row) =>
    h(
      "tr",
      {data: key ? {key: key(row)} : {}},
      columns.map(({title, cell, className: name, hidden}) =>
        h("td", {class: name, data: {title: hidden ? "" : title}}, cell(row)),
      ),
    ),
  );
  if (rows.length === 0 && empty) body.push(h("tr", h("td", {class: "table-empty", colspan: columns.length}, empty)));
  return h(
    "div",
    {class: ["table-frame", className]},
    h("table", h("caption", {class: "unseen"}, caption), h("thead", h("tr", head)), h("tbody", body)),
  );
}

/** @param {number} share @param {string} label */
export function meter(share, label) {
  const width = `${Math.round(Math.max(0, Math.min(1, share)) * 100)}%`;
  return h("span", {class: "meter", role: "img", "aria-label": label}, h("span", {css: {"--share": width}}));
}

/** @param {Child} summary @param {...Child} children */
export function details(summary, ...children) {
  return h("details", {class: "fold"}, h("summary", summary), children);
}

/** @param {Child} title @param {Child} [lead] @param {Child} [actions] */
export function pageHeader(title, lead, actions) {
  return h(
    "header",
    {class: "page-header"},
    h("div", h("h1", {tabindex: "-1"}, title), lead && h("p", {class: "lead"}, lead)),
    actions && h("div", {class: "page-actions"}, actions),
  );
}
