// @ts-check
/**
 * Line charts over time as SVG, with axis units, a readout by pointer and keyboard, a text summary, and a data table.
 * Redraws update existing elements, to avoid flicker.
 */

import {linear, linePath, nearest, ticks, times} from "./charts/scale.js";
import {h, newId, replace, svg} from "./dom.js";

/** @typedef {{at: number, [name: string]: any}} Sample `at` in milliseconds */
/** @typedef {{name: string, value: (sample: Sample) => number | null}} Series */

/** Pixels. The left margin fits "1,000 MB". */
const HEIGHT = 168;
const MARGIN = {top: 10, right: 10, bottom: 24, left: 62};

/** Width of a time label below the chart with its padding, in pixels. */
const TIME_WIDTH = 72;

/** Rows of the table: the latest samples, as half an hour of them is too much for a screen reader. */
const TABLE_ROWS = 12;

/** @type {Record<string, number>} steps of the readout per key, in samples */
const KEY_STEPS = {
  ArrowLeft: -1,
  ArrowDown: -1,
  ArrowRight: 1,
  ArrowUp: 1,
  PageUp: -10,
  PageDown: 10,
  Home: -Infinity,
  End: Infinity,
};

const hour = new Intl.DateTimeFormat("en-GB", {hour: "2-digit", minute: "2-digit"});
const second = new Intl.DateTimeFormat("en-GB", {hour: "2-digit", minute: "2-digit", second: "2-digit"});

export class TimeChart {
  #series;
  #format;
  #least;
  #most;
  /** @type {Sample[]} */
  #samples = [];
  /** @type {import("./charts/scale.js").Range} */
  #range = [0, 1];
  /** @type {number | null} index of the sample in the readout; null for the latest */
  #selected = null;
  /** @type {(at: number) => number} */
  #x = () => 0;
  #parts;

  /**
   * At most three `series`, distinguished by colour and dashes; `format` adds the unit to a value; the axis extends to
   * `least` or beyond, but never past `most`.
   * @param {{title: string, series: Series[], format: (value: number) => string, least?: number, most?: number}} parts
   */
  constructor({title, series, format, least = 1, most = Infinity}) {
    this.#series = series;
    this.#format = format;
    this.#least = least;
    this.#most = most;
    this.#parts = chartParts(title, series);
    this.element = this.#parts.figure;
    this.#listen();
  }

