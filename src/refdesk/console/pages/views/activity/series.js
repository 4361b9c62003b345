// @ts-check
/** Metric samples for the charts. */

/** Time span of the charts. */
export const WINDOW_MS = 30 * 60_000;

/** Shortest time span, for a server that has just started. */
const MIN_RANGE_MS = 5 * 60_000;

/** @typedef {{at: number, [name: string]: any}} Sample `at` in milliseconds */

export class Samples {
  /** @type {Sample[]} */
  all = [];
  interval = 5;

  /** @param {{interval_seconds: number, samples: any[]}} answer of the `metrics` action */
  reset({interval_seconds: interval, samples}) {
    this.interval = interval;
    this.all = samples.map(addTime);
    this.#trim();
  }

  /** @param {any} sample of a `metrics` event; duplicates are skipped */
  add(sample) {
    const timed = addTime(sample);
    if (timed.at <= (this.all.at(-1)?.at ?? 0)) return;
    this.all.push(timed);
    this.#trim();
  }

  /** @returns {[number, number]} time range of the charts, ending at the latest sample */
  get range() {
    const until = this.all.at(-1)?.at ?? Date.now();
    const duration = until - (this.all[0]?.at ?? until);
    return [until - Math.min(WINDOW_MS, Math.max(duration, MIN_RANGE_MS)), until];
  }

  /** `since` parameter for the next request. @returns {any} */
  get latest() {
    return this.all.at(-1)?.since;
  }

  #trim() {
    const from = (this.all.at(-1)?.at ?? 0) - WINDOW_MS;
    this.all = this.all.filter((sample) => sample.at >= from);
  }
}

/** @param {any} sample @returns {Sample} with `at` in milliseconds and `since` as sent by the server */
function addTime(sample) {
  const at = typeof sample.at === "number" ? sample.at * 1000 : Date.parse(sample.at);
  return {...sample, at, since: sample.at};
}

/** @param {Sample} sample @returns {number | null} share of cache lookups that hit */
export function hitRate({cache_hits: hits, cache_misses: misses}) {
  return hits + misses > 0 ? hits / (hits + misses) : null;
}
