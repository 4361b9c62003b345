// @ts-check
/** Card of one downstream server: state, tools, pending approvals and log. */

import {action} from "../../api.js";
import {h, newId, replace} from "../../dom.js";
import {milliseconds, plural, time} from "../../format.js";
import {badge, button, details, toggle} from "../../widgets.js";
import {diff} from "./diff.js";
import {serverLog} from "./log.js";

/** @type {Record<string, [string, string]>} label and badge kind by state */
const STATES = {
  Running: ["Running", "good"],
  Starting: ["Starting", "info"],
  Error: ["Error", "bad"],
  Stopped: ["Stopped", "plain"],
};

/** @type {Record<string, [string, string]>} */
const BREAKERS = {
  closed: ["Closed: calls pass", "good"],
  half_open: ["Half-open: trial calls", "warn"],
  open: ["Open: calls are rejected", "bad"],
};

const FIXED_NOTE = "set in the configuration";
const APPROVAL_NOTE =
  "Until then, agents cannot call these tools. Look for instructions to the model, and approve here or with " +
  "`refdesk servers approve`.";

/** @typedef {{tool: string, sha256: string, is_new: boolean, reason: string, diff: string}} Held */

export class ServerCard {
  #context;
  #change;
  /** @type {any} */
  #server = null;
  /** @type {Map<Element, string>} */
  #rendered = new Map();

  /**
   * @param {string} name
   * @param {any} context of the view
   * @param {(changing: Promise<{server: any}>) => Promise<void>} change applies a local change
   */
  constructor(name, context, change) {
    this.name = name;
    this.#context = context;
    this.#change = change;
    const id = newId("server");
    this.head = h("div", {class: "server-head"});
    this.state = h("span", {class: "server-state"});
    this.control = h("div", {class: "server-control"});
    this.refresh = button("Refresh lists", () => this.#apply("refresh_server", {name}, `The lists of ${name} are current.`), {
      kind: "small",
      attributes: {"aria-label": `Refresh the lists of ${name}`},
    });
    this.facts = h("dl", {class: "server-facts"});
    this.off = h("p", {class: "faint"}, "Disabled: agents do not see its tools.");
    this.errorArea = h("div");
    this.held = h("div", {class: "server-held"});
    this.toolsHead = h("span");
    this.tools = h("ul", {class: "server-tools"});
    replace(this.head, h("h2", {id}, name), this.state, this.control);
    this.toolsFold = details(this.toolsHead, this.tools);
    this.log = context.me.may_administer ? serverLog(name, context.signal) : h("div");
    this.element = h(
      "article",
      {class: "server-card", "aria-labelledby": id},
      this.head,
      this.errorArea,
      this.held,
      this.off,
      this.facts,
      this.refresh,
      this.toolsFold,
      this.log,
    );
  }

  /** @param {any} server */
  show(server) {
    this.#server = server;
    const {enabled, state, transport, last_error: lastError, tools, held} = server;
    this.#redraw(this.state, [enabled, state, transport], () => stateBadges(server));
    this.#redraw(this.errorArea, [enabled, state, lastError], () => enabled && lastError && errorLine(server));
    this.#redraw(this.facts, server, () => factList(server));
    this.#redraw(this.toolsHead, tools.length, () => plural(tools.length, "tool"));
    this.#redraw(this.tools, tools, () => tools.map(toolLine));
    this.#redraw(this.held, held, () => held.length > 0 && this.#heldSection(held));
    this.facts.hidden = !enabled;
    this.refresh.hidden = !enabled || !this.#context.me.may_administer;
    this.off.hidden = enabled;
    this.toolsFold.hidden = tools.length === 0;
    this.log.hidden = transport !== "stdio";
    this.#drawControl();
  }

  /**
   * Redraw a part only if its data changed, to keep selection and focus.
   * @param {Element} part @param {any} of data it shows @param {() => import("../../dom.js").Child} draw
   */
  #redraw(part, of, draw) {
    const drawn = JSON.stringify(of);
    if (this.#rendered.get(part) === drawn) return;
    this.#rendered.set(part, drawn);
    replace(part, draw());
  }

  #drawControl() {
    const {enabled, can_change: canChange} = this.#server;
    if (!this.#context.me.may_administer) return;
    const existing = this.control.querySelector("input");
    if (existing) existing.checked = enabled;
    else
      this.#redraw(this.control, canChange, () =>
        canChange ? this.#enabledToggle(enabled) : h("span", {class: "faint"}, FIXED_NOTE),
      );
  }

  /** @param {boolean} enabled */
  #enabledToggle(enabled) {
    const label = ["Enabled", h("span", {class: "unseen"}, `: ${this.name}`)];
    return toggle(label, enabled, (on) =>
      this.#apply("set_server", {name: this.name, enabled: on}, `${this.name} is ${on ? "enabled" : "disabled"}.`),
    );
  }

  /** @param {Held[]} held */
  #heldSection(held) {
    const mayAdminister = this.#context.me.may_administer;
    return [
      h("h3", `${plural(held.length, "tool definition waits", "tool definitions wait")} for approval`),
      h("p", {class: "faint"}, APPROVAL_NOTE),
      held.map((one) => this.#heldTool(one, mayAdminister)),
      mayAdminister && held.length > 1 && h("div", {class: "row-actions"}, this.#decisionButtons(held, "all")),
    ];
  }

  /** @param {Held} one @param {boolean} mayAdminister */
  #heldTool(one, mayAdminister) {
    return h(
      "section",
      {class: "held-tool"},
      h("h4", h("code", one.tool), " is ", one.reason),
      diff(one.diff),
      mayAdminister && h("div", {class: "row-actions"}, this.#decisionButtons([one], one.tool)),
    );
  }

  /** @param {Held[]} held @param {string} target */
  #decisionButtons(held, target) {
    const all = held.length > 1 ? " all" : "";
    const of = (/** @type {string} */ verb) => ({"aria-label": `${verb} ${target} of ${this.name}`});
    return [
      button(`Approve${all}`, () => this.#decide(held, false), {
        kind: "primary small",
        icon: "check",
        attributes: of("Approve"),
      }),
      button(`Reject${all}`, () => this.#decide(held, true), {kind: "small", attributes: of("Reject")}),
    ];
  }

  /**
   * The hash ensures that the decision applies only to the definition that was shown.
   * @param {Held[]} held @param {boolean} reject
   */
  async #decide(held, reject) {
    for (const {tool, sha256} of held) {
      const done = reject ? `${tool} is rejected: agents cannot call it.` : `${tool} is approved: agents can call it.`;
      await this.#apply("approve", {name: this.name, tool, sha256, reject}, done);
    }
  }

  /** @param {string} name @param {object} params @param {string} done */
  async #apply(name, params, done) {
    try {
      await this.#change(action(name, params));
      this.#context.toast(done, "good");
    } catch (error) {
      this.#context.toast(/** @type {Error} */ (error).message, "bad");
      this.show(this.#server);
    }
  }
}

