// @ts-check
/** Banner shown while the server is unreachable; retries until it responds. */

import {isReachable} from "./api.js";
import {h, replace} from "./dom.js";
import {icon} from "./icons.js";

const RETRY_MS = 2000;
let isWaiting = false;

/** @param {() => void} onReachable */
export async function showUnreachable(onReachable) {
  if (isWaiting) return;
  isWaiting = true;
  const banner = /** @type {HTMLElement} */ (document.getElementById("banner"));
  replace(
    banner,
    h("div", {class: "banner"}, icon("warning"), "Refdesk is not responding. Reconnecting…"),
  );
  while (!(await isReachable())) await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  isWaiting = false;
  replace(banner);
  onReachable();
}