  /** @param {Sample[]} samples in order @param {import("./charts/scale.js").Range} range of time, in milliseconds */
  show(samples, range) {
    this.#samples = samples;
    this.#range = range;
    if (this.#selected !== null) this.#selected = Math.min(this.#selected, samples.length - 1);
    this.draw();
  }

  /** Draw the samples in the available width. */
  draw() {
    const width = this.#parts.plot.clientWidth;
    if (!width || !this.#samples.length) return;
    setAttributes(this.#parts.picture, {viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT});
    const values = this.#axisValues();
    const y = linear([0, values[values.length - 1]], [HEIGHT - MARGIN.bottom, MARGIN.top]);
    this.#x = linear(this.#range, [MARGIN.left, width - MARGIN.right]);
    this.#drawAxes(width, values, y);
    this.#series.forEach(({value}, index) => {
      const points = this.#samples.map((sample) => this.#point(sample, value(sample), y));
      this.#parts.lines[index].setAttribute("d", linePath(points));
    });
    this.#drawReadout();
    this.#describe();
  }

  /**
   * @param {Sample} sample @param {number | null} value @param {(value: number) => number} y
   * @returns {[number, number | null]}
   */
  #point(sample, value, y) {
    return [this.#x(sample.at), value === null ? null : y(value)];
  }

  #listen() {
    const {plot, table} = this.#parts;
    plot.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => this.#handlePointer(event));
    plot.addEventListener("pointerleave", () => this.#select(null));
    plot.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.#handleKey(event));
    plot.addEventListener("blur", () => this.#select(null));
    table.addEventListener("toggle", () => this.#fillTable());
    new ResizeObserver(() => this.draw()).observe(plot);
  }

  /** @param {PointerEvent} event */
  #handlePointer(event) {
    if (!this.#samples.length) return;
    const {left, width} = this.#parts.plot.getBoundingClientRect();
    const moment = linear([MARGIN.left, width - MARGIN.right], this.#range)(event.clientX - left);
    this.#select(nearest(this.#samples, moment));
  }

  /** @param {KeyboardEvent} event */
  #handleKey(event) {
    const last = this.#samples.length - 1;
    const step = KEY_STEPS[event.key];
    if (!step || last < 0) return;
    event.preventDefault();
    this.#select(Math.max(0, Math.min(last, (this.#selected ?? last) + step)));
  }

  /** @param {number | null} index */
  #select(index) {
    this.#selected = index;
    this.#drawReadout();
  }

  /** Tick values of the left axis. */
  #axisValues() {
    const values = this.#samples.flatMap((sample) => this.#series.map(({value}) => value(sample) ?? 0));
    return ticks(Math.min(Math.max(this.#least, ...values), this.#most));
  }

  /** @param {number} width @param {number[]} values @param {(value: number) => number} y */
  #drawAxes(width, values, y) {
    const right = width - MARGIN.right;
    const lines = values.map((value) => [
      svg("line", {x1: MARGIN.left, x2: right, y1: y(value), y2: y(value)}),
      svg("text", {x: MARGIN.left - 8, y: y(value), dy: "0.35em", "text-anchor": "end"}, this.#format(value)),
    ]);
    const count = Math.max(2, Math.floor((right - MARGIN.left) / TIME_WIDTH));
    const labels = times(this.#range, count).map((at) => {
      const x = Math.max(MARGIN.left + 16, Math.min(this.#x(at), right - 16));
      return svg("text", {x, y: HEIGHT - 6, "text-anchor": "middle"}, hour.format(at));
    });
    replace(this.#parts.axes, lines, labels);
  }

  /** Show the values of the selected sample, or the latest. */
  #drawReadout() {
    const {plot, cursor, values, when} = this.#parts;
    const isSelected = this.#selected !== null;
    const index = this.#selected ?? this.#samples.length - 1;
    const sample = this.#samples[index];
    if (!sample) return;
    const formatted = this.#series.map(({value}) => this.#formatValue(value(sample)));
    values.forEach((element, at) => setText(element, formatted[at]));
    setText(when, isSelected ? `at ${second.format(sample.at)}` : "now");
    cursor.classList.toggle("is-shown", isSelected);
    setAttributes(cursor, {x1: this.#x(sample.at), x2: this.#x(sample.at)});
    const labels = this.#series.map(({name}, at) => `${name} ${formatted[at]}`).join(", ");
    setAttributes(plot, {
      "aria-valuemax": this.#samples.length - 1,
      "aria-valuenow": index,
      "aria-valuetext": `${second.format(sample.at)}: ${labels}`,
    });
  }

  /** Update the text summary and the table. */
  #describe() {
    const sentences = this.#series.map(({name, value}) => {
      const measured = this.#samples.map(value).filter((one) => one !== null);
      if (!measured.length) return `${name}: no data yet.`;
      return `${name}: highest ${this.#formatValue(Math.max(...measured))}.`;
    });
    setText(this.#parts.summary, sentences.join(" "));
    this.#fillTable();
  }

  #fillTable() {
    if (!this.#parts.table.open) return;
    const latest = this.#samples.slice(-TABLE_ROWS).reverse();
    const rows = latest.map((sample) => {
      const cells = this.#series.map(({value}) => h("td", this.#formatValue(value(sample))));
      return h("tr", h("th", {scope: "row"}, second.format(sample.at)), cells);
    });
    replace(this.#parts.rows, rows);
  }

  /** @param {number | null} value */
  #formatValue(value) {
    return value === null ? "–" : this.#format(value);
  }
}

/**
 * Create the elements of a chart that change.
 * @param {string} title @param {Series[]} series
 */
function chartParts(title, series) {
  const id = newId("chart");
  const values = series.map(() => h("span", {class: "chart-value"}, "–"));
  const when = h("span", {class: "chart-when"}, "now");
  const lines = series.map((_, index) => svg("path", {class: lineClass(index)}));
  const axes = svg("g", {class: "chart-axes"});
  const cursor = svg("line", {class: "chart-cursor", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom});
  const picture = svg("svg", {"aria-hidden": "true", height: HEIGHT}, axes, lines, cursor);
  const plot = h("div", {...sliderAttributes(`${title}: moment`, `${id}-summary`), class: "chart-plot"}, picture);
  const summary = h("p", {class: "chart-summary", id: `${id}-summary`});
  const rows = h("tbody");
  const table = h("details", {class: "fold chart-table"}, h("summary", "Show as table"), valueTable(title, series, rows));
  const caption = h("figcaption", h("h3", {id}, title), when, legend(series, values));
  const figure = h("figure", {class: "time-chart", "aria-labelledby": id}, caption, plot, summary, table);
  return {figure, plot, picture, axes, lines, cursor, values, when, summary, table, rows};
}

/** ARIA attributes that make the chart a slider. @param {string} label @param {string} describedBy */
function sliderAttributes(label, describedBy) {
  return {
    tabindex: "0",
    role: "slider",
    "aria-label": label,
    "aria-describedby": describedBy,
    "aria-valuemin": 0,
    "aria-valuemax": 0,
    "aria-valuenow": 0,
    "aria-valuetext": "nothing measured yet",
  };
}

/** @param {Series[]} series @param {Element[]} values */
function legend(series, values) {
  const entries = series.map(({name}, index) => {
    const line = svg("line", {class: lineClass(index), x1: 2, y1: 5, x2: 22, y2: 5});
    const swatch = svg("svg", {class: "chart-swatch", viewBox: "0 0 24 10", "aria-hidden": "true"}, line);
    return h("li", swatch, `${name} `, values[index]);
  });
  return h("ul", {class: "chart-legend"}, entries);
}

/** @param {string} title @param {Series[]} series @param {Element} rows */
function valueTable(title, series, rows) {
  const heads = ["Time", ...series.map(({name}) => name)].map((name) => h("th", {scope: "col"}, name));
  return h("table", h("caption", {class: "unseen"}, `${title}, latest values`), h("thead", h("tr", heads)), rows);
}

/** @param {number} index */
function lineClass(index) {
  return `chart-line series-${index + 1}`;
}

/** @param {Element} element @param {Record<string, string | number>} attributes */
function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
}

/** Set the text only if it changed, to avoid flicker. @param {Element} element @param {string} text */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
