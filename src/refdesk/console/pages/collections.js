// @ts-check
/**
 * `collectionSelect(context, value, onChange)` is a collection picker that loads its own options;
 * `loadDocumentIds(collection)` returns the ids of a collection's documents.
 */

import {action, isAbort} from "./api.js";
import {h, replace} from "./dom.js";
import {number} from "./format.js";
import {select} from "./widgets.js";

/** Documents per request. */
const PAGE_SIZE = 500;

/** @param {any} context @param {string} value @param {() => void} onChange */
export function collectionSelect(context, value, onChange) {
  const control = select(defaultOptions(context.me), value, {on: {change: onChange}});
  if (value && control.value !== value) control.append(h("option", {value, selected: true}, value));
  loadOptions(control, context, value);
  return control;
}

/** @param {any} me @returns {[string, string][]} in a project, no collection means the project's own */
function defaultOptions(me) {
  if (!me.project) return [["", "All collections"]];
  return [
    ["", `Project ${me.project.name ?? me.project}`],
    ["all", "All collections"],
  ];
}

/** @param {HTMLSelectElement} control @param {any} context @param {string} value */
async function loadOptions(control, context, value) {
  try {
    const {collections} = await action("collections", {}, {signal: context.signal});
    const collectionOptions = collections.map((/** @type {any} */ {id, name, documents}) => [
      id,
      `${name || id} (${number(documents)})`,
    ]);
    const all = [...defaultOptions(context.me), ...collectionOptions];
    if (value && !all.some(([id]) => id === value)) all.push([value, value]);
    replace(
      control,
      all.map(([id, label]) => h("option", {value: id, selected: id === (control.value || value)}, label)),
    );
  } catch (error) {
    if (!isAbort(error))
      context.toast(`Cannot list collections: ${/** @type {Error} */ (error).message}`, "bad");
  }
}

/**
 * @param {string} collection
 * @param {{signal?: AbortSignal, limit?: number}} [options] `limit` is rounded up to whole pages
 * @returns {Promise<Set<string>>} ids of its documents, except failed ones
 */
export async function loadDocumentIds(collection, {signal, limit = Infinity} = {}) {
  const ids = new Set();
  for (let offset = 0, total = 1; offset < Math.min(total, limit); offset += PAGE_SIZE) {
    const page = await action("documents", {collection, offset, limit: PAGE_SIZE}, {signal});
    total = page.total;
    for (const document of page.documents) if (document.status !== "failed") ids.add(document.id);
  }
  return ids;
}
