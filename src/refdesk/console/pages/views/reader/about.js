// @ts-check
/** Document properties. */

import {copyButton} from "../../buttons.js";
import {h} from "../../dom.js";
import {bytes, number, time} from "../../format.js";
import {path} from "../../router.js";

/** @param {any} about response of `document` */
export function aboutDocument({info, pages, page_kind: kind}) {
  const facts = [
    fact("Id", h("span", {class: "mono"}, info.id), copyButton(info.id)),
    fact("Source", source(info.source)),
    fact(
      "Collection",
      info.collection && h("a", {href: path("documents", {collection: info.collection})}, h("bdi", info.collection)),
    ),
    fact("Version", info.version),
    fact("Indexed", info.indexed_at && time(info.indexed_at)),
    fact("Kind", info.media_type),
    fact("Size", info.size_bytes > 0 && bytes(info.size_bytes)),
    fact(kind === "slide" ? "Slides" : kind === "sheet" ? "Sheets" : "Pages", pages > 0 && number(pages)),
    ...Object.entries(info.metadata ?? {}).map(([name, value]) => fact(h("bdi", name), formatValue(value))),
  ];
  return h(
    "details",
    {class: "fold about", open: matchMedia("(min-width: 64rem)").matches},
    h("summary", "About"),
    h("dl", facts),
  );
}

/** @param {any} name @param {any} value @param {any} [more] */
function fact(name, value, more) {
  return value ? h("div", h("dt", name), h("dd", h("bdi", value), more)) : null;
}

/** @param {string} value */
function source(value) {
  if (!/^https?:\/\//i.test(value ?? "")) return value;
  return h("a", {href: value, target: "_blank", rel: "noopener noreferrer nofollow"}, value);
}

/** @param {any} value */
function formatValue(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}
