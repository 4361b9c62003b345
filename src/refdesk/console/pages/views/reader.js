// @ts-check
/** Reader view: a document's text from a section, page or passage on, with outline and properties. */

import {action, isAbort} from "../api.js";
import {drawBlocks} from "../blocks.js";
import {h, replace} from "../dom.js";
import {path} from "../router.js";
import {button, copyButton, emptyState, errorBox, pageHeader, spinner} from "../widgets.js";
import {createMarker} from "../words.js";
import {aboutDocument} from "./reader/about.js";
import {RelativeLinks} from "./reader/beside.js";
import {findInDocument} from "./reader/find.js";
import {Outline, watchSections} from "./reader/outline.js";

export const title = "Reader";

/** @typedef {"before" | "after"} Side */

const FIRST_CHUNKS = 2;
const MORE_CHUNKS = 3;
const MAX_CHUNKS = 10;

/** @param {any} context */
export async function view(context) {
  const {id} = context.params;
  if (!id) return noDocument();
  try {
    const about = await action("document", {id}, {signal: context.signal});
    return new Reader(context, about).element;
  } catch (error) {
    if (isAbort(error)) throw error;
    return h(
      "div",
      pageHeader("Reader"),
      errorBox(error, () => context.navigate(location.href, {replace: true})),
    );
  }
}

function noDocument() {
  const actions = [
    h("a", {class: "button button-primary", href: path("search")}, "Search"),
    h("a", {class: "button", href: path("documents")}, "Show documents"),
  ];
  return h(
    "div",
    pageHeader("Reader"),
    emptyState({title: "No document is open", text: "Open one from Search or Documents.", actions}),
  );
}

class Reader {
  /** @param {any} context @param {any} about response of `document` */
  constructor(context, about) {
    this.context = context;
    this.about = about;
    this.id = about.info.id;
    /** @type {Record<string, any>} */
    this.position = readPosition(context.params);
    this.text = h("div", {class: "text reader-text"});
    /** @type {number[]} */
    this.levels = [];
    this.extended = false;
    this.before = h("div", {class: "reader-more"});
    this.after = h("div", {class: "reader-more"});
    this.steps = h("nav", {class: "reader-steps", "aria-label": "Sections before and after"});
    this.outline = new Outline(about, this.id, (section) => this.goTo({section}));
    this.relativeLinks = new RelativeLinks(about.info, context.signal);
    this.name = about.info.title || this.id;
    document.title = `${this.name} · Refdesk`;
    this.element = h(
      "div",
      {class: "reader"},
      pageHeader(h("bdi", this.name), h("bdi", {class: "mono"}, this.id), this.citationButtons()),
      h(
        "div",
        {class: "reader-columns"},
        h("article", {"aria-label": "Text"}, this.before, this.text, this.after, this.steps),
        h(
          "aside",
          {class: "reader-side", "aria-label": "About this document"},
          findInDocument(context, this.id, (chunk, q) => this.goTo({chunk, q})),
          this.outline.element,
          aboutDocument(about),
        ),
      ),
    );
    this.sectionWatcher = watchSections(this.element, context.signal, (section) => this.setCurrentSection(section));
    this.load();
  }

  citationButtons() {
    return [
      copyButton(() => this.position.chunk ?? this.id, "Copy citation"),
      copyButton(() => location.href, "Copy link"),
    ];
  }

  /** @param {Record<string, any>} position another position in the same document */
  goTo(position) {
    this.context.setQuery(
      {section: null, page: null, chunk: null, q: null, before: null, after: null, ...position},
      {push: true},
    );
    this.position = position;
    const heading = position.section ? document.getElementById(`section-${position.section}`) : null;
    if (!heading) return void this.load();
    this.setCurrentSection(position.section);
    this.scrollTo(heading);
  }

  async load() {
    this.extended = false;
    if (!this.text.hasChildNodes()) replace(this.text, spinner("Reading"));
    try {
      const part = await this.read(toReadParams(this.position));
      replace(this.text, this.draw(part, (this.levels = [])));
      this.showMore(part, part);
      this.setCurrentSection(part.section);
      this.scrollTo(this.text.querySelector(".hit"));
    } catch (error) {
      const again = () => this.load();
      if (!isAbort(error)) replace(this.text, errorBox(error, again));
    }
  }

  /** @param {object} params */
  read(params) {
    return action("read", {id: this.id, ...params}, {signal: this.context.signal});
  }

  /** @param {any} part @param {number[]} [levels] levels of the headings that it continues */
  draw(part, levels = []) {
    if (part.blocks.length === 0) return h("p", {class: "faint"}, "No text.");
    const anchor = (/** @type {string} */ section) => path("read", {id: this.id, section});
    const writeHit = this.position.q ? createMarker(this.position.q) : undefined;
    return drawBlocks(this.withoutTitle(part), {top: 2, levels, anchor, writeHit});
  }

