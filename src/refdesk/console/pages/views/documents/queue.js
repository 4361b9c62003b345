// @ts-check
/**
 * Upload queue: each file is uploaded, then ingested through the same tool that an agent would call.
 *
 * A failed file shows the reason and can be retried while the others continue. A file whose name is taken waits for the
 * user's decision. While the server is unreachable, all files wait. The queue outlives the view, so that the user can
 * navigate during uploads.
 */

import {ApiError, action, events, isReachable, tool, upload} from "../../api.js";
import {loadDocumentIds} from "../../collections.js";
import {bytes} from "../../format.js";
import {incrementName} from "./names.js";

/** Collection created for documents if there is none yet. */
export const FIRST_COLLECTION = "documents";

/** Concurrent files: as many as the server converts by default. */
const MAX_CONCURRENT = 2;

/** Delay before retrying an unreachable server. */
const RETRY_MS = 2000;

/** Automatic retries of an interrupted upload while the server is reachable. */
const MAX_TRIES = 3;

/** Delay before retrying an overloaded server that gives no `retry_after`. */
const BUSY_SECONDS = 2;

/**
 * waiting → sending → taking (ingest call) → working → in; or failed, or clash: the name is taken.
 * @typedef {"waiting" | "sending" | "clash" | "taking" | "working" | "in" | "failed"} Stage
 */

/**
 * @typedef {object} Item
 * @property {number} id
 * @property {File} file
 * @property {string} name
 * @property {string} collection
 * @property {Stage} stage
 * @property {number} share uploaded, from 0 to 1
 * @property {string} reason for failing or waiting
 * @property {string} uri of the finished upload
 * @property {boolean} mayReplace whether it may replace a document of the same name
 * @property {string} replacedVersion `updated_at` of the replaced version, whose events are ignored
 * @property {number} tries
 * @property {string} documentId
 * @property {any} document its status, as returned by the `documents` action
 */

export class UploadQueue {
  /** @type {Item[]} */
  items = [];
  /** Whether the server is unreachable and all files wait. */
  away = false;
  /** @type {Set<() => void>} */
  #listeners = new Set();
  /** @type {(() => void) | null} */
  #unsubscribe = null;
  /** @type {Map<string, Promise<Set<string>>>} document ids by collection, to detect clashes */
  #knownIds = new Map();
  #running = 0;
  #lastId = 0;
  #limit = Infinity;
  #owner = "";

  /** @param {() => void} listener called after every change; returns its removal @returns {() => void} */
  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /**
   * @param {import("./names.js").NamedFile[]} files
   * @param {string} collection empty to create the first collection
   * @param {number} limit largest accepted size in bytes
   */
  add(files, collection, limit) {
    this.#limit = limit;
    this.#knownIds.delete(collection);
    for (const {file, name} of files) {
      this.items.push({
        id: ++this.#lastId,
        file,
        name,
        collection,
        stage: "waiting",
        share: 0,
        reason: "",
        uri: "",
        mayReplace: false,
        replacedVersion: "",
        tries: 0,
        documentId: "",
        document: null,
      });
    }
    this.#subscribe();
    this.#startNext();
  }

