// @ts-check
/** Turns relative links in a document into links to other documents of its collection. */

import {ApiError, isAbort} from "../../api.js";
import {loadDocumentIds} from "../../collections.js";
import {h} from "../../dom.js";
import {path} from "../../router.js";

/** Documents considered as link targets: in a larger collection, the most recently changed. */
const MAX_DOCUMENTS = 2000;

export class RelativeLinks {
  /** @type {Promise<Set<string>> | null} */
  #ids = null;
  #info;
  #signal;

  /** @param {{id: string, collection: string}} info of the open document @param {AbortSignal} signal */
  constructor(info, signal) {
    this.#info = info;
    this.#signal = signal;
  }

  /** @param {Element} text its relative links; those that match no document stay text */
  async connect(text) {
    const spans = /** @type {HTMLElement[]} */ ([...text.querySelectorAll("[data-beside]")]);
    if (spans.length === 0) return;
    const ids = await (this.#ids ??= this.#load());
    for (const span of spans) {
      const target = resolveLink(this.#info.id, span.dataset.beside ?? "");
      if (target && ids.has(target.id)) span.replaceWith(h("a", {href: path("read", target)}, [...span.childNodes]));
    }
  }

  async #load() {
    try {
      return await loadDocumentIds(this.#info.collection, {signal: this.#signal, limit: MAX_DOCUMENTS});
    } catch (error) {
      // Links are optional: callers who may not list documents read without them.
      if (!isAbort(error) && !(error instanceof ApiError)) throw error;
      return new Set();
    }
  }
}

/**
 * @param {string} id of the document containing the link, such as guide/how-to/install.md
 * @param {string} link such as ../index.md#first-steps
 * @returns {{id: string, section: string} | null} target, or null if it can't be resolved
 */
export function resolveLink(id, link) {
  const base = `http://desk/${id.split("/").map(encodeURIComponent).join("/")}`;
  try {
    const {pathname, hash} = new URL(link, base);
    return {id: decodeURIComponent(pathname.slice(1)), section: decodeURIComponent(hash.slice(1))};
  } catch {
    // A literal % may not be a valid escape.
    return null;
  }
}
