// @ts-check
/** Document status as label, badge and progress bar. */

import {h} from "../../dom.js";
import {number, percent} from "../../format.js";
import {badge, meter} from "../../widgets.js";

/** @type {Record<string, [string, string]>} label and badge kind by status */
const STATUSES = {
  pending: ["Waiting", "plain"],
  converting: ["Converting", "info"],
  embedding: ["Embedding", "info"],
  success: ["Ready", "good"],
  failed: ["Failed", "bad"],
};

/** @param {any} document */
export function isUnfinished(document) {
  return ["pending", "converting", "embedding"].includes(document.status);
}

/** @param {any} document @returns {string} */
export function statusLabel(document) {
  return (STATUSES[document.status] ?? [document.status])[0];
}

/** @param {any} document @returns {string} number of embedded passages, while embedding */
export function formatPassages(document) {
  if (document.status !== "embedding" || !document.chunks) return "";
  return `${number(document.embedded)} of ${number(document.chunks)} passages`;
}

/** @param {any} document badge, with a progress bar while unfinished */
export function statusCell(document) {
  const [, kind] = STATUSES[document.status] ?? ["", "plain"];
  return h(
    "div",
    {class: "document-status"},
    badge(statusLabel(document), kind),
    isUnfinished(document) && meter(document.progress, `${statusLabel(document)}, ${percent(document.progress)}`),
    h("span", {class: "faint"}, formatPassages(document)),
  );
}
