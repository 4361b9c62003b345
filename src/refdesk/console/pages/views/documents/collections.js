// @ts-check
/** Collection list: select, create and delete collections. */

import {action} from "../../api.js";
import {h, replace} from "../../dom.js";
import {number, plural, time} from "../../format.js";
import {path} from "../../router.js";
import {badge, button, dialog, errorBox, field} from "../../widgets.js";
import {ALL_DOCUMENTS_LABEL} from "./table.js";

/** Several changes within this time, in milliseconds, cause a single reload. */
const DEBOUNCE_MS = 700;

export class CollectionList {
  /** @type {any[]} */
  all = [];
  selectedId = "";
  /** @type {() => void} */
  #markLoaded = () => {};
  /** Resolved after the first load, even if it failed. @type {Promise<void>} */
  loaded = new Promise((resolve) => (this.#markLoaded = resolve));
  #context;
  #onLoad;
  /** @type {Error | null} */
  #error = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  /** @param {any} context of the view @param {() => void} onLoad called after every load */
  constructor(context, onLoad) {
    this.#context = context;
    this.#onLoad = onLoad;
    this.list = h("ul", {class: "collections"});
    const create = button("New", () => this.create(), {
      kind: "small",
      icon: "plus",
      attributes: {"aria-label": "New collection"},
    });
    this.about = h("div", {class: "collection-about"});
    this.element = h(
      "nav",
      {class: "collection-list", "aria-label": "Collections"},
      h("div", {class: "section-head"}, h("h2", "Collections"), context.me.may_write && create),
      this.list,
    );
  }

  get current() {
    return this.all.find((one) => one.id === this.selectedId) ?? null;
  }

  /** Collections that accept documents. */
  get open() {
    return this.all.filter((one) => !one.shared);
  }

  async load() {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    try {
      this.all = (await action("collections", {}, {signal: this.#context.signal})).collections;
      this.#error = null;
    } catch (error) {
      if (this.#context.signal.aborted) return;
      this.#error = /** @type {Error} */ (error);
    }
    this.draw();
    this.#onLoad();
    this.#markLoaded();
  }

  /** Reload, debounced. */
  loadSoon() {
    this.#timer ??= setTimeout(() => this.load(), DEBOUNCE_MS);
  }

  /** @param {string} id, or "" for all */
  select(id) {
    this.selectedId = id;
    this.draw();
  }

  draw() {
    if (this.#error)
      return void replace(
        this.list,
        h(
          "li",
          errorBox(this.#error, () => this.load()),
        ),
      );
    const total = this.open.reduce((sum, one) => sum + one.documents, 0);
    const everything = {id: "", name: ALL_DOCUMENTS_LABEL, documents: total};
    replace(
      this.list,
      [everything, ...this.all].map((one) => this.#entry(one)),
    );
    replace(this.about, this.current && this.#about(this.current));
  }

  /** @param {any} one */
  #entry(one) {
    const link = h(
      "a",
      {href: path("documents", {collection: one.id}), "aria-current": one.id === this.selectedId ? "true" : null},
      h("span", {class: "collection-name"}, one.name || one.id),
      h("span", {class: "collection-count", title: plural(one.documents, "document")}, number(one.documents)),
      (one.version || one.shared) &&
        h("span", {class: "collection-more"}, one.version && `version ${one.version}`, one.shared && badge("shared")),
    );
    return h("li", link);
  }

  /** Properties of the selected collection, and its delete button. @param {any} one */
  #about(one) {
    const mayDelete = this.#context.me.may_write && !one.shared;
    return [
      one.description && h("p", one.description),
      h(
        "p",
        {class: "faint"},
        h("code", one.id),
        ` · ${plural(one.documents, "document")}`,
        one.version && ` · version ${one.version}`,
        one.updated_at && [" · updated ", time(one.updated_at)],
        one.shared && " · built in, read-only",
      ),
      mayDelete && button("Delete collection", () => this.#remove(one), {kind: "small quiet", icon: "bin"}),
    ];
  }

  /** Open a dialog and create a collection. @returns {Promise<any>} the collection, or null if cancelled */
  create() {
    return new Promise((resolve) => {
      const name = h("input", {class: "input", required: true, maxlength: 100, name: "name", autocomplete: "off"});
      const about = h("input", {class: "input", maxlength: 300, name: "description", autocomplete: "off"});
      const version = h("input", {class: "input", maxlength: 60, name: "version", autocomplete: "off"});
      const errorArea = h("div");
      const submit = async (/** @type {Event} */ event) => {
        event.preventDefault();
        try {
          handle.close(await this.#createCollection(name.value, about.value, version.value));
        } catch (error) {
          replace(errorArea, errorBox(error));
        }
      };
      const id = "new-collection";
      const form = h(
        "form",
        {id, on: {submit}},
        field("Name", name),
        field("Description", about, "Optional. Tells agents what the collection contains."),
        field("Version", version, "Optional. Version of the documented product, such as 17 or 2026-11."),
        errorArea,
      );
      const make = h("button", {class: "button button-primary", type: "submit", form: id}, "Create collection");
      const handle = dialog({
        title: "New collection",
        body: form,
        actions: [button("Cancel", () => handle.close()), make],
        onClose: (created) => resolve(created ?? null),
      });
      name.focus();
    });
  }

  /** @param {string} name @param {string} description @param {string} version */
  async #createCollection(name, description, version) {
    const params = {
      name: name.trim(),
      description: description.trim() || undefined,
      version: version.trim() || undefined,
    };
    const {collection} = await action("create_collection", params);
    this.#context.toast(`Collection ${collection.name} created.`, "good");
    await this.load();
    this.#context.navigate(path("documents", {collection: collection.id}));
    return collection;
  }

  /** @param {any} one */
  async #remove(one) {
    if (!(await confirmByName(one))) return;
    try {
      await action("delete_collection", {id: one.id});
      this.#context.toast(`Collection ${one.name} deleted.`, "good");
      this.#context.navigate(path("documents"));
    } catch (error) {
      this.#context.toast(/** @type {Error} */ (error).message, "bad");
      await this.load();
    }
  }
}

/** Confirm by typing the name, to prevent accidental deletion. @param {any} one @returns {Promise<boolean>} */
function confirmByName(one) {
  return new Promise((resolve) => {
    const nameInput = h("input", {class: "input", autocomplete: "off", spellcheck: "false"});
    const deleteButton = button("Delete collection", () => handle.close(true), {
      kind: "danger",
      disabled: one.documents > 0,
    });
    nameInput.addEventListener("input", () => (deleteButton.disabled = nameInput.value.trim() !== one.name));
    const count = plural(one.documents, "document");
    const loss = `This permanently deletes ${count} from the index.`;
    const handle = dialog({
      title: `Delete the collection “${one.name}”?`,
      body: [
        h("p", one.documents ? loss : "The collection is empty."),
        one.documents > 0 && field(["To confirm, type ", h("strong", one.name)], nameInput),
      ],
      actions: [button("Cancel", () => handle.close()), deleteButton],
      onClose: (value) => resolve(value === true),
    });
  });
}
