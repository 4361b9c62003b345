// @ts-check
/** The files on their way, one line each; only the sentence above them is announced. */

import {h, replace} from "../../dom.js";
import {bytes, percent, plural} from "../../format.js";
import {path} from "../../router.js";
import {badge, button, meter} from "../../widgets.js";
import {uploads} from "./queue.js";
import {passagesDone, statusWord} from "./status.js";

/** Lines that are shown; of a larger batch those that need somebody come first. */
const MOST_LINES = 100;

/** @type {Record<string, number>} */
const ORDER = {clash: 0, failed: 1, sending: 2, taking: 3, working: 4, waiting: 5, in: 6};

export class UploadList {
  #frame = 0;
  /** @type {Map<number, {line: any, drawn: string}>} */
  #lines = new Map();

  /** @param {AbortSignal} signal aborted when the view is left */
  constructor(signal) {
    this.sentence = h("p", {class: "uploads-sentence", role: "status"});
    this.more = h("div", {class: "uploads-actions"});
    this.list = h("ul", {class: "uploads"});
    this.element = h(
      "section",
      {class: "upload-panel", "aria-label": "Files on their way", hidden: true},
      h("div", {class: "section-head"}, this.sentence, this.more),
      this.list,
    );
    signal.addEventListener(
      "abort",
      uploads.listen(() => this.#soon()),
    );
    this.#draw();
  }

  /** Once for all changes before the next picture. */
  #soon() {
    this.#frame ||= requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.#frame = 0;
    const items = [...uploads.items].sort((one, other) => ORDER[one.stage] - ORDER[other.stage] || one.id - other.id);
    this.element.hidden = items.length === 0;
    const said = sentence();
    if (this.sentence.textContent !== said) replace(this.sentence, said);
    this.#drawActions();
    const shown = items.slice(0, MOST_LINES);
    const lines = shown.map((item) => this.#line(item));
    if (lines.some((line, at) => this.list.children[at] !== line) || this.list.children.length !== lines.length) {
      this.list.replaceChildren(...lines);
    }
    const kept = new Set(shown.map((item) => item.id));
    for (const id of this.#lines.keys()) if (!kept.has(id)) this.#lines.delete(id);
  }

  #drawActions() {
    const {in: done, failed, clash} = uploads.counts();
    const every = (/** @type {string} */ stage) => uploads.items.filter((item) => item.stage === stage);
    const wanted = `${done > 0} ${failed > 1} ${clash > 1}`;
    if (this.more.dataset.drawn === wanted) return;
    this.more.dataset.drawn = wanted;
    replace(
      this.more,
      failed > 1 &&
        button("Retry all failed", () => every("failed").forEach((item) => uploads.retry(item)), {kind: "small"}),
      clash > 1 &&
        button("Replace all", () => every("clash").forEach((item) => uploads.replace(item)), {kind: "small"}),
      done > 0 && button("Clear finished", () => uploads.clearDone(), {kind: "small quiet"}),
    );
  }

  /** @param {import("./queue.js").Item} item the same element as before, drawn anew where something has changed */
  #line(item) {
    const known = this.#lines.get(item.id) ?? {line: h("li", {class: "upload"}), drawn: ""};
    this.#lines.set(item.id, known);
    const drawn = JSON.stringify([item.stage, item.name, item.reason, words(item), Math.round(share(item) * 100)]);
    if (known.drawn !== drawn) {
      const isFocused = known.line.contains(document.activeElement);
      known.drawn = drawn;
      known.line.dataset.stage = item.stage;
      replace(known.line, parts(item));
      if (isFocused) known.line.querySelector("button, a")?.focus();
    }
    return known.line;
  }
}

/** @param {import("./queue.js").Item} item */
function parts(item) {
  const isGoing = ["sending", "taking", "working"].includes(item.stage);
  const isIn = item.stage === "in";
  return [
    h(
      "div",
      {class: "upload-name"},
      isIn ? h("a", {href: path("read", {id: item.documentId})}, item.name) : h("span", item.name),
      h("span", {class: "faint"}, bytes(item.file.size)),
    ),
    h(
      "div",
      {class: "upload-state"},
      badge(words(item), kind(item)),
      isGoing && meter(share(item), `${item.name}: ${words(item)}`),
      item.document && h("span", {class: "faint"}, passagesDone(item.document)),
    ),
    item.reason && h("p", {class: "upload-reason"}, item.reason),
    h("div", {class: "row-actions"}, buttons(item)),
  ];
}

/** @param {import("./queue.js").Item} item */
function buttons(item) {
  const of = (/** @type {string} */ verb) => ({kind: "small", attributes: {"aria-label": `${verb} ${item.name}`}});
  if (item.stage === "clash") {
    return [
      button("Replace", () => uploads.replace(item), of("Replace")),
      button("Keep both", () => uploads.keepBoth(item), of("Keep both:")),
      button("Skip", () => uploads.forget(item), of("Skip")),
    ];
  }
  if (item.stage === "failed") {
    return [
      button("Retry", () => uploads.retry(item), {...of("Retry"), icon: "retry"}),
      button("Dismiss", () => uploads.forget(item), of("Dismiss")),
    ];
  }
  return [];
}

/** @param {import("./queue.js").Item} item */
function words(item) {
  switch (item.stage) {
    case "waiting":
      return "Waiting";
    case "sending":
      return `Sending, ${percent(item.share)}`;
    case "clash":
      return "Name is taken";
    case "taking":
      return "Converting";
    case "working":
      return item.document ? statusWord(item.document) : "Taken on";
    case "in":
      return "Ready";
    default:
      return "Failed";
  }
}

/** @param {import("./queue.js").Item} item */
function kind(item) {
  return {waiting: "plain", clash: "warn", in: "good", failed: "bad"}[/** @type {string} */ (item.stage)] ?? "info";
}

/** Sending is the first fifth of the bar, converting ends at two fifths. @param {import("./queue.js").Item} item */
function share(item) {
  if (item.stage === "sending") return 0.2 * item.share;
  if (item.stage === "taking") return 0.3;
  return 0.4 + 0.6 * (item.document?.progress ?? 0);
}

function sentence() {
  const counts = uploads.counts();
  const going = counts.waiting + counts.sending + counts.taking + counts.working;
  if (uploads.away)
    return `The desk does not answer. ${plural(going, "file")} wait and go on by themselves when it is back.`;
  const told = [
    going > 0 && `${plural(going, "file")} on the way`,
    counts.in > 0 && `${counts.in} ready`,
    counts.clash > 0 && `${counts.clash} with a name that is taken`,
    counts.failed > 0 && `${counts.failed} failed`,
  ].filter(Boolean);
  return `${told.join(", ")}.`;
}
