// @ts-check
/**
 * Draws the structure of a document: `drawBlocks(blocks, {write, top})`.
 *
 * A block is one of {type: "heading", level, id, text: inlines} {type: "paragraph", inlines} {type: "list", ordered,
 * items: [blocks]} {type: "code", language, text} {type: "table", head, rows} {type: "quote", blocks} {type: "image",
 * alt} {type: "rule"}; `hit: true` marks what a search has found; `omitted` says how much is left out. An inline is
 * {text, strong, em, code, href, beside}; `beside` is the path of another document, as this one writes it: the text is
 * then a span with data-beside, for reader/beside.js to make a link of.
 *
 * `write(text, isCode)` turns a text into children, to mark words or citations; `writeHit` does so within hits;
 * `anchor(id)` is the address of a section of the same document. `top` is the level on the page of the highest heading,
 * so that a view keeps its one h1; no level is left out between two headings, whatever the document does. `levels`, a
 * list, carries the levels on from one part of a document to the next. Without `top`, as for a passage out of its
 * place, headings are bold lines.
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

const HEADING_DEEPEST = 6;

/** @param {any[]} blocks @param {Options} [options] @returns {Element[]} */
export function drawBlocks(blocks, options = {}) {
  if (options.top) blocks = stepwise(blocks, options.top, options.levels ?? []);
  return blocks.map((block) => drawBlock(block, options)).filter((element) => element !== null);
}

/** @param {any} block @param {Options} options @returns {Element | null} */
function drawBlock(block, options) {
  if (block.hit && options.writeHit) options = {...options, write: options.writeHit};
  const element = DRAWN[block.type]?.(block, options) ?? null;
  if (element && block.type !== "code") element.setAttribute("dir", "auto");
  if (element && block.hit) element.classList.add("hit");
  return element;
}

/** @type {Record<string, (block: any, options: Options) => Element>} */
const DRAWN = {
  heading: (block, options) => heading(block, options),
  paragraph: (block, options) => h("p", drawInlines(block.inlines, options), leftOut(block, "character")),
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
  const anchor = block.id ? {data: {section: block.id}, id: `section-${block.id}`, tabindex: "-1"} : {};
  return h(`h${block.step}`, anchor, drawInlines(block.text, options));
}

/**
 * @param {any[]} blocks
 * @param {number} top
 * @param {number[]} levels those of the headings that the next one stands under
 * @returns {any[]} the blocks, each heading with its level on the page
 */
function stepwise(blocks, top, levels) {
  return blocks.map((block) => {
    if (block.type !== "heading") return block;
    while (levels.length > 0 && levels[levels.length - 1] >= block.level) levels.pop();
    levels.push(block.level);
    return {...block, step: Math.min(levels.length + top - 1, HEADING_DEEPEST)};
  });
}

/** @param {any} block @param {Options} options */
function list(block, options) {
  const items = block.items.map((/** @type {any} */ item) => listItem(item, options));
  return h(block.ordered ? "ol" : "ul", {start: block.start ?? null}, items);
}

/** @param {any} item blocks; a lone paragraph needs no <p> around it @param {Options} options */
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
  return scrolling(
    h("pre", {class: "code"}, h("code", written(block.text, options, true), leftOut(block, "character"))),
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
  const made = h("table", caption, head.length > 0 && h("thead", h("tr", head)), h("tbody", rows));
  return scrolling(h("div", {class: "text-table"}, made, leftOut(block, "row")), block.caption || "Table");
}

/** @param {any[]} inlines @param {Options} options @returns {Child[]} */
function drawInlines(inlines, options) {
  return (inlines ?? []).map((inline) => drawInline(inline, options));
}

/** @param {any} inline @param {Options} options @returns {Child} */
function drawInline(inline, options) {
  /** @type {Child} */
  let made = written(inline.text, options, Boolean(inline.code));
  if (inline.code) made = h("code", made);
  if (inline.strong) made = h("strong", made);
  if (inline.em) made = h("em", made);
  if (inline.beside) return h("span", {data: {beside: inline.beside}}, made);
  return inline.href ? link(inline.href, made, options) : made;
}

/** @param {string} href @param {Child} label @param {Options} options a path of another site means nothing here */
function link(href, label, options) {
  if (href.startsWith("#") && options.anchor) return h("a", {href: options.anchor(href.slice(1))}, label);
  if (!/^(https?:\/\/|mailto:)/i.test(href)) return label;
  return h("a", {href, target: "_blank", rel: "noopener noreferrer nofollow"}, label);
}

/** @param {string} text @param {Options} options @param {boolean} isCode @returns {Child} */
function written(text, options, isCode) {
  return options.write ? options.write(text, isCode) : text;
}

/** @param {any} block @param {string} what */
function leftOut(block, what) {
  return block.omitted > 0 && h("span", {class: "left-out"}, ` ${plural(block.omitted, `more ${what}`)} left out`);
}

const sizes = new ResizeObserver((entries) => {
  for (const {target} of entries) {
    if (target.scrollWidth > target.clientWidth) target.setAttribute("tabindex", "0");
    else target.removeAttribute("tabindex");
  }
});

/** @param {Element} element what is wider than the page can be scrolled by keyboard too @param {string} label */
function scrolling(element, label) {
  element.setAttribute("role", "group");
  element.setAttribute("aria-label", label);
  sizes.observe(element);
  return element;
}
