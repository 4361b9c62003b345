// @ts-check
/** What of a tool's definition was taken away and what was added, line by line. */

import {h} from "../../dom.js";

/** @type {Record<string, [string, string]>} the element of a line, and what it is called for those who do not see it */
const KINDS = {"+": ["ins", "added: "], "-": ["del", "removed: "]};

/** @param {string} text whose lines begin with "+", "-" or a blank */
export function diff(text) {
  const drawn = text.split("\n").map((line) => {
    const [tag, spoken] = KINDS[line[0]] ?? ["span", ""];
    return h(tag, {class: "diff-line"}, spoken && h("span", {class: "unseen"}, spoken), line || " ", "\n");
  });
  return h("pre", {class: "diff", tabindex: "0", role: "region", "aria-label": "What changed"}, h("code", drawn));
}
