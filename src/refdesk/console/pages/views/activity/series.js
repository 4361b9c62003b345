// @ts-check
/** What the desk measured, sample by sample, as the charts want it. */

/** How far back the charts look. */
export const WINDOW_MS = 30 * 60_000;

/** What they show of a desk that has just been started. */
const SHORTEST_MS = 5 * 60_000;

/** @typedef {{at: number, [name: string]: any}} Sample `at` in milliseconds */

export class Samples {
  /** @type {Sample[]} */
  all = [];
  interval = 5;

  /** @param {{interval_seconds: number, samples: any[]}} answer of the `metrics` action */
  reset({interval_seconds: interval, samples}) {
    this.interval = interval;
    this.all = samples.map(withTime);
    this.#trim();
  }

  /** @param {any} sample of a `metrics` event; one that is known already is left out */
  add(sample) {
    const timed = withTime(sample);
    if (timed.at <= (this.all.at(-1)?.at ?? 0)) return;
    this.all.push(timed);
    this.#trim();
  }

  /** @returns {[number, number]} the time that the charts show: up to the latest sample, and no longer than is known */
  get range() {
    const until = this.all.at(-1)?.at ?? Date.now();
    const known = until - (this.all[0]?.at ?? until);
    return [until - Math.min(WINDOW_MS, Math.max(known, SHORTEST_MS)), until];
  }

  /** The moment after which the desk is asked for samples. @returns {any} */
  get latest() {
    return this.all.at(-1)?.since;
  }

  #trim() {
    const from = (this.all.at(-1)?.at ?? 0) - WINDOW_MS;
    this.all = this.all.filter((sample) => sample.at >= from);
  }
}

/** @param {any} sample @returns {Sample} its time in milliseconds, and as the desk wrote it */
function withTime(sample) {
  const at = typeof sample.at === "number" ? sample.at * 1000 : Date.parse(sample.at);
  return {...sample, at, since: sample.at};
}

/** @param {Sample} sample @returns {number | null} the share of lookups that the cache answered */
export function hitRate({cache_hits: hits, cache_misses: misses}) {
  return hits + misses > 0 ? hits / (hits + misses) : null;
}
