// @ts-check
/** Ask view: an answer from the documents, with the passages it is based on. */

import {isAbort, tool} from "../api.js";
import {callPanel} from "../call.js";
import {collectionSelect} from "../collections.js";
import {h, replace} from "../dom.js";
import {announce, button, errorBox, field, pageHeader, spinner} from "../widgets.js";
import {drawAnswer} from "./ask/answer.js";

export const title = "Ask";

const TOOL = "r2r_rag_query";

/** @param {any} context */
export function view(context) {
  return new Ask(context).element;
}

class Ask {
  /** @param {any} context */
  constructor(context) {
    this.context = context;
    /** @type {AbortController | null} */
    this.controller = null;
    this.question = h("textarea", {
      class: "input question",
      rows: "2",
      maxlength: "1000",
      placeholder: "How do I …?",
      required: true,
      data: {firstFocus: ""},
      on: {keydown: (/** @type {KeyboardEvent} */ event) => this.sendOnEnter(event)},
    });
    this.question.value = context.params.q ?? "";
    this.collection = collectionSelect(context, context.params.collection ?? "", () => {});
    this.answer = h("div", {class: "answer-place"});
    this.panel = callPanel();
    this.panel.hidden = true;
    const send = button("Ask", () => {}, {kind: "primary", type: "submit"});
    const submit = (/** @type {Event} */ event) => (event.preventDefault(), this.ask());
    this.element = h(
      "div",
      {class: "ask"},
      pageHeader("Ask", "Answers come only from the indexed documents."),
      h(
        "form",
        {class: "ask-form", on: {submit}},
        field("Question", this.question),
        h("div", {class: "ask-line"}, field("Collection", this.collection), send),
      ),
      this.answer,
      this.panel,
    );
    if (this.question.value) this.ask();
  }

  /** @param {KeyboardEvent} event */
  sendOnEnter(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.ask();
  }

  async ask() {
    const question = this.question.value.trim();
    if (!question) return;
    const collection = this.collection.value;
    this.context.setQuery({q: question, collection}, {push: true});
    this.controller?.abort();
    const controller = (this.controller = new AbortController());
    this.context.signal.addEventListener("abort", () => controller.abort(), {once: true});
    const args = {question, ...(collection ? {collection_id: collection} : {})};
    replace(this.answer, spinner("Looking for an answer"));
    try {
      const answer = await tool(TOOL, args, {signal: controller.signal});
      replace(this.answer, drawAnswer(answer.structuredContent, question));
      announce(answer.structuredContent.found ? "Answer ready" : "No answer found in your documents");
      this.showCall({tool: TOOL, args, answer});
    } catch (error) {
      if (!isAbort(error))
        replace(
          this.answer,
          errorBox(error, () => this.ask()),
        );
    }
  }

  /** @param {any} call */
  showCall(call) {
    this.panel.show(call);
    this.panel.hidden = false;
  }
}
