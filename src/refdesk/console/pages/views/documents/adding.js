// @ts-check
/** Ways to add documents: files and folders, dropped or chosen; a web page; a text. */

import {tool} from "../../api.js";
import {h, replace} from "../../dom.js";
import {bytes, plural} from "../../format.js";
import {announce, button, errorBox, field, icon, select, tabs} from "../../widgets.js";
import {chosen, dropped} from "./names.js";
import {FIRST_COLLECTION, firstCollection, uploads} from "./queue.js";

const NEW = "\0new";

export class AddPanel {
  #context;
  #collections;

  /** @param {any} context of the view @param {import("./collections.js").CollectionList} collections */
  constructor(context, collections) {
    this.#context = context;
    this.#collections = collections;
    this.target = select([], "", {on: {change: () => this.#changed()}});
    const ways = /** @type {[string, string, Element][]} */ ([
      ["files", "Files", this.#files()],
      ["url", "Web page", this.#page()],
      ["text", "Text", this.#text()],
    ]);
    this.element = h(
      "section",
      {class: "add-panel", "aria-label": "Add documents"},
      h(
        "div",
        {class: "section-head"},
        h("h2", "Add documents"),
        h("div", {class: "add-target"}, field("to", this.target)),
      ),
      tabs("What to add", ways),
    );
    this.cover = h(
      "div",
      {class: "drop-cover", hidden: true, "aria-hidden": "true"},
      h("p", icon("down"), "Drop to add"),
    );
  }

  /** Offer the collections that there are. */
  draw() {
    const open = this.#collections.open;
    const kept = this.#collections.chosen || this.target.value;
    const options = open.length ? open.map((one) => [one.id, one.name || one.id]) : [["", `${FIRST_COLLECTION} (new)`]];
    const all = [...options, [NEW, "New collection…"]];
    replace(
      this.target,
      all.map(([value, label]) => h("option", {value}, label)),
    );
    this.target.value = open.some((one) => one.id === kept) ? kept : all[0][0];
  }

  /** Take what is dropped anywhere on an element. @param {HTMLElement} place */
  acceptDrops(place) {
    let depth = 0;
    const show = (/** @type {boolean} */ shown) => (this.cover.hidden = !shown);
    /** @type {Record<string, (event: DragEvent) => void>} */
    const listeners = {
      dragenter: (event) => hasFiles(event) && (event.preventDefault(), (depth += 1), show(true)),
      dragover: (event) => hasFiles(event) && event.preventDefault(),
      dragleave: (event) => hasFiles(event) && ((depth -= 1), show(depth > 0)),
      drop: (event) => {
        if (!hasFiles(event) || !event.dataTransfer) return;
        event.preventDefault();
        depth = 0;
        show(false);
        this.#send(dropped(event.dataTransfer));
      },
    };
    for (const [name, listener] of Object.entries(listeners)) {
      place.addEventListener(name, /** @type {EventListener} */ (listener), {signal: this.#context.signal});
    }
  }

  async #changed() {
    if (this.target.value !== NEW) return;
    const made = await this.#collections.create();
    this.draw();
    if (made) this.target.value = made.id;
  }

  #files() {
    const limit = this.#context.me.max_upload_bytes;
    const files = this.#chooser({multiple: true, "aria-label": "Files to add"});
    const folder = this.#chooser({webkitdirectory: true, "aria-label": "Folder to add"});
    return h(
      "div",
      {class: "drop-zone"},
      icon("documents"),
      h("p", h("strong", "Drop files or folders anywhere on this page")),
      h(
        "p",
        {class: "faint"},
        "PDF, Word, PowerPoint, Excel, OpenDocument, EPUB, HTML, Markdown, reStructuredText, CSV and text",
        limit ? `, up to ${bytes(limit)} each.` : ".",
      ),
      h(
        "div",
        {class: "drop-actions"},
        button("Choose files…", () => files.click(), {kind: "primary", icon: "plus"}),
        button("Choose a folder…", () => folder.click()),
      ),
      files,
      folder,
    );
  }

  /** @param {object} attributes */
  #chooser(attributes) {
    const change = () => {
      this.#send(Promise.resolve(chosen(chooser.files)));
      // So that the same file can be chosen again.
      chooser.value = "";
    };
    const chooser = h("input", {type: "file", hidden: true, tabindex: "-1", on: {change}, ...attributes});
    return chooser;
  }

  /** @param {Promise<import("./names.js").Chosen>} reading */
  async #send(reading) {
    try {
      const {found, hidden} = await reading;
      if (hidden) this.#context.toast(`${plural(hidden, "hidden file")} left out.`);
      if (!found.length) return void (hidden || this.#context.toast("There is no file in what you dropped."));
      uploads.add(found, this.#chosen, this.#context.me.max_upload_bytes || Infinity);
      announce(`${plural(found.length, "file")} on the way.`);
    } catch (error) {
      this.#context.toast(/** @type {Error} */ (error).message, "bad");
    }
  }

  /** The id of where documents go; empty where there is no collection yet. @returns {string} */
  get #chosen() {
    return this.target.value === NEW ? "" : this.target.value;
  }

  #page() {
    const url = h("input", {
      class: "input",
      type: "url",
      required: true,
      placeholder: "https://example.com/guide.html",
      name: "url",
    });
    return this.#form([field("Address", url, "The desk fetches this one page, and converts it.")], "Add page", () => ({
      url: url.value,
    }));
  }

  #text() {
    const title = h("input", {class: "input", required: true, maxlength: 300, name: "title", autocomplete: "off"});
    const text = h("textarea", {class: "input", rows: 8, required: true, name: "text"});
    const fields = [field("Title", title), field("Text", text, "Markdown or plain text.")];
    return this.#form(fields, "Add text", () => ({title: title.value, text: text.value}));
  }

  /** @param {Element[]} fields @param {string} label @param {() => object} args */
  #form(fields, label, args) {
    const wrong = h("div");
    const add = h("button", {class: "button button-primary", type: "submit"}, label);
    const submit = async (/** @type {Event} */ event) => {
      event.preventDefault();
      add.disabled = true;
      replace(wrong);
      try {
        const answer = await tool("r2r_ingest_document", {
          ...args(),
          collection_id: this.#chosen || (await firstCollection()),
        });
        form.reset();
        this.#context.toast(`Taken on: ${answer.structuredContent.file_name}.`, "good");
      } catch (error) {
        replace(wrong, errorBox(error));
      } finally {
        add.disabled = false;
      }
    };
    const form = h("form", {class: "add-form", on: {submit}}, fields, wrong, h("div", {class: "form-actions"}, add));
    return form;
  }
}

/** @param {DragEvent} event */
function hasFiles(event) {
  return event.dataTransfer?.types.includes("Files") ?? false;
}
