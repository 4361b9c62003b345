// @ts-check
/** Search within the open document. */

import {isAbort, tool} from "../../api.js";
import {h, newId, replace} from "../../dom.js";
import {plural, shorten} from "../../format.js";
import {announce, button, errorBox} from "../../widgets.js";
import {createMarker} from "../../words.js";

const MAX_EXCERPT_LENGTH = 160;

/** @param {any} context @param {string} id @param {(chunk: string, query: string) => void} onSelect */
export function findInDocument(context, id, onSelect) {
  const input = h("input", {
    id: newId("find"),
    class: "input",
    type: "search",
    maxlength: "1000",
    autocomplete: "off",
  });
  const found = h("div");
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const query = input.value.trim();
    if (!query) return void replace(found);
    try {
      const answer = await tool("doc_local_search", {doc_id: id, query}, {signal: context.signal});
      showHits(found, answer.structuredContent.results, query, (chunk) => onSelect(chunkId(id, chunk), query));
    } catch (error) {
      if (!isAbort(error)) replace(found, errorBox(error));
    }
  };
  const find = button("Find", () => {}, {type: "submit"});
  return h(
    "form",
    {class: "find", role: "search", "aria-label": "In this document", on: {submit}},
    h(
      "div",
      {class: "field"},
      h("label", {for: input.id}, "Find in this document"),
      h("div", {class: "find-line"}, input, find),
    ),
    found,
  );
}

/** @param {string} id @param {string} chunk the tool returns ids relative to the document */
function chunkId(id, chunk) {
  return chunk.includes("#") ? chunk : `${id}#${chunk}`;
}

/** @param {Element} element @param {any[]} results @param {string} query @param {(chunk: string) => void} onSelect */
function showHits(element, results, query, onSelect) {
  announce(`${plural(results.length, "passage")} found`);
  if (results.length === 0) return void replace(element, h("p", {class: "faint"}, "Not found in this document."));
  const write = createMarker(query);
  const items = results.map((hit) =>
    h(
      "li",
      h(
        "button",
        {type: "button", class: "find-hit", on: {click: () => onSelect(hit.chunk_id)}},
        h(
          "bdi",
          {class: "find-section"},
          String(hit.section ?? "")
            .split(" › ")
            .at(-1),
        ),
        h("span", write(shorten(stripMarkdown(hit.text), MAX_EXCERPT_LENGTH))),
      ),
    ),
  );
  replace(element, h("ol", {class: "find-hits"}, items));
}

/** @param {string} text to a single line without Markdown markup */
function stripMarkdown(text) {
  return text
    .replace(/```\w*|[`*#|]+/g, " ")
    .replace(/\s+/g, " ")
    .trim();
}
