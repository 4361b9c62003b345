// @ts-check
/** State of every circuit breaker over time, as strips that differ in colour and pattern. */

import {linear} from "../../charts/scale.js";
import {h, replace, svg} from "../../dom.js";
import {badge} from "../../widgets.js";

/** @type {Record<string, [string, string]>} */
const STATES = {closed: ["Closed", "good"], half_open: ["Half open", "warn"], open: ["Open", "bad"]};

const WIDTH = 600;
const HEIGHT = 14;

export class BreakerStrips {
  constructor() {
    this.list = h("ul", {class: "breakers"});
    this.element = h(
      "section",
      {class: "breaker-panel", "aria-label": "Breakers"},
      h("h2", "Breakers"),
      h(
        "p",
        {class: "faint"},
        "A breaker opens after repeated failures and rejects calls until a trial call succeeds.",
      ),
      this.list,
    );
    this.drawn = "";
  }

  /** @param {import("./series.js").Sample[]} samples @param {[number, number]} range */
  show(samples, range) {
    const names = Object.keys(samples.at(-1)?.breakers ?? {}).sort();
    const strips = names.map((name) => this.#strip(name, findIntervals(samples, name), range));
    replace(
      this.list,
      strips.length ? strips : h("li", {class: "faint"}, "No dependency has a breaker."),
    );
  }

  /** @param {string} name @param {Span[]} intervals @param {[number, number]} range */
  #strip(name, intervals, range) {
    const [label, kind] = STATES[intervals.at(-1)?.state ?? ""] ?? ["Unknown", "plain"];
    const x = linear(range, [0, WIDTH]);
    const bars = intervals.map(({state, from, until}) =>
      svg("rect", {
        class: `breaker-${state}`,
        x: x(from),
        width: Math.max(1, x(until) - x(from)),
        y: 0,
        height: HEIGHT,
      }),
    );
    const openings = intervals.filter(({state}) => state === "open").length;
    const summary = openings
      ? `opened ${openings === 1 ? "once" : `${openings} times`} in the last 30 minutes`
      : "not opened in the last 30 minutes";
    const picture = svg(
      "svg",
      {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true"},
      bars,
    );
    return h(
      "li",
      {class: "breaker"},
      h("span", {class: "breaker-name"}, name),
      badge(label, kind),
      h("div", {class: "breaker-strip", title: summary}, picture),
      h("span", {class: "faint"}, summary),
    );
  }
}

/** @typedef {{state: string, from: number, until: number}} Span */

/** @param {import("./series.js").Sample[]} samples @param {string} name @returns {Span[]} */
function findIntervals(samples, name) {
  /** @type {Span[]} */
  const intervals = [];
  for (const {at, breakers} of samples) {
    const state = breakers?.[name];
    const last = intervals.at(-1);
    if (last) last.until = at;
    if (state && last?.state !== state) intervals.push({state, from: at, until: at});
  }
  return intervals;
}
