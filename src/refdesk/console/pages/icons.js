// @ts-check
/** Icons in the current text colour: `icon("copy")`. They are decorative: always add a text label. */

import {svg} from "./dom.js";

/** @type {Record<string, string[]>} paths in a 20 by 20 viewBox */
const PATHS = {
  search: ["M9 15A6 6 0 1 0 9 3a6 6 0 0 0 0 12Z", "m13.5 13.5 4 4"],
  ask: ["M3 4h14v9.5H9.5L5.5 17v-3.5H3Z", "M8 7.6a2 2 0 1 1 2.7 1.9c-.5.2-.7.5-.7 1", "M10 12h0"],
  documents: ["M5 2.5h6.5L15 6v11.5H5Z", "M11.5 2.5V6H15", "M7.5 10h5M7.5 13h5"],
  servers: ["M3 3.5h14v5H3ZM3 11.5h14v5H3Z", "M6 6h0M6 14h0"],
  activity: ["M2.5 11h3.5l2.5-6 3.5 10 2.5-6h3"],
  keys: ["M7 13.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7Z", "M10.5 10h7v3M14.5 10v2.5"],
  reader: ["M10 5.5C8 4 5.5 3.8 3 4v11.5c2.5-.2 5 0 7 1.5 2-1.5 4.5-1.7 7-1.5V4c-2.5-.2-5 0-7 1.5Z", "M10 5.5V17"],
  copy: ["M7 7h10v10H7Z", "M13 7V3H3v10h4"],
  check: ["m4 10.5 4 4 8-9"],
  close: ["m5 5 10 10M15 5 5 15"],
  menu: ["M3 5.5h14M3 10h14M3 14.5h14"],
  theme: ["M10 3a7 7 0 1 0 0 14Z", "M10 3a7 7 0 0 1 0 14"],
  plus: ["M10 4v12M4 10h12"],
  bin: ["M4 6h12M8 6V3.5h4V6M5.5 6l1 11h7l1-11"],
  retry: ["M16 10a6 6 0 1 1-2-4.5M16 3v3.5h-3.5"],
  next: ["m8 4 6 6-6 6"],
  previous: ["m12 4-6 6 6 6"],
  outside: ["M8 4H4v12h12v-4M11 4h5v5M16 4l-7.5 7.5"],
  warning: ["M10 3 2.5 16.5h15Z", "M10 8.5v4M10 14.5h0"],
  out: ["M8 4H4v12h4M12 6.5 15.5 10 12 13.5M15.5 10H8"],
  up: ["M10 16V4M5 9l5-5 5 5"],
  down: ["M10 4v12M5 11l5 5 5-5"],
};

/** @param {string} name @returns {SVGElement} */
export function icon(name) {
  const paths = (PATHS[name] ?? []).map((d) => svg("path", {d}));
  return svg("svg", {class: "icon", viewBox: "0 0 20 20", "aria-hidden": "true", focusable: "false"}, paths);
}
