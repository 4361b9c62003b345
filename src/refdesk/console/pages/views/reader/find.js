// @ts-check
/** Search within the open document. */

import {isAbort, tool} from "../../api.js";
import {h, newId, replace} from "../../dom.js";
import {plural, shorten} from "../../format.js";
import {announce, button, errorBox} from "../../widgets.js";
import {marker} from "../../words.js";

const LONGEST = 160;

/** @param {any} context @param {string} id @param {(chunk: string, query: string) => void} go */
export function findInDocument(context, id, go) {
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
      show(found, answer.structuredContent.results, query, (chunk) => go(chunkId(id, chunk), query));
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

/** @param {string} id @param {string} chunk the tool names chunks within the document */
function chunkId(id, chunk) {
  return chunk.includes("#") ? chunk : `${id}#${chunk}`;
}

/** @param {Element} place @param {any[]} results @param {string} query @param {(chunk: string) => void} go */
function show(place, results, query, go) {
  announce(`${plural(results.length, "passage")} found`);
  if (results.length === 0) return void replace(place, h("p", {class: "faint"}, "Not found in this document."));
  const write = marker(query);
  const items = results.map((hit) =>
    h(
      "li",
      h(
        "button",
        {type: "button", class: "find-hit", on: {click: () => go(hit.chunk_id)}},
        h(
          "bdi",
          {class: "find-section"},
          String(hit.section ?? "")
            .split(" › ")
            .at(-1),
        ),
        h("span", write(shorten(plain(hit.text), LONGEST))),
      ),
    ),
  );
  replace(place, h("ol", {class: "find-hits"}, items));
}

/** @param {string} text one line of it, without the marks of Markdown that only clutter there */
function plain(text) {
  return text
    .replace(/```\w*|[`*#|]+/g, " ")
    .replace(/\s+/g, " ")
    .trim();
}
