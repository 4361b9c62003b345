// @ts-check
/** The table of contents as a tree that folds, with the section that is being read marked in it. */

import {h} from "../../dom.js";
import {icon} from "../../icons.js";
import {path} from "../../router.js";

/** @typedef {{id: string, title: string, level: number, page: number}} Entry */

const OPEN_LEVELS = 2;
const SETTLING_MS = 300;

export class Outline {
  /** @param {any} about @param {string} id @param {(section: string) => void} go */
  constructor(about, id, go) {
    this.id = id;
    this.go = go;
    /** @type {Entry[]} */
    this.entries = about.outline ?? [];
    /** @type {Map<string, HTMLElement>} */
    this.links = new Map();
    const omitted = about.outline_omitted && h("p", {class: "faint"}, `${about.outline_omitted} more are not listed.`);
    this.element = h(
      "details",
      {class: "fold outline", open: matchMedia("(min-width: 64rem)").matches, hidden: this.entries.length === 0},
      h("summary", "Contents"),
      h("nav", {"aria-label": "Contents"}, this.branch(nested(this.entries), 1), omitted),
    );
  }

  /** @param {Node[]} nodes @param {number} depth @returns {HTMLElement} */
  branch(nodes, depth) {
    return h(
      "ul",
      nodes.map((node) => this.item(node, depth)),
    );
  }

  /** @param {Node} node @param {number} depth */
  item({entry, children}, depth) {
    const link = h(
      "a",
      {
        href: path("read", {id: this.id, section: entry.id}),
        on: {click: (/** @type {MouseEvent} */ event) => this.follow(event, entry.id)},
      },
      h("bdi", entry.title),
    );
    this.links.set(entry.id, link);
    if (children.length === 0) return h("li", h("div", {class: "outline-row"}, link));
    const below = this.branch(children, depth + 1);
    below.hidden = depth >= OPEN_LEVELS;
    return h("li", h("div", {class: "outline-row"}, folder(below, entry.title), link), below);
  }

  /** @param {MouseEvent} event @param {string} section */
  follow(event, section) {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    this.go(section);
  }

  /** @param {string | null} section */
  mark(section) {
    for (const [id, link] of this.links) {
      if (id === section) link.setAttribute("aria-current", "location");
      else link.removeAttribute("aria-current");
    }
    const link = this.links.get(section ?? "");
    for (let at = link?.closest("ul"); at; at = at.parentElement?.closest("ul")) unfold(at);
    if (link) bringIntoView(link);
  }

  /** @param {string | null} section */
  around(section) {
    const at = this.entries.findIndex(({id}) => id === section);
    return {previous: this.entries[at - 1], next: this.entries[at + 1]};
  }
}

/** @typedef {{entry: Entry, children: Node[]}} Node */

/** @param {Entry[]} entries @returns {Node[]} */
function nested(entries) {
  /** @type {Node[]} */
  const roots = [];
  /** @type {Node[]} */
  const open = [];
  for (const entry of entries) {
    const node = {entry, children: []};
    while (open.length > 0 && open[open.length - 1].entry.level >= entry.level) open.pop();
    (open[open.length - 1]?.children ?? roots).push(node);
    open.push(node);
  }
  return roots;
}

/** @param {HTMLElement} below @param {string} title */
function folder(below, title) {
  const turn = () => {
    below.hidden = !below.hidden;
    made.setAttribute("aria-expanded", String(!below.hidden));
  };
  const made = h(
    "button",
    {
      type: "button",
      class: "folder",
      "aria-expanded": !below.hidden,
      "aria-label": `Sections of ${title}`,
      on: {click: turn},
    },
    icon("next"),
  );
  return made;
}

/** @param {HTMLElement} list */
function unfold(list) {
  if (!list.hidden) return;
  list.hidden = false;
  list.previousElementSibling?.querySelector(".folder")?.setAttribute("aria-expanded", "true");
}

/** @param {HTMLElement} link the column beside the text scrolls by itself; the page stays where it is */
function bringIntoView(link) {
  const column = link.closest(".reader-side");
  if (!column) return;
  const [at, around] = [link.getBoundingClientRect(), column.getBoundingClientRect()];
  if (at.top < around.top || at.bottom > around.bottom) column.scrollTop += at.top - around.top - around.height / 2;
}

/**
 * Tells which section is being read, as one scrolls; `pause()` before the page itself scrolls to a place.
 * @param {Element} text
 * @param {AbortSignal} signal
 * @param {(section: string) => void} tell
 */
export function watchSections(text, signal, tell) {
  let last = "";
  let waiting = false;
  let quietUntil = 0;
  const look = () => {
    waiting = false;
    const above = [...text.querySelectorAll("[data-section]")].filter(
      (heading) => heading.getBoundingClientRect().top < 120,
    );
    const section = /** @type {HTMLElement | undefined} */ (above.at(-1))?.dataset.section;
    if (section && section !== last) tell((last = section));
  };
  const soon = () => {
    if (waiting || performance.now() < quietUntil) return;
    waiting = true;
    requestAnimationFrame(look);
  };
  window.addEventListener("scroll", soon, {passive: true, signal});
  return {pause: () => ((last = ""), (quietUntil = performance.now() + SETTLING_MS))};
}
