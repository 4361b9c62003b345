// @ts-check
/** Table of contents as a collapsible tree, with the current section marked. */

import {h} from "../../dom.js";
import {icon} from "../../icons.js";
import {path} from "../../router.js";

/** @typedef {{id: string, title: string, level: number, page: number}} Entry */

const OPEN_LEVELS = 2;
const SCROLL_PAUSE_MS = 300;

export class Outline {
  /** @param {any} about @param {string} id @param {(section: string) => void} go */
  constructor(about, id, go) {
    this.id = id;
    this.go = go;
    /** @type {Entry[]} */
    this.entries = about.outline ?? [];
    /** @type {Map<string, HTMLElement>} */
    this.links = new Map();
    const omitted = about.outline_omitted && h("p", {class: "faint"}, `${about.outline_omitted} more not listed.`);
    this.element = h(
      "details",
      {class: "fold outline", open: matchMedia("(min-width: 64rem)").matches, hidden: this.entries.length === 0},
      h("summary", "Contents"),
      h("nav", {"aria-label": "Contents"}, this.renderBranch(buildTree(this.entries), 1), omitted),
    );
  }

  /** @param {Node[]} nodes @param {number} depth @returns {HTMLElement} */
  renderBranch(nodes, depth) {
    return h(
      "ul",
      nodes.map((node) => this.renderItem(node, depth)),
    );
  }

  /** @param {Node} node @param {number} depth */
  renderItem({entry, children}, depth) {
    const link = h(
      "a",
      {
        href: path("read", {id: this.id, section: entry.id}),
        on: {click: (/** @type {MouseEvent} */ event) => this.handleClick(event, entry.id)},
      },
      h("bdi", entry.title),
    );
    this.links.set(entry.id, link);
    if (children.length === 0) return h("li", h("div", {class: "outline-row"}, link));
    const sublist = this.renderBranch(children, depth + 1);
    sublist.hidden = depth >= OPEN_LEVELS;
    return h("li", h("div", {class: "outline-row"}, toggleButton(sublist, entry.title), link), sublist);
  }

  /** @param {MouseEvent} event @param {string} section */
  handleClick(event, section) {
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
    if (link) scrollColumnTo(link);
  }

  /** @param {string | null} section */
  getNeighbours(section) {
    const at = this.entries.findIndex(({id}) => id === section);
    return {previous: this.entries[at - 1], next: this.entries[at + 1]};
  }
}

/** @typedef {{entry: Entry, children: Node[]}} Node */

/** @param {Entry[]} entries @returns {Node[]} */
function buildTree(entries) {
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

/** @param {HTMLElement} sublist @param {string} title */
function toggleButton(sublist, title) {
  const toggle = () => {
    sublist.hidden = !sublist.hidden;
    button.setAttribute("aria-expanded", String(!sublist.hidden));
  };
  const button = h(
    "button",
    {
      type: "button",
      class: "folder",
      "aria-expanded": !sublist.hidden,
      "aria-label": `Sections of ${title}`,
      on: {click: toggle},
    },
    icon("next"),
  );
  return button;
}

/** @param {HTMLElement} list */
function unfold(list) {
  if (!list.hidden) return;
  list.hidden = false;
  list.previousElementSibling?.querySelector(".folder")?.setAttribute("aria-expanded", "true");
}

/** @param {HTMLElement} link scrolls only the side column, not the page */
function scrollColumnTo(link) {
  const column = link.closest(".reader-side");
  if (!column) return;
  const [at, around] = [link.getBoundingClientRect(), column.getBoundingClientRect()];
  if (at.top < around.top || at.bottom > around.bottom) column.scrollTop += at.top - around.top - around.height / 2;
}

/**
 * Reports the section in view while scrolling. Call `pause()` before scrolling programmatically.
 * @param {Element} text
 * @param {AbortSignal} signal
 * @param {(section: string) => void} onChange
 */
export function watchSections(text, signal, onChange) {
  let last = "";
  let isScheduled = false;
  let quietUntil = 0;
  const update = () => {
    isScheduled = false;
    const above = [...text.querySelectorAll("[data-section]")].filter(
      (heading) => heading.getBoundingClientRect().top < 120,
    );
    const section = /** @type {HTMLElement | undefined} */ (above.at(-1))?.dataset.section;
    if (section && section !== last) onChange((last = section));
  };
  const schedule = () => {
    if (isScheduled || performance.now() < quietUntil) return;
    isScheduled = true;
    requestAnimationFrame(update);
  };
  window.addEventListener("scroll", schedule, {passive: true, signal});
  return {pause: () => ((last = ""), (quietUntil = performance.now() + SCROLL_PAUSE_MS))};
}
