// @ts-check
/** Search state: parsed from the URL, and as tool arguments. */

/**
 * @typedef {object} State
 * @property {string} query
 * @property {string} collection "" is the tool's default
 * @property {"" | "meaning" | "words"} mode "" is hybrid search
 * @property {number} limit
 * @property {Record<string, any> | null} filters
 */

export const DEFAULT_LIMIT = 10;
export const MAX_LIMIT = 100;

/** @type {[State["mode"], string][]} */
export const MODES = [
  ["", "Hybrid"],
  ["meaning", "Semantic"],
  ["words", "Full-text"],
];

/** @type {Record<string, object>} tool arguments by mode; the default needs none */
const MODE_ARGUMENTS = {
  "": {},
  meaning: {search_mode: "basic"},
  words: {search_mode: "custom", settings: {mode: "fulltext"}},
};

/** @param {URLSearchParams} address @returns {State} */
export function parseState(address) {
  const mode = /** @type {State["mode"]} */ (address.get("mode") ?? "");
  return {
    query: address.get("q") ?? "",
    collection: address.get("collection") ?? "",
    mode: mode in MODE_ARGUMENTS ? mode : "",
    limit: parseLimit(address.get("limit")),
    filters: parseFilters(address.get("filters")),
  };
}

/** @param {State} state @returns {Record<string, string | null>} */
export function toQuery(state) {
  return {
    q: state.query || null,
    collection: state.collection || null,
    mode: state.mode || null,
    limit: state.limit === DEFAULT_LIMIT ? null : String(state.limit),
    filters: state.filters ? JSON.stringify(state.filters) : null,
  };
}

/** @param {State} state @returns {Record<string, any>} */
export function toArguments(state) {
  /** @type {Record<string, any>} */
  const args = {query: state.query.trim(), ...MODE_ARGUMENTS[state.mode]};
  if (state.collection) args.collection_id = state.collection;
  if (state.limit !== DEFAULT_LIMIT) args.limit = state.limit;
  if (state.filters) args.filters = state.filters;
  return args;
}

/** @param {string | null} value */
export function parseLimit(value) {
  const limit = Math.round(Number(value ?? DEFAULT_LIMIT));
  return limit >= 1 && limit <= MAX_LIMIT ? limit : DEFAULT_LIMIT;
}

/** @param {string | null} value untrusted, as it comes from the URL */
function parseFilters(value) {
  try {
    const parsed = JSON.parse(value ?? "null");
    return parsed && typeof parsed === "object" && !Array.isArray(parsed) ? parsed : null;
  } catch {
    return null;
  }
}
