// @ts-check
/** The collections beside the documents: choose one, make one, delete one. */

import {action} from "../../api.js";
import {h, replace} from "../../dom.js";
import {number, plural, time} from "../../format.js";
import {path} from "../../router.js";
import {badge, button, dialog, errorBox, field} from "../../widgets.js";
import {EVERYTHING} from "./table.js";

/** Milliseconds in which several changes lead to one look at the list. */
const GATHER_MS = 700;

export class CollectionList {
  /** @type {any[]} */
  all = [];
  chosen = "";
  #context;
  #onLoad;
  /** @type {Error | null} */
  #failed = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #planned;

  /** @param {any} context of the view @param {() => void} onLoad called when the collections are known anew */
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
    return this.all.find((one) => one.id === this.chosen) ?? null;
  }

  /** Those that documents can be added to. */
  get open() {
    return this.all.filter((one) => !one.shared);
  }

  async load() {
    clearTimeout(this.#planned);
    this.#planned = undefined;
    try {
      this.all = (await action("collections", {}, {signal: this.#context.signal})).collections;
      this.#failed = null;
    } catch (error) {
      if (this.#context.signal.aborted) return;
      this.#failed = /** @type {Error} */ (error);
    }
    this.draw();
    this.#onLoad();
  }

  /** Look again soon: several reasons in a short time are one. */
  loadSoon() {
    this.#planned ??= setTimeout(() => this.load(), GATHER_MS);
  }

  /** @param {string} id, or "" for all */
  choose(id) {
    this.chosen = id;
    this.draw();
  }

  draw() {
    if (this.#failed)
      return void replace(
        this.list,
        h(
          "li",
          errorBox(this.#failed, () => this.load()),
        ),
      );
    const total = this.open.reduce((sum, one) => sum + one.documents, 0);
    const everything = {id: "", name: EVERYTHING, documents: total};
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
      {href: path("documents", {collection: one.id}), "aria-current": one.id === this.chosen ? "true" : null},
      h("span", {class: "collection-name"}, one.name || one.id),
      h("span", {class: "collection-count", title: plural(one.documents, "document")}, number(one.documents)),
      (one.version || one.shared) &&
        h("span", {class: "collection-more"}, one.version && `version ${one.version}`, one.shared && badge("shared")),
    );
    return h("li", link);
  }

  /** What there is to know of the chosen one, and how to be rid of it. @param {any} one */
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
        one.shared && " · comes with the desk and cannot be changed",
      ),
      mayDelete && button("Delete collection", () => this.#remove(one), {kind: "small quiet", icon: "bin"}),
    ];
  }

  /** Ask for a name and make a collection. @returns {Promise<any>} the collection, or null when nothing was made */
  create() {
    return new Promise((resolve) => {
      const name = h("input", {class: "input", required: true, maxlength: 100, name: "name", autocomplete: "off"});
      const about = h("input", {class: "input", maxlength: 300, name: "description", autocomplete: "off"});
      const version = h("input", {class: "input", maxlength: 60, name: "version", autocomplete: "off"});
      const wrong = h("div");
      const submit = async (/** @type {Event} */ event) => {
        event.preventDefault();
        try {
          opened.close(await this.#make(name.value, about.value, version.value));
        } catch (error) {
          replace(wrong, errorBox(error));
        }
      };
      const id = "new-collection";
      const form = h(
        "form",
        {id, on: {submit}},
        field("Name", name),
        field("Description", about, "For agents: what is in it, and what to look for there. May be left out."),
        field("Version", version, "Of what is documented, such as 17 or 2026-11. May be left out."),
        wrong,
      );
      const make = h("button", {class: "button button-primary", type: "submit", form: id}, "Create collection");
      const opened = dialog({
        title: "New collection",
        body: form,
        actions: [button("Cancel", () => opened.close()), make],
        onClose: (made) => resolve(made ?? null),
      });
      name.focus();
    });
  }

  /** @param {string} name @param {string} description @param {string} version */
  async #make(name, description, version) {
    const params = {
      name: name.trim(),
      description: description.trim() || undefined,
      version: version.trim() || undefined,
    };
    const {collection} = await action("create_collection", params);
    this.#context.toast(`The collection ${collection.name} is there.`, "good");
    await this.load();
    this.#context.navigate(path("documents", {collection: collection.id}));
    return collection;
  }

  /** @param {any} one */
  async #remove(one) {
    if (!(await confirmByName(one))) return;
    try {
      await action("delete_collection", {id: one.id});
      this.#context.toast(`The collection ${one.name} is deleted.`, "good");
      this.#context.navigate(path("documents"));
    } catch (error) {
      this.#context.toast(/** @type {Error} */ (error).message, "bad");
      await this.load();
    }
  }
}

/** Ask for the name to be typed: so much is not deleted by a slip. @param {any} one @returns {Promise<boolean>} */
function confirmByName(one) {
  return new Promise((resolve) => {
    const typed = h("input", {class: "input", autocomplete: "off", spellcheck: "false"});
    const sure = button("Delete collection", () => opened.close(true), {kind: "danger", disabled: one.documents > 0});
    typed.addEventListener("input", () => (sure.disabled = typed.value.trim() !== one.name));
    const count = plural(one.documents, "document");
    const lost = `The ${count} in it will be gone for good, with all that was indexed. Agents will find nothing there.`;
    const opened = dialog({
      title: `Delete the collection “${one.name}”?`,
      body: [
        h("p", one.documents ? lost : "It is empty: nothing else is lost."),
        one.documents > 0 && field(["To confirm, type ", h("strong", one.name)], typed),
      ],
      actions: [button("Cancel", () => opened.close()), sure],
      onClose: (value) => resolve(value === true),
    });
  });
}
