// @ts-check
/**
 * Passages and answers are Markdown. `blocks(source)` gives the blocks that the console's `read` action gives for a
 * whole document, so that blocks.js draws both. It knows what passages hold: headings, paragraphs, fenced code,
 * lists, tables, quotes, rules; `code`, **strong**, *em*, [links](https://...). HTML is not known and stays the text
 * it is.
 */

/** @typedef {{text: string, strong?: boolean, em?: boolean, code?: boolean, href?: string}} Inline */
/** @typedef {any} Block see blocks.js */

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const DEEPEST = 6;

/** @param {string} source @param {number} [depth] @returns {Block[]} */
export function blocks(source, depth = 0) {
  const lines = source.split(/\r?\n/);
  const made = [];
  let at = 0;
  while (at < lines.length) {
    const [block, next] = blockAt(lines, at, depth);
    if (block) made.push(block);
    at = next;
  }
  return made;
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[Block | null, number]} */
function blockAt(lines, at, depth) {
  const line = lines[at];
  if (!line.trim()) return [null, at + 1];
  if (FENCE.test(line)) return fenced(lines, at);
  const heading = HEADING.exec(line);
  if (heading) return [{type: "heading", level: heading[1].length, text: inlines(heading[2])}, at + 1];
  if (RULE.test(line)) return [{type: "rule"}, at + 1];
  if (line.includes("|") && DIVIDER.test(lines[at + 1] ?? "")) return table(lines, at);
  if (depth < DEEPEST && line.startsWith(">")) return quote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, at, depth);
  return paragraph(lines, at);
}

/** @param {string[]} lines @param {number} at @returns {[Block, number]} */
function fenced(lines, at) {
  const [, fence, language] = /** @type {RegExpExecArray} */ (FENCE.exec(lines[at]));
  let end = at + 1;
  while (end < lines.length && !lines[end].trimStart().startsWith(fence)) end += 1;
  return [{type: "code", language, text: lines.slice(at + 1, end).join("\n")}, end + 1];
}

/** @param {string[]} lines @param {number} at @returns {[Block, number]} */
function table(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  const rows = lines.slice(at + 2, end).map((line) => cells(line));
  return [{type: "table", head: cells(lines[at]), rows}, end];
}

/** @param {string} line */
function cells(line) {
  const inner = line
    .trim()
    .replace(/^\|/, "")
    .replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => inlines(cell.trim().replaceAll("\\|", "|")));
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[Block, number]} */
function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && lines[end].startsWith(">")) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(/^> ?/, ""));
  return [{type: "quote", blocks: blocks(inner.join("\n"), depth + 1)}, end];
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[Block, number]} */
function list(lines, at, depth) {
  const first = /** @type {RegExpExecArray} */ (ITEM.exec(lines[at]));
  const indent = first[1].length;
  const ordered = /\d/.test(first[2]);
  /** @type {string[][]} */
  const items = [];
  let end = at;
  for (; end < lines.length; end += 1) {
    const item = ITEM.exec(lines[end]);
    if (item && item[1].length <= indent && /\d/.test(item[2]) === ordered) items.push([item[3]]);
    else if (belongs(lines, end, indent)) items[items.length - 1].push(lines[end].slice(indent + 2));
    else break;
  }
  return [{type: "list", ordered, items: items.map((lines) => blocks(lines.join("\n"), depth + 1))}, end];
}

/** @param {string[]} lines @param {number} at @param {number} indent whether a line goes on with the item above */
function belongs(lines, at, indent) {
  if (!lines[at].trim()) return /^\s/.test(lines[at + 1] ?? "") || ITEM.test(lines[at + 1] ?? "");
  return lines[at].search(/\S/) > indent;
}

/** @param {string[]} lines @param {number} at @returns {[Block, number]} */
function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !startsBlock(lines, end)) end += 1;
  return [{type: "paragraph", inlines: inlines(lines.slice(at, end).join("\n"))}, end];
}

/** @param {string[]} lines @param {number} at */
function startsBlock(lines, at) {
  const line = lines[at];
  if (FENCE.test(line) || HEADING.test(line) || ITEM.test(line) || line.startsWith(">")) return true;
  return line.includes("|") && DIVIDER.test(lines[at + 1] ?? "");
}

const SPAN = /(`+)([^`]+?)\1(?!`)|\*\*([^*]+)\*\*|(?<![*\w])\*([^*\s][^*]*)\*(?![*\w])|!?\[([^[\]]*)\]\(([^()\s]*)\)/g;

/** @param {string} source @returns {Inline[]} */
export function inlines(source) {
  /** @type {Inline[]} */
  const made = [];
  let done = 0;
  for (const match of source.matchAll(SPAN)) {
    if (match.index > done) made.push({text: unescaped(source.slice(done, match.index))});
    made.push(span(match));
    done = match.index + match[0].length;
  }
  if (done < source.length) made.push({text: unescaped(source.slice(done))});
  return made;
}

/** @param {RegExpExecArray} match @returns {Inline} */
function span([, , code, strong, em, label, href]) {
  if (code !== undefined) return {text: code, code: true};
  if (strong !== undefined) return {text: strong, strong: true};
  if (em !== undefined) return {text: em, em: true};
  return {text: label, href};
}

/** @param {string} text */
function unescaped(text) {
  return text.replace(/\\([\\`*_{}[\]()#+.!|<>-])/g, "$1");
}
