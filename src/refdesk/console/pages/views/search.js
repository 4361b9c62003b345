// @ts-check
/** Search playground: a query, its results, and the tool call behind them. */

import {isAbort, tool} from "../api.js";
import {callPanel} from "../call.js";
import {h, replace} from "../dom.js";
import {milliseconds, number, plural} from "../format.js";
import {announce, errorBox, pageHeader, spinner} from "../widgets.js";
import {searchForm} from "./search/form.js";
import {firstSteps} from "./search/first.js";
import {listenForResultKeys, resultList} from "./search/results.js";
import {toArguments, toQuery, parseState} from "./search/state.js";

export const title = "Search";

const TOOL = "r2r_search";

/** @param {any} context */
export function view(context) {
  const search = new Search(context);
  return search.element;
}

class Search {
  /** @param {any} context */
  constructor(context) {
    this.context = context;
    /** @type {AbortController | null} */
    this.controller = null;
    this.form = searchForm(context, parseState(context.query), (state, isSubmitted) => this.run(state, isSubmitted));
    this.status = h("p", {class: "result-count", role: "status"});
    this.resultsArea = h("div", {class: "found"});
    this.panel = callPanel();
    this.panel.hidden = true;
    this.element = h(
      "div",
      {class: "search-page"},
      pageHeader("Search", "Run the search that an agent runs, and see its results."),
      this.form.element,
      h("div", {class: "search-columns"}, h("div", this.status, this.resultsArea), this.panel),
    );
    listenForResultKeys(this.element, this.form.field);
    const state = parseState(context.query);
    if (state.query) this.run(state, false);
    else this.showFirstSteps();
  }

  showFirstSteps() {
    this.controller?.abort();
    this.panel.hidden = true;
    this.element.classList.remove("has-call");
    replace(this.status);
    replace(
      this.resultsArea,
      firstSteps(this.context, (question) => this.form.ask(question)),
    );
  }

  /** @param {import("./search/state.js").State} state @param {boolean} isSubmitted not just typed */
  async run(state, isSubmitted) {
    this.context.setQuery(toQuery(state), {push: isSubmitted});
    if (!state.query.trim()) return this.showFirstSteps();
    this.controller?.abort();
    const controller = (this.controller = new AbortController());
    this.context.signal.addEventListener("abort", () => controller.abort(), {once: true});
    const args = toArguments(state);
    this.resultsArea.setAttribute("aria-busy", "true");
    if (!this.resultsArea.querySelector(".results")) replace(this.resultsArea, spinner("Searching"));
    try {
      const startedAt = performance.now();
      const answer = await tool(TOOL, args, {signal: controller.signal});
      this.show(state, args, answer, performance.now() - startedAt);
    } catch (error) {
      if (!isAbort(error)) this.showProblem(state, args, error);
    } finally {
      if (this.controller === controller) this.resultsArea.removeAttribute("aria-busy");
    }
  }

  /** @param {import("./search/state.js").State} state @param {any} args @param {any} answer @param {number} took */
  show(state, args, answer, took) {
    const {results, tokens, omitted, hint, cached} = answer.structuredContent;
    const facts = [
      plural(results.length, "passage"),
      milliseconds(took),
      `about ${number(tokens)} tokens`,
      omitted > 0 && `${number(omitted)} more omitted`,
      cached && "from the cache",
    ];
    replace(this.status, facts.filter(Boolean).join(" · "));
    announce(`${plural(results.length, "passage")} found`);
    replace(this.resultsArea, hint && h("p", {class: "hint"}, hint), resultList(results, state.query));
    this.showCall({tool: TOOL, args, answer});
  }

  /** @param {import("./search/state.js").State} state @param {any} args @param {any} error */
  showProblem(state, args, error) {
    replace(this.status);
    replace(
      this.resultsArea,
      errorBox(error, () => this.run(state, false)),
    );
    this.showCall({tool: TOOL, args, answer: error.data?.content ? error.data : {error: {message: error.message}}});
  }

  /** @param {any} call */
  showCall(call) {
    this.panel.show(call);
    this.panel.hidden = false;
    this.element.classList.add("has-call");
  }
}
