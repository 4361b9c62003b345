// @ts-check
/** Upload list, one line per file. Only the summary is announced. */

import {h, replace} from "../../dom.js";
import {bytes, percent, plural} from "../../format.js";
import {path} from "../../router.js";
import {badge, button, meter} from "../../widgets.js";
import {uploads} from "./queue.js";
import {formatPassages, statusLabel} from "./status.js";

/** Lines shown. Files that need attention come first. */
const MAX_LINES = 100;

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
      {class: "upload-panel", "aria-label": "Uploads", hidden: true},
      h("div", {class: "section-head"}, this.sentence, this.more),
      this.list,
    );
    signal.addEventListener(
      "abort",
      uploads.listen(() => this.#scheduleDraw()),
    );
    this.#draw();
  }

  /** Redraw once per animation frame. */
  #scheduleDraw() {
    this.#frame ||= requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.#frame = 0;
    const items = [...uploads.items].sort((one, other) => ORDER[one.stage] - ORDER[other.stage] || one.id - other.id);
    this.element.hidden = items.length === 0;
    const summary = formatSummary();
    if (this.sentence.textContent !== summary) replace(this.sentence, summary);
    this.#drawActions();
    const visible = items.slice(0, MAX_LINES);
    const lines = visible.map((item) => this.#line(item));
    if (lines.some((line, at) => this.list.children[at] !== line) || this.list.children.length !== lines.length) {
      this.list.replaceChildren(...lines);
    }
    const visibleIds = new Set(visible.map((item) => item.id));
    for (const id of this.#lines.keys()) if (!visibleIds.has(id)) this.#lines.delete(id);
  }

  #drawActions() {
    const {in: done, failed, clash} = uploads.countByStage();
    const every = (/** @type {string} */ stage) => uploads.items.filter((item) => item.stage === stage);
    const drawnKey = `${done > 0} ${failed > 1} ${clash > 1}`;
    if (this.more.dataset.drawn === drawnKey) return;
    this.more.dataset.drawn = drawnKey;
    replace(
      this.more,
      failed > 1 &&
        button("Retry all failed", () => every("failed").forEach((item) => uploads.retry(item)), {kind: "small"}),
      clash > 1 &&
        button("Replace all", () => every("clash").forEach((item) => uploads.replace(item)), {kind: "small"}),
      done > 0 && button("Clear finished", () => uploads.clearFinished(), {kind: "small quiet"}),
    );
  }

  /** @param {import("./queue.js").Item} item its element, redrawn only if something changed */
  #line(item) {
    const entry = this.#lines.get(item.id) ?? {line: h("li", {class: "upload"}), drawn: ""};
    this.#lines.set(item.id, entry);
    const progress = Math.round(getProgress(item) * 100);
    const drawn = JSON.stringify([item.stage, item.name, item.reason, stageLabel(item), progress]);
    if (entry.drawn !== drawn) {
      const isFocused = entry.line.contains(document.activeElement);
      entry.drawn = drawn;
      entry.line.dataset.stage = item.stage;
      replace(entry.line, itemElements(item));
      if (isFocused) entry.line.querySelector("button, a")?.focus();
    }
    return entry.line;
  }
}

/** @param {import("./queue.js").Item} item */
function itemElements(item) {
  const isUnfinished = ["sending", "taking", "working"].includes(item.stage);
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
      badge(stageLabel(item), badgeKind(item)),
      isUnfinished && meter(getProgress(item), `${item.name}: ${stageLabel(item)}`),
      item.document && h("span", {class: "faint"}, formatPassages(item.document)),
    ),
    item.reason && h("p", {class: "upload-reason"}, item.reason),
    h("div", {class: "row-actions"}, itemButtons(item)),
  ];
}

/** @param {import("./queue.js").Item} item */
function itemButtons(item) {
  const of = (/** @type {string} */ verb) => ({kind: "small", attributes: {"aria-label": `${verb} ${item.name}`}});
  if (item.stage === "clash") {
    return [
      button("Replace", () => uploads.replace(item), of("Replace")),
      button("Keep both", () => uploads.keepBoth(item), of("Keep both:")),
      button("Skip", () => uploads.remove(item), of("Skip")),
    ];
  }
  if (item.stage === "failed") {
    return [
      button("Retry", () => uploads.retry(item), {...of("Retry"), icon: "retry"}),
      button("Dismiss", () => uploads.remove(item), of("Dismiss")),
    ];
  }
  return [];
}

/** @param {import("./queue.js").Item} item */
function stageLabel(item) {
  switch (item.stage) {
    case "waiting":
      return "Waiting";
    case "sending":
      return `Sending, ${percent(item.share)}`;
    case "clash":
      return "Name already exists";
    case "taking":
      return "Converting";
    case "working":
      return item.document ? statusLabel(item.document) : "Queued";
    case "in":
      return "Ready";
    default:
      return "Failed";
  }
}

/** @param {import("./queue.js").Item} item */
function badgeKind(item) {
  return {waiting: "plain", clash: "warn", in: "good", failed: "bad"}[/** @type {string} */ (item.stage)] ?? "info";
}

/** Uploading fills a fifth of the bar; converting ends at two fifths. @param {import("./queue.js").Item} item */
function getProgress(item) {
  if (item.stage === "sending") return 0.2 * item.share;
  if (item.stage === "taking") return 0.3;
  return 0.4 + 0.6 * (item.document?.progress ?? 0);
}

function formatSummary() {
  const counts = uploads.countByStage();
  const unfinished = counts.waiting + counts.sending + counts.taking + counts.working;
  if (uploads.away)
    return `Refdesk is not responding. ${plural(unfinished, "file")} will continue when it is back.`;
  const segments = [
    unfinished > 0 && `${plural(unfinished, "file")} in progress`,
    counts.in > 0 && `${counts.in} ready`,
    counts.clash > 0 && `${counts.clash} with an existing name`,
    counts.failed > 0 && `${counts.failed} failed`,
  ].filter(Boolean);
  return `${segments.join(", ")}.`;
}
