// @ts-check
/**
 * Server-sent events over fetch, so that the key is sent in a header and never in a URL.
 * One stream for all subscribers: open while there are any, and reopened with backoff when it breaks.
 */

const FIRST_WAIT_MS = 1000;
const MAX_WAIT_MS = 15000;

/** @typedef {Record<string, (data?: any) => void>} Handlers */

export class EventStream {
  /**
   * @param {(signal: AbortSignal) => Promise<Response>} connect
   * @param {() => void} onUnreachable called when the server is unreachable
   */
  constructor(connect, onUnreachable) {
    this.connect = connect;
    this.onUnreachable = onUnreachable;
    /** @type {Set<Handlers>} */
    this.subscribers = new Set();
    /** @type {AbortController | null} */
    this.controller = null;
    this.isOpen = false;
  }

  /** @param {Handlers} handlers @returns {() => void} */
  subscribe(handlers) {
    this.subscribers.add(handlers);
    if (!this.controller) this.start();
    else if (this.isOpen) handlers.open?.();
    return () => {
      this.subscribers.delete(handlers);
      if (this.subscribers.size === 0) this.stop();
    };
  }

  restart() {
    if (!this.controller) return;
    this.stop();
    this.start();
  }

  start() {
    this.controller = new AbortController();
    this.keepOpen(this.controller.signal);
  }

  stop() {
    this.controller?.abort();
    this.controller = null;
    this.isOpen = false;
  }

  /** @param {AbortSignal} signal */
  async keepOpen(signal) {
    let wait = FIRST_WAIT_MS;
    while (!signal.aborted) {
      const outcome = await this.readOnce(signal);
      if (signal.aborted || outcome === "refused") return;
      this.isOpen = false;
      this.emit("away");
      if (outcome === "read") wait = FIRST_WAIT_MS;
      await delay(wait, signal);
      wait = Math.min(wait * 2, MAX_WAIT_MS);
    }
  }

  /**
   * @param {AbortSignal} signal
   * @returns {Promise<"read" | "refused" | "failed">} "refused" is final until the key changes
   */
  async readOnce(signal) {
    try {
      const response = await this.connect(signal);
      if (response.status >= 400 && response.status < 500 && response.status !== 429) return "refused";
      if (!response.ok || !response.body) return "failed";
      this.isOpen = true;
      this.emit("open");
      await this.readAll(response.body);
      return "read";
    } catch {
      // Aborted, disconnected or unreachable: keepOpen handles each case.
      if (!signal.aborted && !this.isOpen) this.onUnreachable();
      return this.isOpen ? "read" : "failed";
    }
  }

  /** @param {ReadableStream<Uint8Array>} body */
  async readAll(body) {
    const reader = body.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
    let buffer = "";
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      const parts = (buffer + value).split(/\r?\n\r?\n/);
      buffer = parts.pop() ?? "";
      for (const part of parts) this.dispatch(part);
    }
  }

  /** @param {string} part the lines of one event */
  dispatch(part) {
    let name = "message";
    const data = [];
    for (const line of part.split(/\r?\n/)) {
      if (line.startsWith("event:")) name = line.slice(6).trim();
      else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
    }
    if (data.length > 0) this.emit(name, JSON.parse(data.join("\n")));
  }

  /** @param {string} name @param {any} [data] */
  emit(name, data) {
    for (const handlers of [...this.subscribers]) handlers[name]?.(data);
  }
}

/** @param {number} milliseconds @param {AbortSignal} signal @returns {Promise<void>} */
function delay(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), {once: true});
  });
}
