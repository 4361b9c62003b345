// @ts-check
/**
 * Files on their way to the desk: each is sent, and then taken on by the tool that an agent would call.
 *
 * Nothing is lost on the way. One that fails says why and can be tried again while the others go on; one whose name is
 * taken waits for an answer; and while the desk does not answer, all of them wait. The queue outlives the view, so that
 * somebody may search while files are sent.
 */

import {ApiError, action, events, reachable, tool, upload} from "../../api.js";
import {documentIds} from "../../collections.js";
import {bytes} from "../../format.js";
import {numbered} from "./names.js";

/** Where documents go on a desk that has no collection yet. */
export const FIRST_COLLECTION = "documents";

/** Files under way at a time: as many as the desk converts by default. */
const AT_ONCE = 2;

/** Before the desk is tried again. */
const AWAY_MS = 2000;

/** How often a file that breaks off is sent again by itself, when the desk is there. */
const TRIES = 3;

/** Seconds before a desk that is too busy is asked again, where it does not say. */
const BUSY_SECONDS = 2;

/**
 * waiting → sending → taking → (the document's own status) → in; or failed, or taken: the name is.
 * @typedef {"waiting" | "sending" | "clash" | "taking" | "working" | "in" | "failed"} Stage
 */

/**
 * @typedef {object} Item
 * @property {number} id
 * @property {File} file
 * @property {string} name
 * @property {string} collection
 * @property {Stage} stage
 * @property {number} share of it that has been sent
 * @property {string} reason why it failed or waits
 * @property {string} uri of the upload, once it is there
 * @property {boolean} replaces whether it may take the place of a document of its name
 * @property {string} replaced `updated_at` of the version that it replaces: an event may still tell of that one
 * @property {number} tries
 * @property {string} documentId
 * @property {any} document its state on the desk, as the `documents` action gives it
 */

export class UploadQueue {
  /** @type {Item[]} */
  items = [];
  /** Whether the desk does not answer, and all wait. */
  away = false;
  /** @type {Set<() => void>} */
  #listeners = new Set();
  /** @type {(() => void) | null} */
  #follows = null;
  /** @type {Map<string, Promise<Set<string>>>} the documents of a collection that a file could replace */
  #known = new Map();
  #running = 0;
  #made = 0;
  #limit = Infinity;
  #owner = "";

  /** @param {() => void} listener called after every change @returns {() => void} */
  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /**
   * @param {import("./names.js").Named[]} files
   * @param {string} collection empty for the first of a desk, which is made when it is needed
   * @param {number} limit the most bytes that the desk takes
   */
  add(files, collection, limit) {
    this.#limit = limit;
    this.#known.delete(collection);
    for (const {file, name} of files) {
      this.items.push({
        id: ++this.#made,
        file,
        name,
        collection,
        stage: "waiting",
        share: 0,
        reason: "",
        uri: "",
        replaces: false,
        replaced: "",
        tries: 0,
        documentId: "",
        document: null,
      });
    }
    this.#follow();
    this.#go();
  }

