// @ts-check
/** Panel for adding documents: files and folders, a web page, or text. */

import {tool} from "../../api.js";
import {h, replace} from "../../dom.js";
import {bytes, plural} from "../../format.js";
import {announce, button, errorBox, field, icon, select, tabs} from "../../widgets.js";
import {readChosenFiles, readDroppedFiles} from "./names.js";
import {FIRST_COLLECTION, ensureFirstCollection, uploads} from "./queue.js";

const NEW_COLLECTION = "\0new";

export class AddPanel {
  #context;
  #collections;

  /** @param {any} context of the view @param {import("./collections.js").CollectionList} collections */
  constructor(context, collections) {
    this.#context = context;
    this.#collections = collections;
    this.target = select([], "", {on: {change: () => this.#handleTargetChange()}});
    const panels = /** @type {[string, string, Element][]} */ ([
      ["files", "Files", this.#filesPanel()],
      ["url", "Web page", this.#urlPanel()],
      ["text", "Text", this.#textPanel()],
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
      tabs("What to add", panels),
    );
    this.cover = h(
      "div",
      {class: "drop-cover", hidden: true, "aria-hidden": "true"},
      h("p", icon("down"), "Drop to add"),
    );
  }

  /** Update the list of target collections. */
  draw() {
    const open = this.#collections.open;
    const previous = this.#collections.selectedId || this.target.value;
    const options = open.length ? open.map((one) => [one.id, one.name || one.id]) : [["", `${FIRST_COLLECTION} (new)`]];
    const all = [...options, [NEW_COLLECTION, "New collection…"]];
    replace(
      this.target,
      all.map(([value, label]) => h("option", {value}, label)),
    );
    this.target.value = open.some((one) => one.id === previous) ? previous : all[0][0];
  }

  /** Accept files dropped anywhere on an element. @param {HTMLElement} element */
  acceptDrops(element) {
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
        this.#send(readDroppedFiles(event.dataTransfer));
      },
    };
    for (const [name, listener] of Object.entries(listeners)) {
      element.addEventListener(name, /** @type {EventListener} */ (listener), {signal: this.#context.signal});
    }
  }

  async #handleTargetChange() {
    if (this.target.value !== NEW_COLLECTION) return;
    const created = await this.#collections.create();
    this.draw();
    if (created) this.target.value = created.id;
  }

  #filesPanel() {
    const limit = this.#context.me.max_upload_bytes;
    const files = this.#fileInput({multiple: true, "aria-label": "Files to add"});
    const folder = this.#fileInput({webkitdirectory: true, "aria-label": "Folder to add"});
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
  #fileInput(attributes) {
    const change = () => {
      this.#send(Promise.resolve(readChosenFiles(input.files)));
      // Allows choosing the same file again.
      input.value = "";
    };
    const input = h("input", {type: "file", hidden: true, tabindex: "-1", on: {change}, ...attributes});
    return input;
  }

  /** @param {Promise<import("./names.js").FileSelection>} reading */
  async #send(reading) {
    try {
      const {found, hidden} = await reading;
      if (hidden) this.#context.toast(`${plural(hidden, "hidden file")} skipped.`);
      if (!found.length) return void (hidden || this.#context.toast("No files found."));
      uploads.add(found, await this.#chooseTarget(), this.#context.me.max_upload_bytes || Infinity);
      announce(`${plural(found.length, "file")} queued.`);
    } catch (error) {
      this.#context.toast(/** @type {Error} */ (error).message, "bad");
    }
  }

  /** Return the id of the target collection; empty if there is none yet. Files may be dropped while the list loads. */
  async #chooseTarget() {
    await this.#collections.loaded;
    return this.target.value === NEW_COLLECTION ? "" : this.target.value;
  }

  #urlPanel() {
    const url = h("input", {
      class: "input",
      type: "url",
      required: true,
      placeholder: "https://example.com/guide.html",
      name: "url",
    });
    const fields = [field("URL", url, "Refdesk fetches and converts this page only.")];
    return this.#createForm(fields, "Add page", () => ({url: url.value}));
  }

  #textPanel() {
    const title = h("input", {class: "input", required: true, maxlength: 300, name: "title", autocomplete: "off"});
    const text = h("textarea", {class: "input", rows: 8, required: true, name: "text"});
    const fields = [field("Title", title), field("Text", text, "Markdown or plain text.")];
    return this.#createForm(fields, "Add text", () => ({title: title.value, text: text.value}));
  }

  /** @param {Element[]} fields @param {string} label @param {() => object} args */
  #createForm(fields, label, args) {
    const errorArea = h("div");
    const add = h("button", {class: "button button-primary", type: "submit"}, label);
    const submit = async (/** @type {Event} */ event) => {
      event.preventDefault();
      add.disabled = true;
      replace(errorArea);
      try {
        const answer = await tool("r2r_ingest_document", {
          ...args(),
          collection_id: (await this.#chooseTarget()) || (await ensureFirstCollection()),
        });
        form.reset();
        this.#context.toast(`Queued: ${answer.structuredContent.file_name}.`, "good");
      } catch (error) {
        replace(errorArea, errorBox(error));
      } finally {
        add.disabled = false;
      }
    };
    const actions = h("div", {class: "form-actions"}, add);
    const form = h("form", {class: "add-form", on: {submit}}, fields, errorArea, actions);
    return form;
  }
}

/** @param {DragEvent} event */
function hasFiles(event) {
  return event.dataTransfer?.types.includes("Files") ?? false;
}
