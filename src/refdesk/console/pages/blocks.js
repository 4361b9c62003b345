// @ts-check
/**
 * Renders document blocks: `drawBlocks(blocks, {write, top})`.
 *
 * A block is one of {type: "heading", level, id, text: inlines} {type: "paragraph", id, inlines} {type: "list",
 * ordered, items: [blocks]} {type: "code", language, text} {type: "table", head, rows} {type: "quote", blocks} {type:
 * "image", alt} {type: "rule"}; `hit: true` marks a search hit; `omitted` is the amount left out. An inline is {text,
 * strong, em, code, href, beside}; `beside` is a relative link to another document, rendered as a span with
 * data-beside that reader/beside.js turns into a link.
 *
 * `write(text, isCode)` turns text into children, to mark words or citations; `writeHit` does so inside hits;
 * `anchor(id)` is the URL of a section of the same document. `top` is the page level of the highest heading, so that a
 * view keeps a single h1; heading levels are never skipped, whatever the document does. `levels`, a list, carries the
 * levels from one part of a document to the next. Without `top`, as for a single passage, headings are bold lines.
 */

import {h} from "./dom.js";
import {plural} from "./format.js";

/** @typedef {import("./dom.js").Child} Child */
/**
 * @typedef {object} Options
 * @property {(text: string, isCode: boolean) => Child} [write]
 * @property {(text: string, isCode: boolean) => Child} [writeHit]
 * @property {number} [top]
 * @property {number[]} [levels]
 * @property {(id: string) => string} [anchor]
 */

const MAX_HEADING_LEVEL = 6;

/** @param {any[]} blocks @param {Options} [options] @returns {Element[]} */
export function drawBlocks(blocks, options = {}) {
  if (options.top) blocks = assignHeadingLevels(blocks, options.top, options.levels ?? []);
  return blocks.map((block) => drawBlock(block, options)).filter((element) => element !== null);
}

/** @param {any} block @param {Options} options @returns {Element | null} */
function drawBlock(block, options) {
  if (block.hit && options.writeHit) options = {...options, write: options.writeHit};
  const element = RENDERERS[block.type]?.(block, options) ?? null;
  if (element && block.type !== "code") element.setAttribute("dir", "auto");
  if (element && block.hit) element.classList.add("hit");
  return element;
}

/** @type {Record<string, (block: any, options: Options) => Element>} */
const RENDERERS = {
  heading: (block, options) => heading(block, options),
  paragraph: (block, options) =>
    h("p", sectionAnchor(block), drawInlines(block.inlines, options), omissionNote(block, "character")),
  list: (block, options) => list(block, options),
  code: (block, options) => code(block, options),
  table: (block, options) => table(block, options),
  quote: (block, options) => h("blockquote", drawBlocks(block.blocks, options)),
  image: (block) => h("p", {class: "picture"}, `Picture${block.alt ? `: ${block.alt}` : ""}`),
  rule: () => h("hr"),
};

/** @param {any} block @param {Options} options */
function heading(block, options) {
  if (!block.step) return h("p", {class: "heading-line"}, drawInlines(block.text, options));
  return h(`h${block.step}`, sectionAnchor(block), drawInlines(block.text, options));
}

/** @param {any} block a heading, or a paragraph with the term of a definition */
function sectionAnchor(block) {
  return block.id ? {data: {section: block.id}, id: `section-${block.id}`, tabindex: "-1"} : {};
}

/**
 * @param {any[]} blocks
 * @param {number} top
 * @param {number[]} levels levels of the open headings
 * @returns {any[]} the blocks, each heading with its page level in `step`
 */
function assignHeadingLevels(blocks, top, levels) {
  return blocks.map((block) => {
    if (block.type !== "heading") return block;
    while (levels.length > 0 && levels[levels.length - 1] >= block.level) levels.pop();
    levels.push(block.level);
    return {...block, step: Math.min(levels.length + top - 1, MAX_HEADING_LEVEL)};
  });
}

/** @param {any} block @param {Options} options */
function list(block, options) {
  const items = block.items.map((/** @type {any} */ item) => listItem(item, options));
  return h(block.ordered ? "ol" : "ul", {start: block.start ?? null}, items);
}

/** @param {any} item blocks; a single paragraph needs no <p> @param {Options} options */
function listItem(item, options) {
  const plain = item.length === 1 && item[0].type === "paragraph";
  if (!plain) return h("li", drawBlocks(item, options));
  const [{hit, inlines}] = item;
  return h(
    "li",
    {class: hit && "hit"},
    drawInlines(inlines, hit && options.writeHit ? {...options, write: options.writeHit} : options),
  );
}

/** @param {any} block @param {Options} options */
function code(block, options) {
  return makeScrollable(
    h("pre", {class: "code"}, h("code", renderText(block.text, options, true), omissionNote(block, "character"))),
    block.language || "Code",
  );
}

/** @param {any} block @param {Options} options */
function table(block, options) {
  const head = (block.head ?? []).map((/** @type {any} */ cell) => h("th", {scope: "col"}, drawInlines(cell, options)));
  const rows = (block.rows ?? []).map((/** @type {any[]} */ row) =>
    h(
      "tr",
      row.map((cell) => h("td", {dir: "auto"}, drawInlines(cell, options))),
    ),
  );
  const caption = block.caption && h("caption", block.caption);
  const element = h("table", caption, head.length > 0 && h("thead", h("tr", head)), h("tbody", rows));
  return makeScrollable(h("div", {class: "text-table"}, element, omissionNote(block, "row")), block.caption || "Table");
}

/** @param {any[]} inlines @param {Options} options @returns {Child[]} */
function drawInlines(inlines, options) {
  return (inlines ?? []).map((inline) => drawInline(inline, options));
}

/** @param {any} inline @param {Options} options @returns {Child} */
function drawInline(inline, options) {
  /** @type {Child} */
  let element = renderText(inline.text, options, Boolean(inline.code));
  if (inline.code) element = h("code", element);
  if (inline.strong) element = h("strong", element);
  if (inline.em) element = h("em", element);
  if (inline.beside) return h("span", {data: {beside: inline.beside}}, element);
  return inline.href ? link(inline.href, element, options) : element;
}

/** @param {string} href @param {Child} label @param {Options} options other relative links stay text */
function link(href, label, options) {
  if (href.startsWith("#") && options.anchor) return h("a", {href: options.anchor(href.slice(1))}, label);
  if (!/^(https?:\/\/|mailto:)/i.test(href)) return label;
  return h("a", {href, target: "_blank", rel: "noopener noreferrer nofollow"}, label);
}

/** @param {string} text @param {Options} options @param {boolean} isCode @returns {Child} */
function renderText(text, options, isCode) {
  return options.write ? options.write(text, isCode) : text;
}

/** @param {any} block @param {string} what */
function omissionNote(block, what) {
  return block.omitted > 0 && h("span", {class: "left-out"}, ` ${plural(block.omitted, `more ${what}`)} left out`);
}

const resizeObserver = new ResizeObserver((entries) => {
  for (const {target} of entries) {
    if (target.scrollWidth > target.clientWidth) target.setAttribute("tabindex", "0");
    else target.removeAttribute("tabindex");
  }
});

/** @param {Element} element focusable when it overflows, so that the keyboard can scroll it @param {string} label */
function makeScrollable(element, label) {
  element.setAttribute("role", "group");
  element.setAttribute("aria-label", label);
  resizeObserver.observe(element);
  return element;
}
