// @ts-check
/** The MCP servers behind the desk. They are added and removed by `refdesk servers`, on purpose not from here. */

import {action} from "../api.js";
import {h, replace} from "../dom.js";
import {announce, copyButton, emptyState, errorBox, pageHeader, spinner} from "../widgets.js";
import {ServerCard} from "./servers/card.js";

export const title = "Servers";

/** Milliseconds between looks: latency and calls in flight change without an event. */
const FRESH_MS = 5000;

const ADDING = [
  "refdesk servers add NAME -- COMMAND …",
  "refdesk servers add NAME https://…/mcp",
  "refdesk servers import",
];

/** @param {any} context */
export function view(context) {
  const list = new ServerList(context);
  context.events({servers: () => list.load(), open: () => list.load()});
  const timer = setInterval(() => document.hidden || list.load(), FRESH_MS);
  context.signal.addEventListener("abort", () => clearInterval(timer));
  const lead = "MCP servers whose tools agents reach through this desk.";
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
      // What was asked for before a change from here says how things were: it would turn a switch back.
      if (changes === this.#changes) this.#take(servers);
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
  #take(servers) {
    // By name, so that none moves when it is switched off.
    servers.sort((one, other) => one.name.localeCompare(other.name));
    for (const server of servers) this.#show(server);
    const cards = servers.map((server) => /** @type {ServerCard} */ (this.#cards.get(server.name)).element);
    if (cards.length === 0) replace(this.element, this.#nothing());
    else if (
      cards.some((card, at) => this.element.children[at] !== card) ||
      cards.length !== this.element.children.length
    ) {
      this.element.replaceChildren(...cards);
    }
  }

  /** @param {Promise<{server: any}>} changing a change from here, with how the server is afterwards */
  async #change(changing) {
    this.#changes += 1;
    try {
      this.#show((await changing).server);
    } finally {
      this.#changes += 1;
    }
  }

  /** @param {any} server */
  #show(server) {
    let card = this.#cards.get(server.name);
    if (!card) {
      card = new ServerCard(server.name, this.#context, (changing) => this.#change(changing));
      this.#cards.set(server.name, card);
    }
    card.show(server);
    this.#tell(server);
  }

  /** Say when a server has come or gone; not at the first look. @param {any} server */
  #tell(server) {
    const before = this.#states.get(server.name);
    this.#states.set(server.name, server.state);
    const [was, is] = [before === "Running", server.state === "Running"];
    if (before && was !== is) announce(`${server.name} ${is ? "runs." : "does not run any more."}`);
  }

  #nothing() {
    const lines = ADDING.map((command) => h("li", h("code", command), copyButton(command)));
    return emptyState({
      title: "No servers yet",
      text: "Add one on the machine of the desk; it is here within seconds, without a restart.",
      actions: h("ul", {class: "command-lines"}, lines),
    });
  }
}
