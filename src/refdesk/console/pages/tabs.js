// @ts-check
/** Tabs following the ARIA pattern: one tab stop, arrow keys between tabs. */

import {h, newId} from "./dom.js";

/**
 * @param {string} label
 * @param {[string, string, Element][]} parts name, title and content of each
 * @param {{onChange?: (name: string) => void, selected?: string}} [options]
 */
export function tabs(label, parts, {onChange = () => {}, selected = parts[0][0]} = {}) {
  const id = newId("tabs");
  const heads = parts.map(([name, title]) =>
    h(
      "button",
      {type: "button", role: "tab", id: `${id}-${name}`, "aria-controls": `${id}-${name}-panel`, data: {name}},
      title,
    ),
  );
  const panels = parts.map(([name, , element]) =>
    h("div", {role: "tabpanel", id: `${id}-${name}-panel`, "aria-labelledby": `${id}-${name}`}, element),
  );
  const show = (/** @type {number} */ index) => {
    heads.forEach((head, at) => {
      head.setAttribute("aria-selected", String(at === index));
      head.tabIndex = at === index ? 0 : -1;
      panels[at].hidden = at !== index;
    });
  };
  const select = (/** @type {number} */ index) => (show(index), heads[index].focus(), onChange(parts[index][0]));
  const onKeydown = (/** @type {KeyboardEvent} */ event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return;
    event.preventDefault();
    select((heads.indexOf(event.target) + step + heads.length) % heads.length);
  };
  heads.forEach((head, at) => head.addEventListener("click", () => select(at)));
  show(
    Math.max(
      0,
      parts.findIndex(([name]) => name === selected),
    ),
  );
  return h(
    "div",
    {class: "tabs"},
    h("div", {role: "tablist", "aria-label": label, on: {keydown: onKeydown}}, heads),
    panels,
  );
}
