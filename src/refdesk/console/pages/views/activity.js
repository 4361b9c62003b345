// @ts-check
/** Activity view: charts of the last half hour, updated live. */

import {action} from "../api.js";
import {TimeChart} from "../charts.js";
import {h, replace} from "../dom.js";
import {milliseconds, number, percent} from "../format.js";
import {emptyState, errorBox, pageHeader, table} from "../widgets.js";
import {BreakerStrips} from "./activity/breakers.js";
import {Samples, hitRate} from "./activity/series.js";

export const title = "Activity";

/** Refresh interval of the tool table, which has no event. */
const TOOLS_REFRESH_MS = 10_000;

/** @typedef {import("./activity/series.js").Sample} Sample */

/** @param {any} context */
export function view(context) {
  const page = new ActivityPage(context);
  context.events({
    metrics: (/** @type {{sample: any}} */ {sample}) => page.addSample(sample),
    open: () => page.load(),
  });
  document.addEventListener("visibilitychange", () => page.resume(), {signal: context.signal});
  const timer = setInterval(() => document.hidden || page.loadTools(), TOOLS_REFRESH_MS);
  context.signal.addEventListener("abort", () => clearInterval(timer));
  return page.element;
}

class ActivityPage {
  #context;
  #samples = new Samples();
  #charts;
  #breakers = new BreakerStrips();

  /** @param {any} context */
  constructor(context) {
    this.#context = context;
    this.#charts = createCharts(this.#samples);
    this.errorArea = h("div");
    this.tools = h("section", {class: "tools-panel", "aria-label": "Tools"});
    this.element = h(
      "div",
      {class: "activity-view"},
      pageHeader("Activity", "The last 30 minutes of this server process, live."),
      this.errorArea,
      h("h2", {class: "unseen"}, "Charts"),
      h(
        "div",
        {class: "charts"},
        this.#charts.map((chart) => chart.element),
      ),
      this.#breakers.element,
      this.tools,
    );
  }

  async load() {
    try {
      const answer = await action("metrics", {}, {signal: this.#context.signal});
      this.#samples.reset(answer);
      replace(this.errorArea);
      this.#drawTools(answer.tools);
      this.#draw();
    } catch (error) {
      if (!this.#context.signal.aborted)
        replace(
          this.errorArea,
          errorBox(error, () => this.load()),
        );
    }
  }

  async loadTools() {
    try {
      const {tools} = await action("metrics", {since: this.#samples.latest}, {signal: this.#context.signal});
      this.#drawTools(tools);
    } catch (error) {
      if (!this.#context.signal.aborted)
        replace(
          this.errorArea,
          errorBox(error, () => this.load()),
        );
    }
  }

  /** @param {any} sample */
  addSample(sample) {
    this.#samples.add(sample);
    if (!document.hidden) this.#draw();
  }

  /** Redraw with the samples that arrived while the page was hidden. */
  resume() {
    if (document.hidden) return;
    this.#draw();
    this.loadTools();
  }

  #draw() {
    const {all, range} = this.#samples;
    for (const chart of this.#charts) chart.show(all, range);
    this.#breakers.show(all, range);
  }

  /** @param {any[]} tools */
  #drawTools(tools) {
    const rows = [...tools].sort((one, other) => other.calls - one.calls);
    replace(this.tools, h("h2", "Tools"), rows.length ? toolTable(rows) : noCallsYet());
  }
}

/** @param {any[]} rows */
function toolTable(rows) {
  const ms = (/** @type {number | null} */ value) => (value === null ? "–" : milliseconds(value));
  return table({
    caption: "Tools by number of calls",
    columns: [
      {title: "Tool", cell: (tool) => h("code", tool.name)},
      {title: "Calls", className: "numeric", cell: (tool) => number(tool.calls)},
      {title: "Errors", className: "numeric", cell: (tool) => number(tool.errors)},
      {title: "p50", className: "numeric", cell: (tool) => ms(tool.p50_ms)},
      {title: "p95", className: "numeric", cell: (tool) => ms(tool.p95_ms)},
    ],
    rows,
    key: (tool) => tool.name,
  });
}

function noCallsYet() {
  return emptyState({
    title: "No calls yet",
    text: "Calls from agents and searches from this console appear here.",
  });
}

/** @param {Samples} samples @returns {TimeChart[]} */
function createCharts(samples) {
  const perSecond = (/** @type {string} */ name) => (/** @type {Sample} */ sample) => sample[name] / samples.interval;
  const field = (/** @type {string} */ name) => (/** @type {Sample} */ sample) => sample[name] ?? null;
  return [
    new TimeChart({
      title: "Calls",
      series: [
        {name: "Calls", value: perSecond("calls")},
        {name: "Errors", value: perSecond("errors")},
      ],
      format: (value) => `${formatRounded(value)} /s`,
    }),
    new TimeChart({
      title: "Latency",
      series: [
        {name: "p50", value: field("p50_ms")},
        {name: "p95", value: field("p95_ms")},
      ],
      format: (value) => (value === 0 ? "0 ms" : milliseconds(value)),
      least: 10,
    }),
    new TimeChart({title: "Cache hit rate", series: [{name: "Hits", value: hitRate}], format: percent, most: 1}),
    new TimeChart({
      title: "Calls in flight",
      series: [{name: "In flight", value: field("in_flight")}],
      format: formatRounded,
      least: 4,
    }),
    new TimeChart({
      title: "Documents to index",
      series: [{name: "Waiting", value: field("queue")}],
      format: formatRounded,
      least: 4,
    }),
    new TimeChart({
      title: "Memory",
      series: [{name: "Resident", value: field("rss_mb")}],
      format: (value) => `${number(Math.round(value))} MB`,
      least: 100,
    }),
  ];
}

/** @param {number} value */
function formatRounded(value) {
  return number(Number(value.toFixed(value >= 10 ? 0 : 2)));
}
