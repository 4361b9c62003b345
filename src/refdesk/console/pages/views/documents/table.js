// @ts-check
/** The documents of a collection or of all: a table whose rows change in place while documents come in. */

import {action} from "../../api.js";
import {h, replace} from "../../dom.js";
import {bytes, number, plural, time} from "../../format.js";
import {path} from "../../router.js";
import {announce, badge, button, emptyState, errorBox, select, spinner, table} from "../../widgets.js";
import {statusCell} from "./status.js";

/** What is listed where no collection is chosen: all but the manual, which comes with the desk. */
export const EVERYTHING = "Your documents";

/** Documents on a page. */
const PAGE = 50;

/** Milliseconds in which several changes lead to one look at the list. */
const GATHER_MS = 700;

/** @type {[string, string][]} */
const FILTERS = [
  ["all", "Any status"],
  ["pending", "On the way"],
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
  #planned;
  #latest = 0;

  /** @param {any} context of the view @param {Element} about what stands between the heading and the table */
  constructor(context, about) {
    this.#context = context;
    const filter = FILTERS.some(([name]) => name === context.params.status) ? context.params.status : "all";
    this.filter = select(FILTERS, filter, {"aria-label": "Show", on: {change: () => this.#refilter()}});
    this.bar = h("div", {class: "selection-bar", hidden: true});
    this.body = h("div", spinner());
    this.pages = h("nav", {class: "pages", "aria-label": "Pages of documents"});
    this.heading = h("h2", {tabindex: "-1"}, EVERYTHING);
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
    replace(this.heading, name || EVERYTHING);
    return this.load();
  }

  async load() {
    clearTimeout(this.#planned);
    this.#planned = undefined;
    const asked = ++this.#latest;
    try {
      const params = {
        collection: this.collection || undefined,
        status: this.filter.value,
        offset: this.#offset,
        limit: PAGE,
      };
      const found = await action("documents", params, {signal: this.#context.signal});
      if (asked === this.#latest) this.#take(found);
    } catch (error) {
      if (asked === this.#latest && !this.#context.signal.aborted) {
        replace(
          this.body,
          errorBox(error, () => this.load()),
        );
      }
    }
  }

  /** Look again soon: several reasons in a short time are one. */
  loadSoon() {
    this.#planned ??= setTimeout(() => this.load(), GATHER_MS);
  }

  /** @param {any[]} changed documents, as an event brings them */
  hear(changed) {
    let isElsewhere = false;
    for (const document of changed) {
      const at = this.#documents.findIndex((one) => one.id === document.id);
      if (at >= 0) this.#change(at, document);
      else isElsewhere ||= !this.collection || document.collection === this.collection;
    }
    if (isElsewhere || this.filter.value !== "all") this.loadSoon();
  }

  /** @param {{documents: any[], total: number}} found */
  #take({documents, total}) {
    if (documents.length === 0 && total > 0 && this.#offset > 0) {
      this.#offset = Math.max(0, this.#offset - PAGE);
      this.load();
      return;
    }
    this.#documents = documents;
    this.#total = total;
    const there = new Set(documents.map((document) => document.id));
    for (const id of this.#selected) if (!there.has(id)) this.#selected.delete(id);
    this.#draw();
  }

  #draw() {
    const held = focusedKey(this.body);
    replace(this.body, this.#documents.length ? this.#table() : this.#nothing());
    if (held) refocus(this.body, held);
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
    const may = this.#context.me.may_write;
    const columns = [
      {title: "Title", className: "cell-title", cell: (/** @type {any} */ one) => this.#titleCell(one)},
      {
        title: "Status",
        className: "cell-status",
        cell: (/** @type {any} */ one) => [statusCell(one), this.#again(one)],
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
    const choice = {
      title: "Select",
      className: "cell-select",
      hidden: true,
      cell: (/** @type {any} */ one) => this.#choice(one),
    };
    return may ? [choice, ...columns] : columns.slice(0, -1);
  }

  /** @param {any} document */
  #titleCell(document) {
    const words = document.title || document.id;
    const isReadable = document.chunks > 0;
    return h(
      "div",
      h(
        "p",
        {class: "document-title"},
        isReadable ? h("a", {href: path("read", {id: document.id})}, h("bdi", words)) : h("bdi", words),
        document.shared && badge("shared"),
      ),
      document.title !== document.id && h("p", {class: "document-id", title: document.id}, document.id),
      document.status === "failed" && h("p", {class: "document-error"}, document.error || "It failed."),
    );
  }

  /** @param {any} document */
  #choice(document) {
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
  #again(document) {
    if (document.status !== "failed" || document.shared || !this.#context.me.may_write) return null;
    return button("Retry", () => this.#retry(document), {kind: "small", icon: "retry", ...named("Retry", document)});
  }

  /** @param {any} document */
  #actionsCell(document) {
    if (document.shared) return null;
    return button(h("span", {class: "row-word"}, "Delete"), () => this.#remove([document.id]), {
      kind: "small quiet",
      icon: "bin",
      ...named("Delete", document),
    });
  }

  /** @param {number} at @param {any} document */
  #change(at, document) {
    const before = this.#documents[at];
    this.#documents[at] = document;
    const row = this.body.querySelector(`tr[data-key="${CSS.escape(document.id)}"]`);
    if (!row) return;
    this.#columns().forEach(({className, cell}, index) => {
      const isSteady =
        className === "cell-select" || (className === "cell-actions" && before.status === document.status);
      if (!isSteady) replace(row.cells[index], cell(document));
    });
    if (before.status !== document.status) tellEnd(document);
  }

  #drawPages() {
    if (this.#total <= PAGE) return void replace(this.pages);
    const last = Math.min(this.#total, this.#offset + this.#documents.length);
    const turn = async (/** @type {number} */ step) => {
      this.#offset += step;
      await this.load();
      // The button that was pressed is gone, and it was below all that is now to be read.
      this.heading.focus();
    };
    replace(
      this.pages,
      button("Previous", () => turn(-PAGE), {kind: "small", icon: "previous", disabled: this.#offset === 0}),
      h("span", {"aria-live": "polite"}, `${number(this.#offset + 1)}–${number(last)} of ${number(this.#total)}`),
      button("Next", () => turn(PAGE), {kind: "small", icon: "next", disabled: last >= this.#total}),
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

  #nothing() {
    if (this.filter.value !== "all") {
      return emptyState({title: "Nothing to show", text: `No document of this kind is here now.`});
    }
    const text = this.#context.me.may_write
      ? "Drop files or a folder anywhere on this page, or add a web page or a text above."
      : "Somebody who may add documents has to put some here.";
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
      this.hear([answer.document]);
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
        ? "It goes from the index for good, with its text. The original, where there is one, is not touched."
        : "They go from the index for good, with their texts. The originals, where there are any, are not touched.";
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
function named(verb, document) {
  return {attributes: {"aria-label": `${verb} ${document.title || document.id}`, title: verb}};
}

/** @param {any} document only ends are told: not every step of every document */
function tellEnd(document) {
  const named = document.title || document.id;
  if (document.status === "success") announce(`${named} is ready.`);
  if (document.status === "failed") announce(`${named} failed: ${document.error}`);
}

/** @param {Element} body @returns {[string, number] | null} the row and the place within it that has the focus */
function focusedKey(body) {
  const row = body.contains(document.activeElement) ? document.activeElement?.closest("tr[data-key]") : null;
  if (!(row instanceof HTMLElement)) return null;
  const all = [...row.querySelectorAll("a, button, input")];
  return [row.dataset.key ?? "", all.indexOf(/** @type {Element} */ (document.activeElement))];
}

/** @param {Element} body @param {[string, number]} held */
function refocus(body, [key, index]) {
  const row = body.querySelector(`tr[data-key="${CSS.escape(key)}"]`);
  const found = row?.querySelectorAll("a, button, input")[index];
  if (found instanceof HTMLElement) found.focus();
}
