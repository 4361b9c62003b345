// @ts-check
/** A choice of collection that fills itself in: `collectionSelect(context, value, onChange)`. */

import {action, isAbort} from "./api.js";
import {h, replace} from "./dom.js";
import {number} from "./format.js";
import {select} from "./widgets.js";

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
