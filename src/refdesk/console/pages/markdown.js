// @ts-check
/**
 * Markdown parser for passages and answers. `parseBlocks(source)` returns the same blocks as the console's `read`
 * action, so that blocks.js renders both. Supports what passages contain: headings, paragraphs, fenced code, lists,
 * tables, quotes, rules; `code`, **strong**, *em*, [links](https://...). HTML stays text.
 */

/** @typedef {{text: string, strong?: boolean, em?: boolean, code?: boolean, href?: string}} Inline */
/** @typedef {any} Block see blocks.js */

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const MAX_DEPTH = 6;

/** @param {string} source @param {number} [depth] @returns {Block[]} */
export function parseBlocks(source, depth = 0) {
  const lines = source.split(/\r?\n/);
  const result = [];
  let at = 0;
  while (at < lines.length) {
    const [block, next] = parseBlock(lines, at, depth);
    if (block) result.push(block);
    at = next;
  }
  return result;
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[Block | null, number]} */
function parseBlock(lines, at, depth) {
  const line = lines[at];
  if (!line.trim()) return [null, at + 1];
  if (FENCE.test(line)) return parseFence(lines, at);
  const heading = HEADING.exec(line);
  if (heading) return [{type: "heading", level: heading[1].length, text: parseInlines(heading[2])}, at + 1];
  if (RULE.test(line)) return [{type: "rule"}, at + 1];
  if (line.includes("|") && DIVIDER.test(lines[at + 1] ?? "")) return parseTable(lines, at);
  if (depth < MAX_DEPTH && line.startsWith(">")) return parseQuote(lines, at, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return parseList(lines, at, depth);
  return parseParagraph(lines, at);
}

/** @param {string[]} lines @param {number} at @returns {[Block, number]} */
function parseFence(lines, at) {
  const [, fence, language] = /** @type {RegExpExecArray} */ (FENCE.exec(lines[at]));
  let end = at + 1;
  while (end < lines.length && !lines[end].trimStart().startsWith(fence)) end += 1;
  return [{type: "code", language, text: lines.slice(at + 1, end).join("\n")}, end + 1];
}

/** @param {string[]} lines @param {number} at @returns {[Block, number]} */
function parseTable(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  const rows = lines.slice(at + 2, end).map((line) => parseCells(line));
  return [{type: "table", head: parseCells(lines[at]), rows}, end];
}

/** @param {string} line */
function parseCells(line) {
  const inner = line
    .trim()
    .replace(/^\|/, "")
    .replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => parseInlines(cell.trim().replaceAll("\\|", "|")));
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[Block, number]} */
function parseQuote(lines, at, depth) {
  let end = at;
  while (end < lines.length && lines[end].startsWith(">")) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(/^> ?/, ""));
  return [{type: "quote", blocks: parseBlocks(inner.join("\n"), depth + 1)}, end];
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[Block, number]} */
function parseList(lines, at, depth) {
  const first = /** @type {RegExpExecArray} */ (ITEM.exec(lines[at]));
  const indent = first[1].length;
  const ordered = /\d/.test(first[2]);
  /** @type {string[][]} */
  const items = [];
  let end = at;
  for (; end < lines.length; end += 1) {
    const item = ITEM.exec(lines[end]);
    if (item && item[1].length <= indent && /\d/.test(item[2]) === ordered) items.push([item[3]]);
    else if (continuesItem(lines, end, indent)) items[items.length - 1].push(lines[end].slice(indent + 2));
    else break;
  }
  return [{type: "list", ordered, items: items.map((lines) => parseBlocks(lines.join("\n"), depth + 1))}, end];
}

/** @param {string[]} lines @param {number} at @param {number} indent whether a line continues the item above */
function continuesItem(lines, at, indent) {
  if (!lines[at].trim()) return /^\s/.test(lines[at + 1] ?? "") || ITEM.test(lines[at + 1] ?? "");
  return lines[at].search(/\S/) > indent;
}

/** @param {string[]} lines @param {number} at @returns {[Block, number]} */
function parseParagraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !startsBlock(lines, end)) end += 1;
  return [{type: "paragraph", inlines: parseInlines(lines.slice(at, end).join("\n"))}, end];
}

/** @param {string[]} lines @param {number} at */
function startsBlock(lines, at) {
  const line = lines[at];
  if (FENCE.test(line) || HEADING.test(line) || ITEM.test(line) || line.startsWith(">")) return true;
  return line.includes("|") && DIVIDER.test(lines[at + 1] ?? "");
}

const SPAN = /(`+)([^`]+?)\1(?!`)|\*\*([^*]+)\*\*|(?<![*\w])\*([^*\s][^*]*)\*(?![*\w])|!?\[([^[\]]*)\]\(([^()\s]*)\)/g;

/** @param {string} source @returns {Inline[]} */
export function parseInlines(source) {
  /** @type {Inline[]} */
  const result = [];
  let end = 0;
  for (const match of source.matchAll(SPAN)) {
    if (match.index > end) result.push({text: unescapeMarkdown(source.slice(end, match.index))});
    result.push(parseSpan(match));
    end = match.index + match[0].length;
  }
  if (end < source.length) result.push({text: unescapeMarkdown(source.slice(end))});
  return result;
}

/** @param {RegExpExecArray} match @returns {Inline} */
function parseSpan([, , code, strong, em, label, href]) {
  if (code !== undefined) return {text: code, code: true};
  if (strong !== undefined) return {text: strong, strong: true};
  if (em !== undefined) return {text: em, em: true};
  return {text: label, href};
}

/** @param {string} text */
function unescapeMarkdown(text) {
  return text.replace(/\\([\\`*_{}[\]()#+.!|<>-])/g, "$1");
}
