// @ts-check
/** Query and search settings. `searchForm(context, state, run)` calls run(state, isSubmitted) while typing. */

import {collectionSelect} from "../../collections.js";
import {h} from "../../dom.js";
import {button, field, select} from "../../widgets.js";
import {filterEditor} from "./filters.js";
import {parseLimit, MODES, MAX_LIMIT} from "./state.js";

/** @typedef {import("./state.js").State} State */

const DEBOUNCE_MS = 350;
const MIN_QUERY_LENGTH = 3;

/** @param {any} context @param {State} state @param {(state: State, settled: boolean) => void} run */
export function searchForm(context, state, run) {
  const typing = debounce(() => input.value.trim().length >= MIN_QUERY_LENGTH && run(readState(), false));
  const submit = () => (typing.cancel(), filters.isValid() && run(readState(), true));
  const input = queryField(state.query, typing.schedule);
  const collection = collectionSelect(context, state.collection, submit);
  const mode = select(MODES, state.mode, {on: {change: submit}});
  const limit = h("input", {
    class: "input",
    type: "number",
    min: "1",
    max: String(MAX_LIMIT),
    value: String(state.limit),
    on: {change: submit},
  });
  const filters = filterEditor(state.filters, submit);
  const readState = () => ({
    query: input.value,
    collection: collection.value,
    mode: /** @type {State["mode"]} */ (mode.value),
    limit: parseLimit(limit.value),
    filters: filters.value(),
  });
  context.signal.addEventListener("abort", typing.cancel);
  const element = h(
    "form",
    {
      class: "search-form",
      role: "search",
      on: {submit: (/** @type {Event} */ event) => (event.preventDefault(), submit())},
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
      field("Mode", mode),
      field("Results", limit),
    ),
    filters.element,
  );
  const ask = (/** @type {string} */ question) => ((input.value = question), input.focus(), submit());
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

/** @param {() => void} act called after a pause */
function debounce(act) {
  let timer = 0;
  const cancel = () => clearTimeout(timer);
  return {cancel, schedule: () => (cancel(), (timer = setTimeout(act, DEBOUNCE_MS)))};
}
