// @ts-check
/** The state of every breaker over time: a strip each, where colour and pattern say the same. */

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
        "A breaker opens when what it guards keeps failing: calls are refused at once until a trial succeeds.",
      ),
      this.list,
    );
    this.drawn = "";
  }

  /** @param {import("./series.js").Sample[]} samples @param {[number, number]} range */
  show(samples, range) {
    const names = Object.keys(samples.at(-1)?.breakers ?? {}).sort();
    const strips = names.map((name) => this.#strip(name, spans(samples, name), range));
    replace(
      this.list,
      strips.length ? strips : h("li", {class: "faint"}, "Nothing is guarded by a breaker on this desk."),
    );
  }

  /** @param {string} name @param {Span[]} found @param {[number, number]} range */
  #strip(name, found, range) {
    const [word, kind] = STATES[found.at(-1)?.state ?? ""] ?? ["Unknown", "plain"];
    const x = linear(range, [0, WIDTH]);
    const bars = found.map(({state, from, until}) =>
      svg("rect", {
        class: `breaker-${state}`,
        x: x(from),
        width: Math.max(1, x(until) - x(from)),
        y: 0,
        height: HEIGHT,
      }),
    );
    const openings = found.filter(({state}) => state === "open").length;
    const told = openings
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
      badge(word, kind),
      h("div", {class: "breaker-strip", title: told}, picture),
      h("span", {class: "faint"}, told),
    );
  }
}

/** @typedef {{state: string, from: number, until: number}} Span */

/** @param {import("./series.js").Sample[]} samples @param {string} name @returns {Span[]} */
function spans(samples, name) {
  /** @type {Span[]} */
  const found = [];
  for (const {at, breakers} of samples) {
    const state = breakers?.[name];
    const last = found.at(-1);
    if (last) last.until = at;
    if (state && last?.state !== state) found.push({state, from: at, until: at});
  }
  return found;
}
