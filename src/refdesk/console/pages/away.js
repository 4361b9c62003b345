// @ts-check
/** The banner that says that the desk does not answer, and keeps trying until it does. */

import {reachable} from "./api.js";
import {h, replace} from "./dom.js";
import {icon} from "./icons.js";

const BETWEEN_TRIES_MS = 2000;
let waiting = false;

/** @param {() => void} whenBack */
export async function showAway(whenBack) {
  if (waiting) return;
  waiting = true;
  const banner = /** @type {HTMLElement} */ (document.getElementById("banner"));
  replace(
    banner,
    h("div", {class: "banner"}, icon("warning"), "The desk does not answer. Trying again until it does."),
  );
  while (!(await reachable())) await new Promise((resolve) => setTimeout(resolve, BETWEEN_TRIES_MS));
  waiting = false;
  replace(banner);
  whenBack();
}
