// @ts-check
/** Result list and its keyboard navigation. */

import {drawBlocks} from "../../blocks.js";
import {copyButton} from "../../buttons.js";
import {h} from "../../dom.js";
import {time} from "../../format.js";
import {isShortcut} from "../../keyboard.js";
import {parseBlocks} from "../../markdown.js";
import {path} from "../../router.js";
import {emptyState, meter} from "../../widgets.js";
import {createMarker} from "../../words.js";

/** Separator of a heading path. */
const SEPARATOR = " › ";

/** @param {any[]} results @param {string} query */
export function resultList(results, query) {
  if (results.length === 0) return noResults();
  const write = createMarker(query);
  return h(
    "ol",
    {class: "results"},
    results.map((hit, at) => h("li", result(hit, at + 1, query, write))),
  );
}

function noResults() {
  const text =
    "Try other words, another collection or fewer filters. Documents that are still being indexed are not found yet.";
  const link = h("a", {class: "button", href: path("documents")}, "Show documents");
  return emptyState({title: "No results", text, actions: link});
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
    h("div", {class: "passage text"}, drawBlocks(parseBlocks(hit.text), {write})),
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
  const joined = metadata.path || [metadata.title, metadata.section].filter(Boolean).join(SEPARATOR) || id;
  const names = joined.split(SEPARATOR);
  // The first heading often repeats the document's title.
  return names
    .filter((/** @type {string} */ name, /** @type {number} */ at) => name !== names[at - 1])
    .flatMap((/** @type {string} */ name, /** @type {number} */ at) => [
      at > 0 && h("span", {class: "path-mark"}, SEPARATOR),
      h("bdi", name),
    ]);
}

/** @param {number} value */
function score(value) {
  return h("span", {class: "score", title: "Score"}, meter(value, `score ${value}`), value.toFixed(3));
}

/**
 * j and ↓ focus the next result, k and ↑ the previous one; Esc returns to the field. Enter follows the link.
 * @param {Element} page
 * @param {HTMLInputElement} field
 */
export function listenForResultKeys(page, field) {
  page.addEventListener("keydown", (event) => handleKey(/** @type {KeyboardEvent} */ (event), page, field));
  const onDocumentKey = (/** @type {KeyboardEvent} */ event) => {
    if (!page.isConnected) return void document.removeEventListener("keydown", onDocumentKey);
    if (!page.contains(/** @type {Node} */ (event.target))) handleKey(event, page, field);
  };
  document.addEventListener("keydown", onDocumentKey);
}

/** @param {KeyboardEvent} event @param {Element} page @param {HTMLInputElement} field */
function handleKey(event, page, field) {
  const inField = event.target === field;
  if (inField ? event.key !== "ArrowDown" : !isShortcut(event)) return;
  const links = /** @type {HTMLElement[]} */ ([...page.querySelectorAll("[data-result]")]);
  const at = links.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  if (event.key === "Escape" && at >= 0) field.focus();
  else if (["j", "ArrowDown"].includes(event.key) && links[at + 1]) focusResult(links[at + 1]);
  else if (["k", "ArrowUp"].includes(event.key) && at >= 0) focusResult(links[at - 1] ?? field);
  else return;
  event.preventDefault();
}

/** @param {HTMLElement} element */
function focusResult(element) {
  element.focus({preventScroll: true});
  element.closest(".result")?.scrollIntoView({block: "nearest"});
}
