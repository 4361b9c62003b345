// @ts-check
/** Chart arithmetic: axis ticks and scales. Doesn't touch the DOM. */

/** @typedef {[number, number]} Range */

/** Round tick steps. */
const ROUND_STEPS = [1, 2, 2.5, 5];

/** Minutes between time labels. */
const MINUTE_STEPS = [1, 2, 5, 10, 15];

const MINUTE = 60_000;

/** @param {number} highest @param {number} count @returns {number} step for about `count` round ticks */
export function roundStep(highest, count) {
  const rough = highest / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * (ROUND_STEPS.find((step) => step * power >= rough * 0.999) ?? 10);
}

/** @param {number} highest @param {number} [count] @returns {number[]} tick values from zero up */
export function ticks(highest, count = 4) {
  const step = roundStep(highest, count);
  const steps = Math.ceil(highest / step - 1e-9);
  return Array.from({length: steps + 1}, (_, index) => index * step);
}

/** @param {Range} range of time @param {number} count @returns {number[]} at most `count` whole minutes in it */
export function times([from, until], count) {
  const minutes = (until - from) / MINUTE;
  const step = (MINUTE_STEPS.find((each) => minutes / each <= count) ?? 30) * MINUTE;
  const moments = [];
  for (let at = Math.ceil(from / step) * step; at <= until; at += step) moments.push(at);
  return moments;
}

/** @param {Range} from @param {Range} to @returns {(value: number) => number} linear scale */
export function linear([low, high], [start, end]) {
  const length = high - low || 1;
  return (value) => start + ((value - low) / length) * (end - start);
}

/** @param {[number, number | null][]} points @returns {string} SVG path with gaps for missing values */
export function linePath(points) {
  let path = "";
  points.forEach(([x, y], index) => {
    if (y === null) return;
    const isFirst = (points[index - 1]?.[1] ?? null) === null;
    const isLast = (points[index + 1]?.[1] ?? null) === null;
    path += `${isFirst ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`;
    // A single value between two gaps is drawn as a small diamond.
    if (isFirst && isLast) path += "m-2 0l2-2 2 2-2 2z";
  });
  return path;
}

/** @param {{at: number}[]} samples @param {number} moment @returns {number} index of the nearest sample */
export function nearest(samples, moment) {
  let best = 0;
  samples.forEach((sample, index) => {
    if (Math.abs(sample.at - moment) < Math.abs(samples[best].at - moment)) best = index;
  });
  return best;
}