  /** Discard the files when another user signs in. @param {string} owner */
  setOwner(owner) {
    if (this.#owner && this.#owner !== owner) this.items = [];
    this.#owner = owner;
  }

  /** Retry; a finished upload isn't sent again. @param {Item} item */
  retry(item) {
    Object.assign(item, {stage: "waiting", reason: "", tries: 0});
    this.#knownIds.delete(item.collection);
    this.#subscribe();
    this.#startNext();
  }

  /** @param {Item} item with a name clash */
  replace(item) {
    item.mayReplace = true;
    this.retry(item);
  }

  /** @param {Item} item with a name clash */
  keepBoth(item) {
    item.name = incrementName(item.name);
    this.retry(item);
  }

  /** @param {Item} item */
  remove(item) {
    this.items = this.items.filter((other) => other !== item);
    this.#notify();
  }

  /** Remove finished files from the list. */
  clearFinished() {
    this.items = this.items.filter((item) => item.stage !== "in");
    this.#notify();
  }

  /** Count the files by stage. @returns {Record<Stage, number>} */
  countByStage() {
    const counts = {waiting: 0, sending: 0, clash: 0, taking: 0, working: 0, in: 0, failed: 0};
    for (const item of this.items) counts[item.stage] += 1;
    return counts;
  }

  /** Whether a file would be lost if the page were closed now. */
  get isSending() {
    return this.items.some((item) => ["waiting", "sending", "clash", "taking"].includes(item.stage));
  }

  #notify() {
    for (const listener of this.#listeners) listener();
  }

  /** Start waiting files up to the concurrency limit. */
  #startNext() {
    while (!this.away && this.#running < MAX_CONCURRENT) {
      const next = this.items.find((item) => item.stage === "waiting");
      if (!next) break;
      this.#running += 1;
      next.stage = "sending";
      this.#process(next).finally(() => {
        this.#running -= 1;
        this.#startNext();
      });
    }
    this.#notify();
  }

  /** @param {Item} item */
  async #process(item) {
    try {
      item.collection ||= await ensureFirstCollection();
      await this.#send(item);
      const isKnown = await this.#isKnown(item);
      // No await from here to "taking", so that of two files with the same name only the first passes.
      if (!item.mayReplace && (isKnown || this.#hasTwin(item))) {
        this.#setStage(item, "clash", `${item.name} is already in this collection.`);
        return;
      }
      this.#setStage(item, "taking");
      if (isKnown) item.replacedVersion = await fetchUpdatedAt(item);
      await this.#trackDocument(item, await this.#ingest(item));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      await this.#handleError(item, error);
    }
  }

  /** @param {Item} item */
  async #send(item) {
    if (item.uri) return;
    if (item.file.size > this.#limit) {
      throw new ApiError(413, {message: describeTooLarge(item.file.size, this.#limit)});
    }
    item.share = 0;
    const answer = await upload(item.file, (share) => {
      item.share = share;
      this.#notify();
    });
    item.uri = answer.uri;
  }

  /** Whether another file in the queue has the same name. @param {Item} item */
  #hasTwin(item) {
    const others = this.items.filter((other) => other !== item && ["taking", "working", "in"].includes(other.stage));
    return others.some((other) => toDocumentId(other) === toDocumentId(item));
  }

  /** Whether a document of this name exists. @param {Item} item */
  async #isKnown(item) {
    if (!this.#knownIds.has(item.collection)) this.#knownIds.set(item.collection, loadDocumentIds(item.collection));
    try {
      return Boolean((await this.#knownIds.get(item.collection))?.has(toDocumentId(item)));
    } catch (error) {
      this.#knownIds.delete(item.collection);
      throw error;
    }
  }

  /** @param {Item} item */
  async #ingest(item) {
    const args = {file_path: renameUpload(item.uri, item.name), collection_id: item.collection};
    try {
      return (await tool("r2r_ingest_document", args)).structuredContent;
    } catch (error) {
      // Uploads expire: upload the file again on the next try.
      if (error instanceof ApiError && /expired/.test(error.message)) item.uri = "";
      throw error;
    }
  }

  /** @param {Item} item @param {any} answer */
  async #trackDocument(item, answer) {
    item.documentId = answer.document_id;
    this.#setStage(item, answer.status === "success" ? "in" : "working");
    // Its status may have changed before the id was known here; later changes arrive as events.
    return this.#refreshItem(item);
  }

  /** @param {Item} item @param {ApiError} error */
  async #handleError(item, error) {
    item.tries += 1;
    if (error.status === 0 && item.tries <= MAX_TRIES) {
      this.#setStage(item, "waiting");
      await this.#waitUntilReachable();
    } else if ((error.status === 429 || error.status === 503) && item.tries <= MAX_TRIES) {
      await delay(1000 * (Number(error.data.retry_after) || BUSY_SECONDS));
      this.#setStage(item, "waiting");
    } else {
      this.#setStage(item, "failed", error.status === 0 ? describeAbortedUpload(item) : error.message);
    }
  }

  /** Wait until the server responds again. */
  async #waitUntilReachable() {
    if (this.away) return;
    this.away = true;
    this.#notify();
    while (!(await isReachable())) await delay(RETRY_MS);
    this.away = false;
    this.#startNext();
  }

  /** @param {Item} item @param {Stage} stage @param {string} [reason] */
  #setStage(item, stage, reason = "") {
    Object.assign(item, {stage, reason});
    this.#notify();
  }

  /** Subscribe to document events while any file is unfinished. */
  #subscribe() {
    this.#unsubscribe ??= events({
      documents: (/** @type {{documents: any[]}} */ data) => this.#applyChanges(data.documents),
      open: () => this.#refreshWorking(),
    });
  }

  /** @param {any[]} documents */
  #applyChanges(documents) {
    const known = new Map(documents.map((document) => [document.id, document]));
    for (const item of this.items) {
      const document = item.stage === "working" || item.stage === "in" ? known.get(item.documentId) : null;
      if (document && document.updated_at !== item.replacedVersion) updateItem(item, document);
    }
    this.#notify();
    if (this.#unsubscribe && !this.items.some((item) => item.stage === "working") && !this.isSending) {
      this.#unsubscribe();
      this.#unsubscribe = null;
    }
  }

  /** Refresh unfinished files after a reconnect. */
  async #refreshWorking() {
    for (const item of this.items.filter((one) => one.stage === "working")) await this.#refreshItem(item);
  }

  /** @param {Item} item already accepted by the server */
  async #refreshItem(item) {
    try {
      this.#applyChanges([(await action("document", {id: item.documentId})).status]);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 404) this.#setStage(item, "failed", "Deleted in the meantime.");
    }
  }
}

/** @returns {Promise<string>} id of the first collection */
export async function ensureFirstCollection() {
  return (await action("create_collection", {name: FIRST_COLLECTION})).collection.id;
}

/** Upload queue of this tab. */
export const uploads = new UploadQueue();

addEventListener("beforeunload", (event) => {
  if (uploads.isSending) event.preventDefault();
});

/** @param {Item} item @param {any} document */
function updateItem(item, document) {
  item.document = document;
  item.stage = document.status === "success" ? "in" : document.status === "failed" ? "failed" : "working";
  item.reason = document.status === "failed" ? (document.error ?? "Failed.") : "";
}

/** @param {Item} item @returns {Promise<string>} `updated_at` of the document it replaces; empty if there is none */
async function fetchUpdatedAt(item) {
  try {
    return (await action("document", {id: toDocumentId(item)})).status.updated_at;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return "";
    throw error;
  }
}

/** @param {Item} item */
function toDocumentId(item) {
  return `${item.collection}/${item.name}`;
}

/** Replace the name at the end of an upload's URI, which may be any. @param {string} uri @param {string} name */
function renameUpload(uri, name) {
  return `${uri.slice(0, uri.lastIndexOf("/"))}/${encodeURIComponent(name)}`;
}

/** @param {number} size @param {number} limit */
function describeTooLarge(size, limit) {
  return `The file has ${bytes(size)}; the limit is ${bytes(limit)}. Split it into smaller files.`;
}

/** @param {Item} item */
function describeAbortedUpload(item) {
  const what = `Uploading ${item.name} failed ${item.tries} times.`;
  return `${what} Was the file moved or changed?`;
}

/** @param {number} milliseconds @returns {Promise<void>} */
function delay(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
