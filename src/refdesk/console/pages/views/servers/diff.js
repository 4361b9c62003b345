// @ts-check
/** Line diff of a tool definition. */

import {h} from "../../dom.js";

/** @type {Record<string, [string, string]>} element and screen reader prefix by line kind */
const KINDS = {"+": ["ins", "added: "], "-": ["del", "removed: "]};

/** @param {string} text lines that start with "+", "-" or a space */
export function diff(text) {
  const lines = text.split("\n").map((line) => {
    const [tag, prefix] = KINDS[line[0]] ?? ["span", ""];
    return h(tag, {class: "diff-line"}, prefix && h("span", {class: "unseen"}, prefix), line || " ", "\n");
  });
  return h("pre", {class: "diff", tabindex: "0", role: "region", "aria-label": "What changed"}, h("code", lines));
}
