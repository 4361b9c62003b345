// @ts-check
/**
 * Formatters for numbers, sizes and times: `number(12345)`, `bytes(2048)`, `percent(0.4)`, `milliseconds(12.3)`,
 * `moment(iso)` for a local date and time, `day(iso)`, `ago(iso)`, `plural(3, "document")`, `time(iso)` as an element
 * with the relative time and the exact moment, `shorten(text, length)`.
 */

import {h} from "./dom.js";

const SIZES = ["bytes", "kB", "MB", "GB", "TB"];
/** @type {[number, Intl.RelativeTimeFormatUnit][]} */
const TIME_UNITS = [
  [60, "second"],
  [60, "minute"],
  [24, "hour"],
  [30, "day"],
  [12, "month"],
  [Infinity, "year"],
];
const relativeFormat = new Intl.RelativeTimeFormat("en", {numeric: "auto"});
const numberFormat = new Intl.NumberFormat("en");

/** @param {number} value */
export function number(value) {
  return numberFormat.format(value);
}

/** @param {number} count @param {string} one @param {string} [many] */
export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** @param {number} size in units of 1024, as in the settings */
export function bytes(size) {
  let step = 0;
  while (size >= 1024 && step < SIZES.length - 1) ((size /= 1024), (step += 1));
  return `${step === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${SIZES[step]}`;
}

/** @param {number} share from 0 to 1 */
export function percent(share) {
  return `${Math.round(share * 100)} %`;
}

/** @param {number} value */
export function milliseconds(value) {
  if (value >= 1000) return `${(value / 1000).toFixed(value >= 10000 ? 0 : 1)} s`;
  return `${value >= 10 ? Math.round(value) : value.toFixed(1)} ms`;
}

/** @param {string | number | Date} at */
export function moment(at) {
  return new Date(at).toLocaleString("en-GB", {dateStyle: "medium", timeStyle: "short"});
}

/** @param {string | number | Date} at */
export function day(at) {
  return new Date(at).toLocaleDateString("en-GB", {dateStyle: "medium"});
}

/** @param {string | number | Date} at */
export function ago(at) {
  let span = (new Date(at).getTime() - Date.now()) / 1000;
  if (Number.isNaN(span)) return String(at);
  for (const [size, unit] of TIME_UNITS) {
    if (Math.abs(span) < size) return relativeFormat.format(Math.round(span), unit);
    span /= size;
  }
  return String(at);
}

/** @param {string | null | undefined} at */
export function time(at) {
  if (!at || Number.isNaN(Date.parse(at))) return h("span", at ?? "");
  return h("time", {datetime: at, title: moment(at)}, ago(at));
}

/** @param {string} value @param {number} length */
export function shorten(value, length) {
  return value.length > length ? `${value.slice(0, length - 1).trimEnd()}…` : value;
}
