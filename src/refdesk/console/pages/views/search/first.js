// @ts-check
/** Search page before the first search: example questions, past searches, and how to add documents. */

import {action, ApiError, isAbort, resource} from "../../api.js";
import {h, replace} from "../../dom.js";
import {plural, time} from "../../format.js";
import {path} from "../../router.js";
import {button} from "../../widgets.js";

const MANUAL = "refdesk";
const EXAMPLES = [
  "How do I connect Claude Code?",
  "How do I require an API key?",
  "Which kinds of files can be converted?",
];
const HISTORY = "r2r://search/history";
const MAX_PAST = 5;

/** @param {any} context @param {(question: string) => void} ask */
export function firstSteps(context, ask) {
  const examples = h("div");
  const past = h("div");
  const refresh = () => showExamples(examples, context, ask);
  refresh();
  context.events({collections: refresh});
  showPast(past, context, ask);
  return h("div", {class: "first"}, examples, past);
}

/** @param {Element} place @param {any} context @param {(question: string) => void} ask */
async function showExamples(place, context, ask) {
  try {
    const {collections} = await action("collections", {}, {signal: context.signal});
    const hasManual = collections.some((/** @type {any} */ {id}) => id === MANUAL);
    const own = collections.filter((/** @type {any} */ {id}) => id !== MANUAL);
    replace(place, hasManual && questions(ask), hint(context, own));
  } catch (error) {
    // The collection picker loads the same list and reports the error.
    if (!isAbort(error) && !(error instanceof ApiError)) throw error;
  }
}

/** @param {(question: string) => void} ask */
function questions(ask) {
  const items = EXAMPLES.map((question) =>
    h(
      "li",
      button(question, () => ask(question), {kind: "quiet", icon: "search"}),
    ),
  );
  return h(
    "section",
    h("h2", "Try a question"),
    h("p", {class: "faint"}, "The manual answers these."),
    h("ul", {class: "examples"}, items),
  );
}

/** @param {any} context @param {any[]} own */
function hint(context, own) {
  const documents = own.reduce((sum, {documents}) => sum + documents, 0);
  const link = h("a", {href: path("documents")}, context.me.may_write ? "Add documents" : "Show documents");
  const summary =
    own.length === 0
      ? "Only the manual is indexed so far."
      : `${plural(documents, "document")} in ${plural(own.length, "collection")}.`;
  return h(
    "section",
    h("h2", "Your documents"),
    h("p", summary, " ", link, context.me.may_write && ": drop files, or enter a URL."),
  );
}

/** @param {Element} place @param {any} context @param {(question: string) => void} ask */
async function showPast(place, context, ask) {
  try {
    const past = JSON.parse(await resource(HISTORY, {signal: context.signal}));
    const own = past.filter((/** @type {any} */ {query}) => !EXAMPLES.includes(query));
    const seen = new Map(own.toReversed().map((/** @type {any} */ one) => [one.query, one]));
    const newest = [...seen.values()].toSorted((one, other) => (one.at < other.at ? 1 : -1)).slice(0, MAX_PAST);
    if (newest.length > 0)
      replace(
        place,
        h(
          "section",
          h("h2", "Past searches"),
          h(
            "ul",
            {class: "examples"},
            newest.map((one) => pastSearch(one, ask)),
          ),
        ),
      );
  } catch (error) {
    // Past searches are optional: they are hidden from callers who may not read them.
    if (!isAbort(error) && !(error instanceof ApiError)) throw error;
  }
}

/** @param {any} one @param {(question: string) => void} ask */
function pastSearch(one, ask) {
  const found = h("span", {class: "faint"}, plural(one.results, "passage"), ", ", time(one.at));
  return h(
    "li",
    button(one.query, () => ask(one.query), {kind: "quiet", icon: "retry"}),
    found,
  );
}
