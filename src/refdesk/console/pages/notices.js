// @ts-check
/** Short messages: those one sees in a corner, and those only a screen reader says. The regions are in index.html. */

import {h, replace} from "./dom.js";
import {icon} from "./icons.js";

const SHOWN_MS = 5000;

/** @param {string} message @param {"info" | "good" | "bad"} [kind] */
export function toast(message, kind = "info") {
  const close = h("button", {type: "button", class: "toast-close", "aria-label": "Dismiss"}, icon("close"));
  const shown = h("div", {class: ["toast", `toast-${kind}`]}, h("span", message), close);
  close.addEventListener("click", () => shown.remove());
  document.getElementById("toasts")?.append(shown);
  if (kind !== "bad") setTimeout(() => shown.remove(), SHOWN_MS);
}

/** @param {string} message */
export function announce(message) {
  const region = document.getElementById("announcer");
  if (region) replace(region, message);
}
