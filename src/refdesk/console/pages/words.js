// @ts-check
/**
 * Highlights query words: `createMarker(query)` returns a function from text to text nodes and <mark>s.
 * Words match by stem, so "keys" marks "key". This is display only; the engine has its own matching.
 */

import {h} from "./dom.js";

const WORD = /[\p{L}\p{N}]+/gu;
const STOP_WORDS = new Set(
  (
    "a an and are as at be by can do does for from had has have how i if in is it its me my not of on or that the " +
    "their this to was we what when where which who why will with you your"
  ).split(" "),
);
const ENDINGS = /(?:ations?|ings?|ies|ied|ers?|ed|es|ly|s|e|y)$/;
const MIN_STEM_LENGTH = 3;

/** @param {string} word */
export function stem(word) {
  const lower = word.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
  const cut = lower.replace(ENDINGS, "");
  return cut.length >= MIN_STEM_LENGTH ? cut : lower;
}

/** @param {string} query @returns {(text: string) => (string | Element)[]} */
export function createMarker(query) {
  const all = query.match(WORD) ?? [];
  const significant = all.filter((word) => !STOP_WORDS.has(word.toLowerCase()));
  const stems = new Set((significant.length > 0 ? significant : all).map(stem));
  if (stems.size === 0) return (text) => [text];
  return (text) => markWords(text, stems);
}

/** @param {string} text @param {Set<string>} stems */
function markWords(text, stems) {
  const parts = [];
  let done = 0;
  for (const match of text.matchAll(WORD)) {
    if (!stems.has(stem(match[0]))) continue;
    parts.push(text.slice(done, match.index), h("mark", match[0]));
    done = match.index + match[0].length;
  }
  parts.push(text.slice(done));
  return parts;
}
