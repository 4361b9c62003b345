// @ts-check
/** The passages that were found, and the keys that go through them. */

import {drawBlocks} from "../../blocks.js";
import {copyButton} from "../../buttons.js";
import {h} from "../../dom.js";
import {time} from "../../format.js";
import {isCommand} from "../../keyboard.js";
import {blocks} from "../../markdown.js";
import {path} from "../../router.js";
import {emptyState, meter} from "../../widgets.js";
import {marker} from "../../words.js";

/** Between the headings that a passage stands under. */
const MARK = " › ";

/** @param {any[]} results @param {string} query */
export function resultList(results, query) {
  if (results.length === 0) return nothing();
  const write = marker(query);
  return h(
    "ol",
    {class: "results"},
    results.map((hit, at) => h("li", result(hit, at + 1, query, write))),
  );
}

function nothing() {
  const text =
    "Try other words, another collection, or fewer filters. Documents still being brought in are not found yet.";
  const link = h("a", {class: "button", href: path("documents")}, "See the documents");
  return emptyState({title: "Nothing was found", text, actions: link});
}

/** @param {any} hit @param {number} rank @param {string} query @param {(text: string) => any} write */
function result(hit, rank, query, write) {
  const {metadata} = hit;
  return h(
    "article",
    {class: "result"},
    h(
      "header",
      h("span", {class: "rank", "aria-hidden": "true"}, String(rank)),
      h(
        "h2",
        h(
          "a",
          {href: path("read", {id: hit.document_id, chunk: hit.chunk_id, q: query}), data: {result: ""}},
          headingPath(hit),
        ),
      ),
      score(hit.score),
    ),
    h("div", {class: "passage text"}, drawBlocks(blocks(hit.text), {write})),
    h(
      "footer",
      h("bdi", {class: "source"}, metadata.source ?? hit.document_id),
      metadata.page && h("span", `page ${metadata.page}`),
      metadata.version && h("span", "version ", h("bdi", metadata.version)),
      metadata.indexed_at && h("span", "indexed ", time(metadata.indexed_at)),
      copyButton(hit.chunk_id, "Copy id"),
    ),
  );
}

/** @param {any} hit */
function headingPath({metadata, document_id: id}) {
  const names = (metadata.path || [metadata.title, metadata.section].filter(Boolean).join(MARK) || id).split(MARK);
  // The first heading of a document is often its title once more.
  return names
    .filter((/** @type {string} */ name, /** @type {number} */ at) => name !== names[at - 1])
    .flatMap((/** @type {string} */ name, /** @type {number} */ at) => [
      at > 0 && h("span", {class: "path-mark"}, MARK),
      h("bdi", name),
    ]);
}

/** @param {number} value */
function score(value) {
  return h("span", {class: "score", title: "Score"}, meter(value, `score ${value}`), value.toFixed(3));
}

/**
 * j and ↓ go to the next result, k and ↑ to the one before; Esc goes back to the field. Enter opens: they are links.
 * @param {Element} page
 * @param {HTMLInputElement} field
 */
export function listenInResults(page, field) {
  page.addEventListener("keydown", (event) => step(/** @type {KeyboardEvent} */ (event), page, field));
  const outside = (/** @type {KeyboardEvent} */ event) => {
    if (!page.isConnected) return void document.removeEventListener("keydown", outside);
    if (!page.contains(/** @type {Node} */ (event.target))) step(event, page, field);
  };
  document.addEventListener("keydown", outside);
}

/** @param {KeyboardEvent} event @param {Element} page @param {HTMLInputElement} field */
function step(event, page, field) {
  const inField = event.target === field;
  if (inField ? event.key !== "ArrowDown" : !isCommand(event)) return;
  const links = /** @type {HTMLElement[]} */ ([...page.querySelectorAll("[data-result]")]);
  const at = links.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  if (event.key === "Escape" && at >= 0) field.focus();
  else if (["j", "ArrowDown"].includes(event.key) && links[at + 1]) go(links[at + 1]);
  else if (["k", "ArrowUp"].includes(event.key) && at >= 0) go(links[at - 1] ?? field);
  else return;
  event.preventDefault();
}

/** @param {HTMLElement} element */
function go(element) {
  element.focus({preventScroll: true});
  element.closest(".result")?.scrollIntoView({block: "nearest"});
}
