// @ts-check
/**
 * The words of a query, marked in a text: `marker(query)` gives a function from a text to text nodes and <mark>s.
 * Words match by their stem, so that "keys" marks "key". This is for the eye only; the engine has its own way to match.
 */

import {h} from "./dom.js";

const WORD = /[\p{L}\p{N}]+/gu;
const COMMON = new Set(
  (
    "a an and are as at be by can do does for from had has have how i if in is it its me my not of on or that the " +
    "their this to was we what when where which who why will with you your"
  ).split(" "),
);
const ENDINGS = /(?:ations?|ings?|ies|ied|ers?|ed|es|ly|s|e|y)$/;
const SHORTEST_STEM = 3;

/** @param {string} word */
export function stem(word) {
  const lower = word.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
  const cut = lower.replace(ENDINGS, "");
  return cut.length >= SHORTEST_STEM ? cut : lower;
}

/** @param {string} query @returns {(text: string) => (string | Element)[]} */
export function marker(query) {
  const all = query.match(WORD) ?? [];
  const telling = all.filter((word) => !COMMON.has(word.toLowerCase()));
  const wanted = new Set((telling.length > 0 ? telling : all).map(stem));
  if (wanted.size === 0) return (text) => [text];
  return (text) => marked(text, wanted);
}

/** @param {string} text @param {Set<string>} wanted */
function marked(text, wanted) {
  const parts = [];
  let done = 0;
  for (const match of text.matchAll(WORD)) {
    if (!wanted.has(stem(match[0]))) continue;
    parts.push(text.slice(done, match.index), h("mark", match[0]));
    done = match.index + match[0].length;
  }
  parts.push(text.slice(done));
  return parts;
}