  /** Files of somebody else go when another signs in: they are not sent under that name. @param {string} owner */
  ownedBy(owner) {
    if (this.#owner && this.#owner !== owner) this.items = [];
    this.#owner = owner;
  }

  /** Send it again, or only have it taken on again when it is there already. @param {Item} item */
  retry(item) {
    Object.assign(item, {stage: "waiting", reason: "", tries: 0});
    this.#known.delete(item.collection);
    this.#follow();
    this.#go();
  }

  /** @param {Item} item whose name is taken */
  replace(item) {
    item.replaces = true;
    this.retry(item);
  }

  /** @param {Item} item whose name is taken */
  keepBoth(item) {
    item.name = numbered(item.name);
    this.retry(item);
  }

  /** @param {Item} item */
  forget(item) {
    this.items = this.items.filter((other) => other !== item);
    this.#tell();
  }

  /** Take what is done off the list. */
  clearDone() {
    this.items = this.items.filter((item) => item.stage !== "in");
    this.#tell();
  }

  /** How many are in each stage. @returns {Record<Stage, number>} */
  counts() {
    const counts = {waiting: 0, sending: 0, clash: 0, taking: 0, working: 0, in: 0, failed: 0};
    for (const item of this.items) counts[item.stage] += 1;
    return counts;
  }

  /** Whether a file would be lost if the page were closed now. */
  get isSending() {
    return this.items.some((item) => ["waiting", "sending", "clash", "taking"].includes(item.stage));
  }

  #tell() {
    for (const listener of this.#listeners) listener();
  }

  /** Start what can be started. */
  #go() {
    while (!this.away && this.#running < AT_ONCE) {
      const next = this.items.find((item) => item.stage === "waiting");
      if (!next) break;
      this.#running += 1;
      next.stage = "sending";
      this.#bring(next).finally(() => {
        this.#running -= 1;
        this.#go();
      });
    }
    this.#tell();
  }

  /** @param {Item} item */
  async #bring(item) {
    try {
      item.collection ||= await firstCollection();
      await this.#send(item);
      const isKnown = await this.#isKnown(item);
      // From here to "taking" nothing waits, so that of two files with one name only the first gets through.
      if (!item.replaces && (isKnown || this.#hasTwin(item))) {
        this.#set(item, "clash", `${item.name} is already in this collection.`);
        return;
      }
      this.#set(item, "taking");
      if (isKnown) item.replaced = await lastChange(item);
      await this.#accepted(item, await this.#ingest(item));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      await this.#broke(item, error);
    }
  }

  /** @param {Item} item */
  async #send(item) {
    if (item.uri) return;
    if (item.file.size > this.#limit) {
      throw new ApiError(413, {message: tooLarge(item.file.size, this.#limit)});
    }
    item.share = 0;
    const answer = await upload(item.file, (share) => {
      item.share = share;
      this.#tell();
    });
    item.uri = answer.uri;
  }

  /** Whether another file of the queue has its name. @param {Item} item */
  #hasTwin(item) {
    const others = this.items.filter((other) => other !== item && ["taking", "working", "in"].includes(other.stage));
    return others.some((other) => documentId(other) === documentId(item));
  }

  /** Whether there is a document of its name. @param {Item} item */
  async #isKnown(item) {
    if (!this.#known.has(item.collection)) this.#known.set(item.collection, documentIds(item.collection));
    try {
      return Boolean((await this.#known.get(item.collection))?.has(documentId(item)));
    } catch (error) {
      this.#known.delete(item.collection);
      throw error;
    }
  }

  /** @param {Item} item */
  async #ingest(item) {
    const args = {file_path: renamed(item.uri, item.name), collection_id: item.collection};
    try {
      return (await tool("r2r_ingest_document", args)).structuredContent;
    } catch (error) {
      // An upload does not last for ever: the file is sent anew with the next try.
      if (error instanceof ApiError && /expired/.test(error.message)) item.uri = "";
      throw error;
    }
  }

  /** @param {Item} item @param {any} answer */
  async #accepted(item, answer) {
    item.documentId = answer.document_id;
    this.#set(item, answer.status === "success" ? "in" : "working");
    // It may have gone on before its id was known here; from now on events tell of it.
    return this.#lookAt(item);
  }

  /** @param {Item} item @param {ApiError} error */
  async #broke(item, error) {
    item.tries += 1;
    if (error.status === 0 && item.tries <= TRIES) {
      this.#set(item, "waiting");
      await this.#untilBack();
    } else if ((error.status === 429 || error.status === 503) && item.tries <= TRIES) {
      await pause(1000 * (Number(error.data.retry_after) || BUSY_SECONDS));
      this.#set(item, "waiting");
    } else {
      this.#set(item, "failed", error.status === 0 ? brokenOff(item) : error.message);
    }
  }

  /** Wait until the desk answers again. */
  async #untilBack() {
    if (this.away) return;
    this.away = true;
    this.#tell();
    while (!(await reachable())) await pause(AWAY_MS);
    this.away = false;
    this.#go();
  }

  /** @param {Item} item @param {Stage} stage @param {string} [reason] */
  #set(item, stage, reason = "") {
    Object.assign(item, {stage, reason});
    this.#tell();
  }

  /** Hear of the documents as long as any of them is under way. */
  #follow() {
    this.#follows ??= events({
      documents: (/** @type {{documents: any[]}} */ data) => this.#hear(data.documents),
      open: () => this.#catchUp(),
    });
  }

  /** @param {any[]} documents */
  #hear(documents) {
    const known = new Map(documents.map((document) => [document.id, document]));
    for (const item of this.items) {
      const document = item.stage === "working" || item.stage === "in" ? known.get(item.documentId) : null;
      if (document && document.updated_at !== item.replaced) settle(item, document);
    }
    this.#tell();
    if (this.#follows && !this.items.some((item) => item.stage === "working") && !this.isSending) {
      this.#follows();
      this.#follows = null;
    }
  }

  /** Ask for what may have been missed. */
  async #catchUp() {
    for (const item of this.items.filter((one) => one.stage === "working")) await this.#lookAt(item);
  }

  /** @param {Item} item that the desk has taken on */
  async #lookAt(item) {
    try {
      this.#hear([(await action("document", {id: item.documentId})).status]);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 404) this.#set(item, "failed", "It was deleted meanwhile.");
    }
  }
}

/** @returns {Promise<string>} the id of where documents go on a desk that has no collection yet */
export async function firstCollection() {
  return (await action("create_collection", {name: FIRST_COLLECTION})).collection.id;
}

/** The files of this tab. */
export const uploads = new UploadQueue();

addEventListener("beforeunload", (event) => {
  if (uploads.isSending) event.preventDefault();
});

/** @param {Item} item @param {any} document */
function settle(item, document) {
  item.document = document;
  item.stage = document.status === "success" ? "in" : document.status === "failed" ? "failed" : "working";
  item.reason = document.status === "failed" ? (document.error ?? "It failed.") : "";
}

/** @param {Item} item @returns {Promise<string>} `updated_at` of the document that it replaces, if it is still there */
async function lastChange(item) {
  try {
    return (await action("document", {id: documentId(item)})).status.updated_at;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return "";
    throw error;
  }
}

/** @param {Item} item */
function documentId(item) {
  return `${item.collection}/${item.name}`;
}

/** An upload's URI ends with its name, which is free. @param {string} uri @param {string} name */
function renamed(uri, name) {
  return `${uri.slice(0, uri.lastIndexOf("/"))}/${encodeURIComponent(name)}`;
}

/** @param {number} size @param {number} limit */
function tooLarge(size, limit) {
  return `It has ${bytes(size)}; the desk takes files of up to ${bytes(limit)}. Split it into smaller ones.`;
}

/** @param {Item} item */
function brokenOff(item) {
  const what = `Sending ${item.name} broke off ${item.tries} times, although the desk answers.`;
  return `${what} Has the file been moved or changed?`;
}

/** @param {number} milliseconds @returns {Promise<void>} */
function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
