// @ts-check
/**
 * Keys that work everywhere, and the list of them. None is taken while somebody types, while a dialog is open or with a
 * modifier held; all can be switched off, as some ways of speaking to a computer press keys by accident.
 */

import {dialog} from "./dialogs.js";
import {h} from "./dom.js";
import {path, ROUTES} from "./router.js";
import {toggle} from "./widgets.js";

const OFF = "refdesk.shortcuts.off";
const SEQUENCE_MS = 1500;

/** @param {(address: string) => void} navigate */
export function listenToKeys(navigate) {
  let afterG = 0;
  document.addEventListener("keydown", (event) => {
    if (!isCommand(event)) return;
    const route = performance.now() - afterG < SEQUENCE_MS ? ROUTES.find(({key}) => key === event.key) : undefined;
    afterG = event.key === "g" ? performance.now() : 0;
    if (route) navigate(path(route.name));
    else if (event.key === "/") focusSearch(navigate);
    else if (event.key === "?") showShortcuts();
    else return;
    event.preventDefault();
  });
}

/** @param {KeyboardEvent} event whether a key press is meant for the page, not for a field */
export function isCommand(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || event.isComposing) return false;
  if (localStorage.getItem(OFF) || document.querySelector("dialog[open]")) return false;
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
  const goes = ROUTES.filter(({key}) => key).map(({key, label}) => shortcut(["g", key ?? ""], `Go to ${label}`));
  const all = [
    shortcut(["/"], "Search"),
    ...goes,
    shortcut(["j", "↓"], "Next result", "or"),
    shortcut(["k", "↑"], "Previous result", "or"),
    shortcut(["Enter"], "Open the result"),
    shortcut(["Esc"], "Close, or leave the field"),
    shortcut(["?"], "This list"),
  ];
  const on = !localStorage.getItem(OFF);
  const body = [h("dl", {class: "shortcuts"}, all), toggle("Single-key shortcuts", on, keep)];
  dialog({title: "Keyboard shortcuts", body});
}

/** @param {boolean} on */
function keep(on) {
  if (on) localStorage.removeItem(OFF);
  else localStorage.setItem(OFF, "yes");
}

/** @param {string[]} keys @param {string} what @param {string} [between] */
function shortcut(keys, what, between = "then") {
  const shown = keys.flatMap((key, at) => [at > 0 && ` ${between} `, h("kbd", key)]);
  return h("div", h("dt", shown), h("dd", what));
}
