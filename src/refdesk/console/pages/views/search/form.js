// @ts-check
/** The query and its settings. `searchForm(context, state, run)` calls run(state, settled) while one types. */

import {collectionSelect} from "../../collections.js";
import {h} from "../../dom.js";
import {button, field, select} from "../../widgets.js";
import {filterEditor} from "./filters.js";
import {limitOf, MODES, MOST} from "./state.js";

/** @typedef {import("./state.js").State} State */

const PAUSE_MS = 350;
const SHORTEST_TYPED = 3;

/** @param {any} context @param {State} state @param {(state: State, settled: boolean) => void} run */
export function searchForm(context, state, run) {
  const typed = later(() => input.value.trim().length >= SHORTEST_TYPED && run(read(), false));
  const changed = () => (typed.cancel(), filters.valid() && run(read(), true));
  const input = queryField(state.query, typed.soon);
  const collection = collectionSelect(context, state.collection, changed);
  const mode = select(MODES, state.mode, {on: {change: changed}});
  const limit = h("input", {
    class: "input",
    type: "number",
    min: "1",
    max: String(MOST),
    value: String(state.limit),
    on: {change: changed},
  });
  const filters = filterEditor(state.filters, changed);
  const read = () => ({
    query: input.value,
    collection: collection.value,
    mode: /** @type {State["mode"]} */ (mode.value),
    limit: limitOf(limit.value),
    filters: filters.value(),
  });
  context.signal.addEventListener("abort", typed.cancel);
  const element = h(
    "form",
    {
      class: "search-form",
      role: "search",
      on: {submit: (/** @type {Event} */ event) => (event.preventDefault(), changed())},
    },
    h(
      "div",
      {class: "search-line"},
      input,
      button("Search", () => {}, {kind: "primary", type: "submit"}),
    ),
    h(
      "div",
      {class: "search-settings"},
      field("Collection", collection),
      field("Match", mode),
      field("Results", limit),
    ),
    filters.element,
  );
  const ask = (/** @type {string} */ question) => ((input.value = question), input.focus(), changed());
  return {element, field: input, ask};
}

/** @param {string} value @param {() => void} onInput */
function queryField(value, onInput) {
  return h("input", {
    class: "input search-field",
    type: "search",
    value,
    placeholder: "Search the documents",
    "aria-label": "Query",
    "aria-keyshortcuts": "/",
    maxlength: "1000",
    autocomplete: "off",
    data: {searchField: "", firstFocus: ""},
    on: {input: onInput},
  });
}

/** @param {() => void} act once nothing has happened for a moment */
function later(act) {
  let timer = 0;
  const cancel = () => clearTimeout(timer);
  return {cancel, soon: () => (cancel(), (timer = setTimeout(act, PAUSE_MS)))};
}
