// @ts-check
/**
 * Server-sent events read with fetch, so that the key travels in a header and never in an address.
 * One stream for all subscribers: open while somebody listens, and opened again when it breaks.
 */

const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 15000;

/** @typedef {Record<string, (data?: any) => void>} Handlers */

export class EventStream {
  /**
   * @param {(signal: AbortSignal) => Promise<Response>} connect
   * @param {() => void} tellAway called when the server cannot be reached
   */
  constructor(connect, tellAway) {
    this.connect = connect;
    this.tellAway = tellAway;
    /** @type {Set<Handlers>} */
    this.subscribers = new Set();
    /** @type {AbortController | null} */
    this.running = null;
    this.standing = false;
  }

  /** @param {Handlers} handlers @returns {() => void} */
  subscribe(handlers) {
    this.subscribers.add(handlers);
    if (!this.running) this.start();
    else if (this.standing) handlers.open?.();
    return () => {
      this.subscribers.delete(handlers);
      if (this.subscribers.size === 0) this.stop();
    };
  }

  restart() {
    if (!this.running) return;
    this.stop();
    this.start();
  }

  start() {
    this.running = new AbortController();
    this.keepOpen(this.running.signal);
  }

  stop() {
    this.running?.abort();
    this.running = null;
    this.standing = false;
  }

  /** @param {AbortSignal} signal */
  async keepOpen(signal) {
    let wait = FIRST_WAIT_MS;
    while (!signal.aborted) {
      const outcome = await this.readOnce(signal);
      if (signal.aborted || outcome === "refused") return;
      this.standing = false;
      this.tell("away");
      if (outcome === "read") wait = FIRST_WAIT_MS;
      await pause(wait, signal);
      wait = Math.min(wait * 2, LONGEST_WAIT_MS);
    }
  }

  /**
   * @param {AbortSignal} signal
   * @returns {Promise<"read" | "refused" | "failed">} refused: it would be again, until there is another key
   */
  async readOnce(signal) {
    try {
      const response = await this.connect(signal);
      if (response.status >= 400 && response.status < 500 && response.status !== 429) return "refused";
      if (!response.ok || !response.body) return "failed";
      this.standing = true;
      this.tell("open");
      await this.readAll(response.body);
      return "read";
    } catch {
      // Aborted, cut off or unreachable: the loop around this knows what to do in each case.
      if (!signal.aborted && !this.standing) this.tellAway();
      return this.standing ? "read" : "failed";
    }
  }

  /** @param {ReadableStream<Uint8Array>} body */
  async readAll(body) {
    const reader = body.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
    let held = "";
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      const parts = (held + value).split(/\r?\n\r?\n/);
      held = parts.pop() ?? "";
      for (const part of parts) this.dispatch(part);
    }
  }

  /** @param {string} part one event, as its lines */
  dispatch(part) {
    let name = "message";
    const data = [];
    for (const line of part.split(/\r?\n/)) {
      if (line.startsWith("event:")) name = line.slice(6).trim();
      else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
    }
    if (data.length > 0) this.tell(name, JSON.parse(data.join("\n")));
  }

  /** @param {string} name @param {any} [data] */
  tell(name, data) {
    for (const handlers of [...this.subscribers]) handlers[name]?.(data);
  }
}

/** @param {number} milliseconds @param {AbortSignal} signal @returns {Promise<void>} */
function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), {once: true});
  });
}
