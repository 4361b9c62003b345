// @ts-check
/**
 * Global keyboard shortcuts and their help dialog. Ignored while typing, in dialogs and with modifiers. They can be
 * disabled, as some speech input software triggers single keys by accident.
 */

import {dialog} from "./dialogs.js";
import {h} from "./dom.js";
import {path, ROUTES} from "./router.js";
import {toggle} from "./widgets.js";

const DISABLED_KEY = "refdesk.shortcuts.off";
const SEQUENCE_MS = 1500;

/** @param {(address: string) => void} navigate */
export function listenForShortcuts(navigate) {
  let afterG = 0;
  document.addEventListener("keydown", (event) => {
    if (!isShortcut(event)) return;
    const route = performance.now() - afterG < SEQUENCE_MS ? ROUTES.find(({key}) => key === event.key) : undefined;
    afterG = event.key === "g" ? performance.now() : 0;
    if (route) navigate(path(route.name));
    else if (event.key === "/") focusSearch(navigate);
    else if (event.key === "?") showShortcuts();
    else return;
    event.preventDefault();
  });
}

/** @param {KeyboardEvent} event whether the key press is a shortcut and not input */
export function isShortcut(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || event.isComposing) return false;
  if (localStorage.getItem(DISABLED_KEY) || document.querySelector("dialog[open]")) return false;
  const at = event.target instanceof HTMLElement ? event.target : null;
  return !at?.closest("input:not([type=checkbox]), textarea, select, [contenteditable]");
}

/** @param {(address: string) => void} navigate */
function focusSearch(navigate) {
  const field = /** @type {HTMLInputElement | null} */ (document.querySelector("[data-search-field]"));
  if (!field) return navigate(path("search"));
  field.focus();
  field.select();
}

export function showShortcuts() {
  const navigation = ROUTES.filter(({key}) => key).map(({key, label}) => shortcut(["g", key ?? ""], `Go to ${label}`));
  const all = [
    shortcut(["/"], "Search"),
    ...navigation,
    shortcut(["j", "↓"], "Next result", "or"),
    shortcut(["k", "↑"], "Previous result", "or"),
    shortcut(["Enter"], "Open result"),
    shortcut(["Esc"], "Close, or leave a field"),
    shortcut(["?"], "Show shortcuts"),
  ];
  const on = !localStorage.getItem(DISABLED_KEY);
  const body = [h("dl", {class: "shortcuts"}, all), toggle("Single-key shortcuts", on, saveSetting)];
  dialog({title: "Keyboard shortcuts", body});
}

/** @param {boolean} on */
function saveSetting(on) {
  if (on) localStorage.removeItem(DISABLED_KEY);
  else localStorage.setItem(DISABLED_KEY, "yes");
}

/** @param {string[]} keys @param {string} what @param {string} [between] */
function shortcut(keys, what, between = "then") {
  const keyElements = keys.flatMap((key, at) => [at > 0 && ` ${between} `, h("kbd", key)]);
  return h("div", h("dt", keyElements), h("dd", what));
}
