// @ts-check
/** The reader: a document's text from a section, a page or a passage on, with its outline and what is known of it. */

import {action, isAbort} from "../api.js";
import {drawBlocks} from "../blocks.js";
import {h, replace} from "../dom.js";
import {path} from "../router.js";
import {button, copyButton, emptyState, errorBox, pageHeader, spinner} from "../widgets.js";
import {marker} from "../words.js";
import {aboutDocument} from "./reader/about.js";
import {Beside} from "./reader/beside.js";
import {findInDocument} from "./reader/find.js";
import {Outline, watchSections} from "./reader/outline.js";

export const title = "Reader";

/** @typedef {"before" | "after"} Side */

const FIRST_CHUNKS = 2;
const MORE_CHUNKS = 3;
const MOST_CHUNKS = 10;

/** @param {any} context */
export async function view(context) {
  const {id} = context.params;
  if (!id) return nothingChosen();
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

function nothingChosen() {
  const actions = [
    h("a", {class: "button button-primary", href: path("search")}, "Search"),
    h("a", {class: "button", href: path("documents")}, "See the documents"),
  ];
  return h(
    "div",
    pageHeader("Reader"),
    emptyState({title: "No document is open", text: "Open one from a search or from the documents.", actions}),
  );
}

class Reader {
  /** @param {any} context @param {any} about the answer of `document` */
  constructor(context, about) {
    this.context = context;
    this.about = about;
    this.id = about.info.id;
    /** @type {Record<string, any>} */
    this.place = placeOf(context.params);
    this.text = h("div", {class: "text reader-text"});
    /** @type {number[]} */
    this.levels = [];
    this.extended = false;
    this.before = h("div", {class: "reader-more"});
    this.after = h("div", {class: "reader-more"});
    this.steps = h("nav", {class: "reader-steps", "aria-label": "Sections before and after"});
    this.outline = new Outline(about, this.id, (section) => this.go({section}));
    this.beside = new Beside(about.info, context.signal);
    this.name = about.info.title || this.id;
    document.title = `${this.name} · Refdesk`;
    this.element = h(
      "div",
      {class: "reader"},
      pageHeader(h("bdi", this.name), h("bdi", {class: "mono"}, this.id), this.cite()),
      h(
        "div",
        {class: "reader-columns"},
        h("article", {"aria-label": "Text"}, this.before, this.text, this.after, this.steps),
        h(
          "aside",
          {class: "reader-side", "aria-label": "About this document"},
          findInDocument(context, this.id, (chunk, q) => this.go({chunk, q})),
          this.outline.element,
          aboutDocument(about),
        ),
      ),
    );
    this.watch = watchSections(this.element, context.signal, (section) => this.arriveAt(section));
    this.load();
  }

  cite() {
    return [
      copyButton(() => this.place.chunk ?? this.id, "Copy citation"),
      copyButton(() => location.href, "Copy link"),
    ];
  }

  /** @param {Record<string, any>} place goes to another place of the same document */
  go(place) {
    this.context.setQuery(
      {section: null, page: null, chunk: null, q: null, before: null, after: null, ...place},
      {push: true},
    );
    this.place = place;
    const drawn = place.section ? document.getElementById(`section-${place.section}`) : null;
    if (!drawn) return void this.load();
    this.arriveAt(place.section);
    this.arrive(drawn);
  }

  async load() {
    this.extended = false;
    if (!this.text.hasChildNodes()) replace(this.text, spinner("Reading"));
    try {
      const part = await this.read(requestOf(this.place));
      replace(this.text, this.draw(part, (this.levels = [])));
      this.showMore(part, part);
      this.arriveAt(part.section);
      this.arrive(this.text.querySelector(".hit"));
    } catch (error) {
      const again = () => this.load();
      if (!isAbort(error)) replace(this.text, errorBox(error, again));
    }
  }

  /** @param {object} where */
  read(where) {
    return action("read", {id: this.id, ...where}, {signal: this.context.signal});
  }

  /** @param {any} part @param {number[]} [levels] of the headings that it goes on under */
  draw(part, levels = []) {
    if (part.blocks.length === 0) return h("p", {class: "faint"}, "There is no text here.");
    const anchor = (/** @type {string} */ section) => path("read", {id: this.id, section});
    const writeHit = this.place.q ? marker(this.place.q) : undefined;
    return drawBlocks(this.withoutTitle(part), {top: 2, levels, anchor, writeHit});
  }

  /** @param {any} part whose first heading is left out where it is the title, which stands above the text already */
  withoutTitle({blocks: [first, ...rest], previous}) {
    const isTitle = !previous && first.id && first.type === "heading" && plain(first) === this.name.trim();
    if (!isTitle) return [first, ...rest];
    const heading = this.element.querySelector("h1");
    heading.id = `section-${first.id}`;
    heading.dataset.section = first.id;
    return rest;
  }

  /** @param {any} first @param {any} last the parts whose ends are those of what is shown */
  showMore(first, last) {
    const before = () => this.more("before", first.previous, last);
    const after = () => this.more("after", last.next, first);
    replace(this.before, first.previous && button("More before", before, {kind: "small", icon: "up"}));
    replace(this.after, last.next && button("More after", after, {kind: "small", icon: "down"}));
    this.beside.connect(this.text);
  }

  /**
   * A passage is read with more of its neighbours at first, and from then on as the document is.
   * @param {Side} side @param {string} cursor @param {any} other the part at the other end
   */
  async more(side, cursor, other) {
    const count = this.place.chunk && !this.extended ? countOf(this.place[side] ?? FIRST_CHUNKS) : MOST_CHUNKS;
    try {
      await (count < MOST_CHUNKS ? this.widen(side, count + MORE_CHUNKS) : this.extend(side, cursor, other));
    } catch (error) {
      if (!isAbort(error)) this.context.toast(/** @type {Error} */ (error).message, "bad");
    }
  }

  /** @param {Side} side @param {number} count */
  async widen(side, count) {
    const place = {...this.place, [side]: countOf(count)};
    const part = await this.read(requestOf(place));
    this.place = place;
    this.keepingPlace(side, () => replace(this.text, this.draw(part, (this.levels = []))));
    this.showMore(part, part);
    this.context.setQuery({[side]: String(place[side])});
  }

  /** @param {Side} side @param {string} cursor @param {any} other */
  async extend(side, cursor, other) {
    const part = await this.read({cursor});
    this.extended = true;
    if (side === "before") {
      this.keepingPlace(side, () => this.text.prepend(...[this.draw(part)].flat()));
      this.showMore(part, other);
    } else {
      this.text.append(...[this.draw(part, this.levels)].flat());
      this.showMore(other, part);
    }
  }

  /** @param {Side} side @param {() => void} change what one reads stays where it is on the screen */
  keepingPlace(side, change) {
    const fromEnd = document.documentElement.scrollHeight - window.scrollY;
    const fromTop = window.scrollY;
    change();
    window.scrollTo(0, side === "before" ? document.documentElement.scrollHeight - fromEnd : fromTop);
  }

  /** @param {Element | null} element */
  arrive(element) {
    this.watch.pause();
    if (!element) return void window.scrollTo(0, 0);
    element.scrollIntoView({block: element.classList.contains("hit") ? "center" : "start"});
    if (element instanceof HTMLElement && element.dataset.section) element.focus({preventScroll: true});
  }

  /** @param {string | null} section */
  arriveAt(section) {
    this.outline.mark(section);
    const {previous, next} = this.outline.around(section);
    const step = (/** @type {any} */ entry, /** @type {string} */ label, /** @type {string} */ side) =>
      entry &&
      h(
        "a",
        {
          class: `step-${side}`,
          href: path("read", {id: this.id, section: entry.id}),
          on: {click: (/** @type {Event} */ event) => (event.preventDefault(), this.go({section: entry.id}))},
        },
        h("span", {class: "faint"}, label),
        h("bdi", entry.title),
      );
    replace(this.steps, step(previous, "Previous section", "previous"), step(next, "Next section", "next"));
  }
}

/** @param {any} heading */
function plain(heading) {
  return heading.text
    .map((/** @type {any} */ inline) => inline.text)
    .join("")
    .trim();
}

/** @param {Record<string, string>} params */
function placeOf({section, page, chunk, q, before, after}) {
  return {section, page, chunk, q, before, after};
}

/** @param {Record<string, any>} place what `read` takes: numbers as numbers, and nothing that is not said */
function requestOf({section, page, chunk, before, after}) {
  if (chunk) return {chunk, ...(before ? {before: countOf(before)} : {}), ...(after ? {after: countOf(after)} : {})};
  if (section) return {section};
  return page ? {page: Number.parseInt(page, 10) || 1} : {};
}

/** @param {string | number} value */
function countOf(value) {
  return Math.min(MOST_CHUNKS, Math.max(0, Number.parseInt(String(value), 10) || 0));
}