  /** @param {any} part its first heading is dropped if it repeats the page title */
  withoutTitle({blocks: [first, ...rest], previous}) {
    const isTitle = !previous && first.id && first.type === "heading" && headingText(first) === this.name.trim();
    if (!isTitle) return [first, ...rest];
    const heading = this.element.querySelector("h1");
    heading.id = `section-${first.id}`;
    heading.dataset.section = first.id;
    return rest;
  }

  /** @param {any} first @param {any} last the first and last part shown */
  showMore(first, last) {
    const before = () => this.loadMore("before", first.previous, last);
    const after = () => this.loadMore("after", last.next, first);
    replace(this.before, first.previous && button("More before", before, {kind: "small", icon: "up"}));
    replace(this.after, last.next && button("More after", after, {kind: "small", icon: "down"}));
    this.relativeLinks.connect(this.text);
  }

  /**
   * Load more text: for a passage, more neighbouring chunks first, then parts of the document.
   * @param {Side} side @param {string} cursor @param {any} other the part at the other end
   */
  async loadMore(side, cursor, other) {
    const count = this.position.chunk && !this.extended ? parseCount(this.position[side] ?? FIRST_CHUNKS) : MAX_CHUNKS;
    try {
      await (count < MAX_CHUNKS ? this.widen(side, count + MORE_CHUNKS) : this.extend(side, cursor, other));
    } catch (error) {
      if (!isAbort(error)) this.context.toast(/** @type {Error} */ (error).message, "bad");
    }
  }

  /** @param {Side} side @param {number} count */
  async widen(side, count) {
    const position = {...this.position, [side]: parseCount(count)};
    const part = await this.read(toReadParams(position));
    this.position = position;
    this.preserveScroll(side, () => replace(this.text, this.draw(part, (this.levels = []))));
    this.showMore(part, part);
    this.context.setQuery({[side]: String(position[side])});
  }

  /** @param {Side} side @param {string} cursor @param {any} other */
  async extend(side, cursor, other) {
    const part = await this.read({cursor});
    this.extended = true;
    if (side === "before") {
      this.preserveScroll(side, () => this.text.prepend(...[this.draw(part)].flat()));
      this.showMore(part, other);
    } else {
      this.text.append(...[this.draw(part, this.levels)].flat());
      this.showMore(other, part);
    }
  }

  /** @param {Side} side @param {() => void} change the text being read stays in place */
  preserveScroll(side, change) {
    const fromEnd = document.documentElement.scrollHeight - window.scrollY;
    const fromTop = window.scrollY;
    change();
    window.scrollTo(0, side === "before" ? document.documentElement.scrollHeight - fromEnd : fromTop);
  }

  /** @param {Element | null} element */
  scrollTo(element) {
    this.sectionWatcher.pause();
    if (!element) return void window.scrollTo(0, 0);
    element.scrollIntoView({block: element.classList.contains("hit") ? "center" : "start"});
    if (element instanceof HTMLElement && element.dataset.section) element.focus({preventScroll: true});
  }

  /** @param {string | null} section */
  setCurrentSection(section) {
    this.outline.mark(section);
    const {previous, next} = this.outline.getNeighbours(section);
    const step = (/** @type {any} */ entry, /** @type {string} */ label, /** @type {string} */ side) =>
      entry &&
      h(
        "a",
        {
          class: `step-${side}`,
          href: path("read", {id: this.id, section: entry.id}),
          on: {click: (/** @type {Event} */ event) => (event.preventDefault(), this.goTo({section: entry.id}))},
        },
        h("span", {class: "faint"}, label),
        h("bdi", entry.title),
      );
    replace(this.steps, step(previous, "Previous section", "previous"), step(next, "Next section", "next"));
  }
}

/** @param {any} heading */
function headingText(heading) {
  return heading.text
    .map((/** @type {any} */ inline) => inline.text)
    .join("")
    .trim();
}

/** @param {Record<string, string>} params */
function readPosition({section, page, chunk, q, before, after}) {
  return {section, page, chunk, q, before, after};
}

/** @param {Record<string, any>} position as params of `read` */
function toReadParams({section, page, chunk, before, after}) {
  if (chunk)
    return {chunk, ...(before ? {before: parseCount(before)} : {}), ...(after ? {after: parseCount(after)} : {})};
  if (section) return {section};
  return page ? {page: Number.parseInt(page, 10) || 1} : {};
}

/** @param {string | number} value */
function parseCount(value) {
  return Math.min(MAX_CHUNKS, Math.max(0, Number.parseInt(String(value), 10) || 0));
}
