// @ts-check
/** How far a document is, in words, as a badge and as a bar. */

import {h} from "../../dom.js";
import {number, percent} from "../../format.js";
import {badge, meter} from "../../widgets.js";

/** @type {Record<string, [string, string]>} what each status is called, and the badge's kind */
const STATUSES = {
  pending: ["Waiting", "plain"],
  converting: ["Converting", "info"],
  embedding: ["Embedding", "info"],
  success: ["Ready", "good"],
  failed: ["Failed", "bad"],
};

/** @param {any} document */
export function isUnderWay(document) {
  return ["pending", "converting", "embedding"].includes(document.status);
}

/** @param {any} document @returns {string} */
export function statusWord(document) {
  return (STATUSES[document.status] ?? [document.status])[0];
}

/** @param {any} document @returns {string} how many of its passages are done, while that is counted */
export function passagesDone(document) {
  if (document.status !== "embedding" || !document.chunks) return "";
  return `${number(document.embedded)} of ${number(document.chunks)} passages`;
}

/** @param {any} document the badge, and a bar while it is under way */
export function statusCell(document) {
  const [, kind] = STATUSES[document.status] ?? ["", "plain"];
  return h(
    "div",
    {class: "document-status"},
    badge(statusWord(document), kind),
    isUnderWay(document) && meter(document.progress, `${statusWord(document)}, ${percent(document.progress)}`),
    h("span", {class: "faint"}, passagesDone(document)),
  );
}