/** @param {any} server */
function stateBadges({enabled, state, transport}) {
  const [label, kind] = enabled ? (STATES[state] ?? [state, "plain"]) : ["Disabled", "plain"];
  return [badge(label, kind), h("span", {class: "faint"}, transport)];
}

/** @param {any} server */
function errorLine({state, last_error: lastError}) {
  return h("p", {class: "server-error"}, state === "Running" && "Last error: ", lastError);
}

/** @param {any} server */
function factList(server) {
  const facts = [
    ["Provides", formatOffers(server)],
    ["Latency", formatLatency(server)],
    ["In flight", plural(server.in_flight, "call")],
    ["Breaker", breakerBadge(server)],
    ["In this state", server.since ? time(server.since) : "–"],
  ];
  return facts.map(([name, value]) => h("div", h("dt", name), h("dd", value)));
}

/** @param {any} server */
function formatOffers({tools, resources, prompts}) {
  const more = [resources > 0 && plural(resources, "resource"), prompts > 0 && plural(prompts, "prompt")];
  return [plural(tools.length, "tool"), ...more].filter(Boolean).join(", ");
}

/** @param {any} server */
function formatLatency({latency}) {
  if (!latency) return "no call yet";
  return `p50 ${milliseconds(latency.p50_ms ?? 0)} · p95 ${milliseconds(latency.p95_ms ?? 0)}`;
}

/** @param {any} server */
function breakerBadge({breaker}) {
  const [label, kind] = BREAKERS[breaker.state] ?? [breaker.state, "plain"];
  return [badge(label, kind), formatRetry(breaker)];
}

/** @param {any} tool */
function toolLine({name, exposed, title, description}) {
  return h(
    "li",
    h(
      "p",
      h("code", exposed),
      !exposed.endsWith(name) && h("span", {class: "faint"}, ` (the server calls it ${name})`),
    ),
    title && title !== name && h("p", {class: "server-tool-title"}, title),
    description && h("p", {class: "faint"}, description),
  );
}

/** @param {any} breaker */
function formatRetry(breaker) {
  if (breaker.state !== "open") return null;
  const seconds = Math.ceil(breaker.retry_after ?? 0);
  return seconds > 0 ? `, next attempt in ${seconds} s` : ", next attempt with the next call";
}
