// @ts-check
/** Toasts and screen reader announcements. Their regions are in index.html. */

import {h, replace} from "./dom.js";
import {icon} from "./icons.js";

const VISIBLE_MS = 5000;

/** @param {string} message @param {"info" | "good" | "bad"} [kind] */
export function toast(message, kind = "info") {
  const close = h("button", {type: "button", class: "toast-close", "aria-label": "Dismiss"}, icon("close"));
  const element = h("div", {class: ["toast", `toast-${kind}`]}, h("span", message), close);
  close.addEventListener("click", () => element.remove());
  document.getElementById("toasts")?.append(element);
  if (kind !== "bad") setTimeout(() => element.remove(), VISIBLE_MS);
}

/** @param {string} message */
export function announce(message) {
  const region = document.getElementById("announcer");
  if (region) replace(region, message);
}
