// @ts-check
/**
 * `collectionSelect(context, value, onChange)` is a choice of collection that fills itself in;
 * `documentIds(collection)` are the documents of one.
 */

import {action, isAbort} from "./api.js";
import {h, replace} from "./dom.js";
import {number} from "./format.js";
import {select} from "./widgets.js";

/** Documents that are asked for at once. */
const LISTED = 500;

/** @param {any} context @param {string} value @param {() => void} onChange */
export function collectionSelect(context, value, onChange) {
  const control = select(everything(context.me), value, {on: {change: onChange}});
  if (value && control.value !== value) control.append(h("option", {value, selected: true}, value));
  fill(control, context, value);
  return control;
}

/** @param {any} me @returns {[string, string][]} in a project, leaving the collection out means that project */
function everything(me) {
  if (!me.project) return [["", "All collections"]];
  return [
    ["", `Project ${me.project.name ?? me.project}`],
    ["all", "All collections"],
  ];
}

/** @param {HTMLSelectElement} control @param {any} context @param {string} value */
async function fill(control, context, value) {
  try {
    const {collections} = await action("collections", {}, {signal: context.signal});
    const listed = collections.map((/** @type {any} */ {id, name, documents}) => [
      id,
      `${name || id} (${number(documents)})`,
    ]);
    const all = [...everything(context.me), ...listed];
    if (value && !all.some(([id]) => id === value)) all.push([value, value]);
    replace(
      control,
      all.map(([id, label]) => h("option", {value: id, selected: id === (control.value || value)}, label)),
    );
  } catch (error) {
    if (!isAbort(error))
      context.toast(`The collections could not be listed: ${/** @type {Error} */ (error).message}`, "bad");
  }
}

/**
 * @param {string} collection
 * @param {{signal?: AbortSignal, most?: number}} [options] about how many are enough
 * @returns {Promise<Set<string>>} the ids of its documents, without those that failed
 */
export async function documentIds(collection, {signal, most = Infinity} = {}) {
  const ids = new Set();
  for (let offset = 0, total = 1; offset < Math.min(total, most); offset += LISTED) {
    const found = await action("documents", {collection, offset, limit: LISTED}, {signal});
    total = found.total;
    for (const document of found.documents) if (document.status !== "failed") ids.add(document.id);
  }
  return ids;
}
