// @ts-check
/** Links from a document to others of its collection, as soon as it is known which there are. */

import {ApiError, isAbort} from "../../api.js";
import {documentIds} from "../../collections.js";
import {h} from "../../dom.js";
import {path} from "../../router.js";

/** Documents among which links are looked for: of a larger collection, those that changed last. */
const MOST = 2000;

export class Beside {
  /** @type {Promise<Set<string>> | null} */
  #ids = null;
  #info;
  #signal;

  /** @param {{id: string, collection: string}} info of the document that is read @param {AbortSignal} signal */
  constructor(info, signal) {
    this.#info = info;
    this.#signal = signal;
  }

  /** @param {Element} text make links of what names a document; the others stay text */
  async connect(text) {
    const named = /** @type {HTMLElement[]} */ ([...text.querySelectorAll("[data-beside]")]);
    if (named.length === 0) return;
    const ids = await (this.#ids ??= this.#load());
    for (const span of named) {
      const place = placeOf(this.#info.id, span.dataset.beside ?? "");
      if (place && ids.has(place.id)) span.replaceWith(h("a", {href: path("read", place)}, [...span.childNodes]));
    }
  }

  async #load() {
    try {
      return await documentIds(this.#info.collection, {signal: this.#signal, most: MOST});
    } catch (error) {
      // Links are an extra: whoever may not list documents reads on without them.
      if (!isAbort(error) && !(error instanceof ApiError)) throw error;
      return new Set();
    }
  }
}

/**
 * @param {string} id of the document that the link is in, such as guide/how-to/install.md
 * @param {string} link such as ../index.md#first-steps
 * @returns {{id: string, section: string} | null} where it leads, if that can be said at all
 */
export function placeOf(id, link) {
  const base = `http://desk/${id.split("/").map(encodeURIComponent).join("/")}`;
  try {
    const {pathname, hash} = new URL(link, base);
    return {id: decodeURIComponent(pathname.slice(1)), section: decodeURIComponent(hash.slice(1))};
  } catch {
    // A document may hold a % that is no part of an encoding.
    return null;
  }
}
