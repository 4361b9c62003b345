// @ts-check
/** A server's standard error, refreshed while it is expanded and the page is visible. */

import {action} from "../../api.js";
import {h, replace} from "../../dom.js";
import {copyButton, details, errorBox} from "../../widgets.js";

const LINES = 200;
const REFRESH_MS = 3000;

/** @param {string} name of the server @param {AbortSignal} signal aborted when the view is left */
export function serverLog(name, signal) {
  const text = h("pre", {class: "server-log", tabindex: "0", role: "region", "aria-label": `Log of ${name}`});
  const errorArea = h("div");
  const copy = copyButton(() => text.textContent ?? "", "Copy log");
  const fold = details("Recent log", h("div", {class: "server-log-frame"}, errorArea, text, copy));

  const refresh = async () => {
    try {
      const {lines} = await action("server_log", {name, lines: LINES}, {signal});
      show(text, lines.length ? lines.join("\n") : "The log is empty.");
      replace(errorArea);
    } catch (error) {
      if (!signal.aborted) replace(errorArea, errorBox(error, refresh));
    }
  };
  fold.addEventListener("toggle", () => fold.open && refresh());
  const timer = setInterval(() => fold.open && !document.hidden && refresh(), REFRESH_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
  return fold;
}

/** Scroll to the newest lines, unless the user has scrolled up. @param {HTMLElement} text @param {string} lines */
function show(text, lines) {
  if (text.textContent === lines) return;
  const isAtEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
  replace(text, lines);
  if (isAtEnd) text.scrollTop = text.scrollHeight;
}
