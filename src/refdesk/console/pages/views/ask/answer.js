// @ts-check
/** An answer with its citations and sources. */

import {drawBlocks} from "../../blocks.js";
import {copyButton} from "../../buttons.js";
import {h} from "../../dom.js";
import {time} from "../../format.js";
import {parseBlocks} from "../../markdown.js";
import {path} from "../../router.js";
import {createMarker} from "../../words.js";

const EXTRACTIVE = "extractive";

/** @param {any} answer structured content of the tool's result @param {string} question */
export function drawAnswer(answer, question) {
  const sources = new Map(answer.sources.map((/** @type {any} */ source) => [source.citation, source]));
  const write = (/** @type {string} */ text, /** @type {boolean} */ isCode) =>
    isCode ? text : withCitations(text, sources, question);
  const element = h(
    "section",
    {class: ["answer", !answer.found && "answer-none"], "aria-label": "Answer"},
    h("h2", answer.found ? "Answer" : "No answer found in your documents"),
    h("div", {class: "text"}, drawBlocks(parseBlocks(answer.answer), {write})),
    h("p", {class: "answer-by"}, attribution(answer), copyButton(answer.answer, "Copy the answer")),
    sources.size > 0 && sourceList(answer, question),
  );
  highlightCitedSources(element);
  return element;
}

/** @param {any} answer */
function attribution({model_used: model, cached, found}) {
  const who =
    model === EXTRACTIVE
      ? "Quoted from the documents, without a language model."
      : `Written by ${model} from the passages below.`;
  return h("span", found || model !== EXTRACTIVE ? who : "No language model was used.", cached && " From the cache.");
}

/** @param {string} text @param {Map<number, any>} sources @param {string} question */
function withCitations(text, sources, question) {
  return text.split(/(\[\d{1,3}\])/).map((part) => {
    const source = /^\[\d+\]$/.test(part) ? sources.get(Number(part.slice(1, -1))) : undefined;
    return source ? citation(source, question) : part;
  });
}

/** @param {any} source @param {string} question */
function citation(source, question) {
  const label = `Source ${source.citation}: ${source.document}`;
  return h(
    "a",
    {
      class: "citation",
      href: sourceUrl(source, question),
      "aria-label": label,
      title: source.document,
      data: {citation: source.citation},
    },
    `[${source.citation}]`,
  );
}

/** @param {any} source @param {string} question */
function sourceUrl(source, question) {
  return path("read", {id: source.document_id, chunk: source.chunk_id, q: question});
}

/** @param {any} answer @param {string} question */
function sourceList(answer, question) {
  const write = createMarker(question);
  const items = [...answer.sources]
    .sort((one, other) => one.citation - other.citation)
    .map((source) =>
      h(
        "li",
        {class: "source-item", data: {source: source.citation}},
        h("span", {class: "source-number"}, `[${source.citation}]`),
        h(
          "div",
          h("h3", h("a", {href: sourceUrl(source, question)}, h("bdi", source.document || source.document_id))),
          h("div", {class: "text source-text"}, drawBlocks(parseBlocks(source.text), {write})),
          h(
            "p",
            {class: "source-facts"},
            h("bdi", {class: "mono"}, source.document_id),
            source.version && h("span", "version ", h("bdi", source.version)),
            source.indexed_at && h("span", "indexed ", time(source.indexed_at)),
            h("span", `score ${source.score.toFixed(3)}`),
          ),
        ),
      ),
    );
  return [
    h("h2", {class: "sources-title"}, answer.found ? "Sources" : "Closest passages"),
    h("ol", {class: "sources"}, items),
  ];
}

/** @param {Element} element hovering or focusing a citation highlights its source */
function highlightCitedSources(element) {
  const toggle = (/** @type {Event} */ event, /** @type {boolean} */ on) => {
    const link = event.target instanceof Element ? event.target.closest("[data-citation]") : null;
    if (!(link instanceof HTMLElement)) return;
    element
      .querySelector(`[data-source="${CSS.escape(link.dataset.citation ?? "")}"]`)
      ?.classList.toggle("is-cited", on);
  };
  for (const event of ["mouseover", "focusin"]) element.addEventListener(event, (event) => toggle(event, true));
  for (const event of ["mouseout", "focusout"]) element.addEventListener(event, (event) => toggle(event, false));
}
