// @ts-check
/** Document table, updated in place while documents are ingested. */

import {action} from "../../api.js";
import {h, replace} from "../../dom.js";
import {bytes, number, plural, time} from "../../format.js";
import {path} from "../../router.js";
import {announce, badge, button, emptyState, errorBox, select, spinner, table} from "../../widgets.js";
import {statusCell} from "./status.js";

/** Heading without a selected collection, which lists all documents except the built-in manual. */
export const ALL_DOCUMENTS_LABEL = "Your documents";

/** Documents per page. */
const PAGE_SIZE = 50;

/** Several changes within this time, in milliseconds, cause a single reload. */
const DEBOUNCE_MS = 700;

/** @type {[string, string][]} */
const FILTERS = [
  ["all", "Any status"],
  ["pending", "In progress"],
  ["success", "Ready"],
  ["failed", "Failed"],
];

export class DocumentTable {
  collection = "";
  #context;
  #offset = 0;
  /** @type {any[]} */
  #documents = [];
  #total = 0;
  /** @type {Set<string>} */
  #selected = new Set();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #lastRequest = 0;

  /** @param {any} context of the view @param {Element} about shown between the heading and the table */
  constructor(context, about) {
    this.#context = context;
    const filter = FILTERS.some(([name]) => name === context.params.status) ? context.params.status : "all";
    this.filter = select(FILTERS, filter, {"aria-label": "Show", on: {change: () => this.#refilter()}});
    this.bar = h("div", {class: "selection-bar", hidden: true});
    this.body = h("div", spinner());
    this.pages = h("nav", {class: "pages", "aria-label": "Pages of documents"});
    this.heading = h("h2", {tabindex: "-1"}, ALL_DOCUMENTS_LABEL);
    this.element = h(
      "section",
      {class: "document-list", "aria-label": "Documents"},
      h("div", {class: "section-head"}, this.heading, this.filter),
      about,
      this.bar,
      this.body,
      this.pages,
    );
  }

  /** @param {string} collection id, or "" for all @param {string} name */
  open(collection, name) {
    this.collection = collection;
    this.#offset = 0;
    this.#selected.clear();
    replace(this.heading, name || ALL_DOCUMENTS_LABEL);
    return this.load();
  }

  async load() {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const requestId = ++this.#lastRequest;
    try {
      const params = {
        collection: this.collection || undefined,
        status: this.filter.value,
        offset: this.#offset,
        limit: PAGE_SIZE,
      };
      const found = await action("documents", params, {signal: this.#context.signal});
      if (requestId === this.#lastRequest) this.#showPage(found);
    } catch (error) {
      if (requestId === this.#lastRequest && !this.#context.signal.aborted) {
        replace(
          this.body,
          errorBox(error, () => this.load()),
        );
      }
    }
  }

  /** Reload, debounced. */
  loadSoon() {
    this.#timer ??= setTimeout(() => this.load(), DEBOUNCE_MS);
  }

  /** @param {any[]} changed documents of an event */
  applyChanges(changed) {
    let isUnlisted = false;
    for (const document of changed) {
      const at = this.#documents.findIndex((one) => one.id === document.id);
      // A response may arrive after the event of a later change.
      if (at >= 0 && document.updated_at < this.#documents[at].updated_at) continue;
      if (at >= 0) this.#change(at, document);
      else isUnlisted ||= !this.collection || document.collection === this.collection;
    }
    if (isUnlisted || this.filter.value !== "all") this.loadSoon();
  }

  /** @param {{documents: any[], total: number}} found */
  #showPage({documents, total}) {
    if (documents.length === 0 && total > 0 && this.#offset > 0) {
      this.#offset = Math.max(0, this.#offset - PAGE_SIZE);
      this.load();
      return;
    }
    this.#documents = documents;
    this.#total = total;
    const listed = new Set(documents.map((document) => document.id));
    for (const id of this.#selected) if (!listed.has(id)) this.#selected.delete(id);
    this.#draw();
  }

  #draw() {
    const focused = findFocus(this.body);
    replace(this.body, this.#documents.length ? this.#table() : this.#emptyState());
    if (focused) restoreFocus(this.body, focused);
    this.#drawPages();
    this.#drawBar();
  }

  #table() {
    return table({
      caption: "Documents",
      columns: this.#columns(),
      rows: this.#documents,
      key: (document) => document.id,
      className: "documents-table",
    });
  }

  #columns() {
    const mayWrite = this.#context.me.may_write;
    const columns = [
      {title: "Title", className: "cell-title", cell: (/** @type {any} */ one) => this.#titleCell(one)},
      {
        title: "Status",
        className: "cell-status",
        cell: (/** @type {any} */ one) => [statusCell(one), this.#retryButton(one)],
      },
      {
        title: "Passages",
        className: "numeric",
        cell: (/** @type {any} */ one) => (one.chunks ? number(one.chunks) : "–"),
      },
      {
        title: "Size",
        className: "numeric",
        cell: (/** @type {any} */ one) => (one.size_bytes ? bytes(one.size_bytes) : "–"),
      },
      {title: "Updated", className: "cell-time", cell: (/** @type {any} */ one) => time(one.updated_at)},
      {
        title: "Actions",
        className: "cell-actions",
        hidden: true,
        cell: (/** @type {any} */ one) => this.#actionsCell(one),
      },
    ];
    const selectColumn = {
      title: "Select",
      className: "cell-select",
      hidden: true,
      cell: (/** @type {any} */ one) => this.#selectCell(one),
    };
    return mayWrite ? [selectColumn, ...columns] : columns.slice(0, -1);
  }

  /** @param {any} document */
  #titleCell(document) {
    const label = document.title || document.id;
    const isReadable = document.chunks > 0;
    return h(
      "div",
      h(
        "p",
        {class: "document-title"},
        isReadable ? h("a", {href: path("read", {id: document.id})}, h("bdi", label)) : h("bdi", label),
        document.shared && badge("shared"),
      ),
      document.title !== document.id && h("p", {class: "document-id", title: document.id}, document.id),
      document.status === "failed" && h("p", {class: "document-error"}, document.error || "Failed."),
      document.warning && h("p", {class: "document-error"}, document.warning),
    );
  }

  /** @param {any} document */
  #selectCell(document) {
    if (document.shared) return null;
    const change = (/** @type {any} */ event) => {
      if (event.currentTarget.checked) this.#selected.add(document.id);
      else this.#selected.delete(document.id);
      this.#drawBar();
    };
    const checked = this.#selected.has(document.id);
    return h("input", {
      type: "checkbox",
      checked,
      "aria-label": `Select ${document.title || document.id}`,
      on: {change},
    });
  }

  /** @param {any} document */
  #retryButton(document) {
    if (document.status !== "failed" || document.shared || !this.#context.me.may_write) return null;
    return button("Retry", () => this.#retry(document), {
      kind: "small",
      icon: "retry",
      ...labelAttributes("Retry", document),
    });
  }

  /** @param {any} document */
  #actionsCell(document) {
    if (document.shared) return null;
    return button(h("span", {class: "row-word"}, "Delete"), () => this.#remove([document.id]), {
      kind: "small quiet",
      icon: "bin",
      ...labelAttributes("Delete", document),
    });
  }

  /** @param {number} at @param {any} document */
  #change(at, document) {
    const before = this.#documents[at];
    this.#documents[at] = document;
    const row = this.body.querySelector(`tr[data-key="${CSS.escape(document.id)}"]`);
    if (!row) return;
    this.#columns().forEach(({className, cell}, index) => {
      const isUnchanged =
        className === "cell-select" || (className === "cell-actions" && before.status === document.status);
      if (!isUnchanged) replace(row.cells[index], cell(document));
    });
    if (before.status !== document.status) announceOutcome(document);
  }

  #drawPages() {
    if (this.#total <= PAGE_SIZE) return void replace(this.pages);
    const last = Math.min(this.#total, this.#offset + this.#documents.length);
    const turnPage = async (/** @type {number} */ step) => {
      this.#offset += step;
      await this.load();
      // The pressed button was replaced, and it was below the new rows.
      this.heading.focus();
    };
    replace(
      this.pages,
      button("Previous", () => turnPage(-PAGE_SIZE), {kind: "small", icon: "previous", disabled: this.#offset === 0}),
      h("span", {"aria-live": "polite"}, `${number(this.#offset + 1)}–${number(last)} of ${number(this.#total)}`),
      button("Next", () => turnPage(PAGE_SIZE), {kind: "small", icon: "next", disabled: last >= this.#total}),
    );
  }

  #drawBar() {
    const ids = [...this.#selected];
    this.bar.hidden = ids.length === 0;
    replace(
      this.bar,
      h("span", {role: "status"}, `${plural(ids.length, "document")} selected`),
      button("Delete", () => this.#remove(ids), {kind: "small danger", icon: "bin"}),
      button("Clear", () => this.#deselect(), {kind: "small quiet"}),
    );
  }

  #deselect() {
    this.#selected.clear();
    this.#draw();
  }

  #emptyState() {
    if (this.filter.value !== "all") {
      return emptyState({title: "Nothing to show", text: `No documents have this status.`});
    }
    const text = this.#context.me.may_write
      ? "Drop files or a folder anywhere on this page, or add a web page or text above."
      : "Ask someone with write access to add documents.";
    return emptyState({title: "No documents yet", text});
  }

  #refilter() {
    this.#offset = 0;
    this.#context.setQuery({status: this.filter.value === "all" ? null : this.filter.value});
    this.load();
  }

  /** @param {any} document */
  async #retry(document) {
    try {
      const answer = await action("retry", {id: document.id});
      this.applyChanges([answer.document]);
    } catch (error) {
      this.#context.toast(/** @type {Error} */ (error).message, "bad");
    }
  }

  /** @param {string[]} ids */
  async #remove(ids) {
    const only = this.#documents.find((document) => document.id === ids[0]);
    const what = ids.length === 1 ? `Delete “${only?.title || ids[0]}”?` : `Delete ${plural(ids.length, "document")}?`;
    const detail =
      ids.length === 1
        ? "It is permanently removed from the index. The original file is not deleted."
        : "They are permanently removed from the index. The original files are not deleted.";
    if (!(await this.#context.confirm(what, {detail, yes: "Delete", danger: true}))) return;
    try {
      const answer = await action("delete_documents", {ids});
      ids.forEach((id) => this.#selected.delete(id));
      this.#context.toast(`${plural(answer.deleted.length, "document")} deleted.`, "good");
    } catch (error) {
      this.#context.toast(/** @type {Error} */ (error).message, "bad");
    }
    await this.load();
  }
}

/** @param {string} verb @param {any} document */
function labelAttributes(verb, document) {
  return {attributes: {"aria-label": `${verb} ${document.title || document.id}`, title: verb}};
}

/** @param {any} document only final states are announced */
function announceOutcome(document) {
  const name = document.title || document.id;
  if (document.status === "success") announce(`${name} is ready.`);
  if (document.status === "failed") announce(`${name} failed: ${document.error}`);
}

/** @param {Element} body @returns {[string, number] | null} row key and control index of the focus */
function findFocus(body) {
  const row = body.contains(document.activeElement) ? document.activeElement?.closest("tr[data-key]") : null;
  if (!(row instanceof HTMLElement)) return null;
  const all = [...row.querySelectorAll("a, button, input")];
  return [row.dataset.key ?? "", all.indexOf(/** @type {Element} */ (document.activeElement))];
}

/** @param {Element} body @param {[string, number]} focused */
function restoreFocus(body, [key, index]) {
  const row = body.querySelector(`tr[data-key="${CSS.escape(key)}"]`);
  const found = row?.querySelectorAll("a, button, input")[index];
  if (found instanceof HTMLElement) found.focus();
}
