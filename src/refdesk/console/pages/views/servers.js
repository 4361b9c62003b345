// @ts-check
/** Servers view. Adding and removing servers is deliberately left to `refdesk servers`. */

import {action} from "../api.js";
import {h, replace} from "../dom.js";
import {announce, copyButton, emptyState, errorBox, pageHeader, spinner} from "../widgets.js";
import {ServerCard} from "./servers/card.js";

export const title = "Servers";

/** Refresh interval in milliseconds: latency and calls in flight change without an event. */
const REFRESH_MS = 5000;

const ADD_COMMANDS = [
  "refdesk servers add NAME -- COMMAND …",
  "refdesk servers add NAME https://…/mcp",
  "refdesk servers import",
];

/** @param {any} context */
export function view(context) {
  const list = new ServerList(context);
  context.events({servers: () => list.load(), open: () => list.load()});
  const timer = setInterval(() => document.hidden || list.load(), REFRESH_MS);
  context.signal.addEventListener("abort", () => clearInterval(timer));
  const lead = "MCP servers whose tools agents can use through Refdesk.";
  return h("div", {class: "servers-view"}, pageHeader("Servers", lead), list.element);
}

class ServerList {
  #context;
  /** @type {Map<string, ServerCard>} */
  #cards = new Map();
  /** @type {Map<string, string>} */
  #states = new Map();
  #changes = 0;

  /** @param {any} context */
  constructor(context) {
    this.#context = context;
    this.element = h("div", {class: "server-list"}, spinner());
  }

  async load() {
    const changes = this.#changes;
    try {
      const {servers} = await action("servers", {}, {signal: this.#context.signal});
      // A response requested before a local change is stale and would revert the switch.
      if (changes === this.#changes) this.#render(servers);
    } catch (error) {
      if (this.#context.signal.aborted) return;
      this.#cards.clear();
      replace(
        this.element,
        errorBox(error, () => this.load()),
      );
    }
  }

  /** @param {any[]} servers */
  #render(servers) {
    // Sorted by name, so that cards don't move when a server is disabled.
    servers.sort((one, other) => one.name.localeCompare(other.name));
    for (const server of servers) this.#show(server);
    const cards = servers.map((server) => /** @type {ServerCard} */ (this.#cards.get(server.name)).element);
    if (cards.length === 0) replace(this.element, this.#emptyList());
    else if (
      cards.some((card, at) => this.element.children[at] !== card) ||
      cards.length !== this.element.children.length
    ) {
      this.element.replaceChildren(...cards);
    }
  }

  /** @param {Promise<{server: any}>} change a local change, resolving to the changed server */
  async #change(change) {
    this.#changes += 1;
    try {
      this.#show((await change).server);
    } finally {
      this.#changes += 1;
    }
  }

  /** @param {any} server */
  #show(server) {
    let card = this.#cards.get(server.name);
    if (!card) {
      card = new ServerCard(server.name, this.#context, (change) => this.#change(change));
      this.#cards.set(server.name, card);
    }
    card.show(server);
    this.#announceChange(server);
  }

  /** Announce when a server starts or stops running, except on first load. @param {any} server */
  #announceChange(server) {
    const before = this.#states.get(server.name);
    this.#states.set(server.name, server.state);
    const [was, is] = [before === "Running", server.state === "Running"];
    if (before && was !== is) announce(`${server.name} ${is ? "is running." : "is no longer running."}`);
  }

  #emptyList() {
    const lines = ADD_COMMANDS.map((command) => h("li", h("code", command), copyButton(command)));
    return emptyState({
      title: "No servers yet",
      text: "Add one on the server; it appears within seconds, without a restart.",
      actions: h("ul", {class: "command-lines"}, lines),
    });
  }
}
