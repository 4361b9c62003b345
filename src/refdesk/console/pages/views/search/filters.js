// @ts-check
/**
 * Metadata filter editor: rows of field, operator and value, or raw JSON for what rows can't express.
 * `filterEditor(filters, onChange)` returns {element, value(), isValid()}.
 */

import {h, newId, replace} from "../../dom.js";
import {button, field, select} from "../../widgets.js";
import {fromRows, OPERATORS, toRows} from "./conditions.js";

const FIELDS = ["title", "version", "document_type", "media_type", "size_bytes", "created_at", "updated_at", "source", "metadata."];

/** @param {Record<string, any> | null} filters @param {() => void} onChange */
export function filterEditor(filters, onChange) {
  const editor = new FilterEditor(filters, onChange);
  return {element: editor.element, value: () => editor.value(), isValid: () => editor.isValid()};
}

class FilterEditor {
  /** @param {Record<string, any> | null} filters @param {() => void} onChange */
  constructor(filters, onChange) {
    this.onChange = onChange;
    const rows = toRows(filters);
    this.raw = rows === null;
    this.list = h("div", {class: "filter-rows"});
    this.problem = h("p", {class: "field-error", role: "alert"});
    const change = () => this.handleChange();
    this.json = h("textarea", {class: "input", rows: "4", spellcheck: "false", on: {change}});
    this.json.value = filters ? JSON.stringify(filters, null, 2) : "";
    this.fieldList = h(
      "datalist",
      {id: newId("fields")},
      FIELDS.map((value) => h("option", {value})),
    );
    for (const row of rows ?? []) this.addRow(row);
    this.count = h("span", {class: "filter-count"});
    this.body = h("div", {class: "filter-body"});
    this.element = h(
      "details",
      {class: "fold filters", open: filters !== null},
      h("summary", "Filters", this.count),
      this.body,
    );
    this.draw();
  }

  draw() {
    const add = button("Add a condition", () => this.addRow()?.querySelector("input")?.focus(), {
      kind: "small",
      icon: "plus",
    });
    const modeButton = button(this.raw ? "Edit as rows" : "Edit as JSON", () => this.toggleMode(), {
      kind: "small quiet",
    });
    const hint = "All conditions must match. Other names refer to metadata, such as metadata.team.";
    replace(
      this.body,
      this.fieldList,
      this.raw
        ? field(
            "Filters as JSON",
            this.json,
            'For example {"$or": [{"version": "15"}, {"metadata.lang": {"$in": ["en"]}}]}',
          )
        : [h("p", {class: "field-hint"}, hint), this.list],
      this.problem,
      h("div", {class: "filter-actions"}, !this.raw && add, modeButton),
    );
    this.updateCount();
  }

  toggleMode() {
    if (!this.isValid()) return;
    const filters = this.value();
    if (this.raw) {
      const rows = toRows(filters);
      if (rows === null) return void replace(this.problem, "Nested filters can only be edited as JSON.");
      replace(this.list);
      for (const row of rows) this.addRow(row);
    } else {
      this.json.value = filters ? JSON.stringify(filters, null, 2) : "";
    }
    this.raw = !this.raw;
    this.draw();
  }

  /** @param {import("./conditions.js").Row} [row] */
  addRow(row = {field: "", operator: "$eq", value: ""}) {
    const change = () => this.handleChange();
    const name = h("input", {
      class: "input",
      value: row.field,
      placeholder: "field",
      "aria-label": "Field",
      on: {change},
    });
    name.setAttribute("list", this.fieldList.id);
    const operator = select(OPERATORS, row.operator, {"aria-label": "Operator", on: {change}});
    const value = h("input", {
      class: "input",
      value: row.value,
      placeholder: "value",
      "aria-label": "Value",
      on: {change},
    });
    const remove = button("", () => (rowElement.remove(), this.handleChange()), {
      icon: "close",
      attributes: {class: "button button-quiet", "aria-label": "Remove this condition"},
    });
    const rowElement = h(
      "div",
      {class: "filter-row", role: "group", "aria-label": "Condition"},
      name,
      operator,
      value,
      remove,
    );
    rowElement.read = () => ({field: name.value.trim(), operator: operator.value, value: value.value});
    this.list.append(rowElement);
    return rowElement;
  }

  handleChange() {
    this.updateCount();
    if (this.isValid()) this.onChange();
  }

  updateCount() {
    const filters = this.isValid() ? this.value() : null;
    replace(this.count, filters ? ` (${Object.keys(filters).length})` : "");
  }

  /** @returns {Record<string, any> | null} */
  value() {
    if (!this.raw) return fromRows([...this.list.children].map((row) => /** @type {any} */ (row).read()));
    return this.json.value.trim() ? JSON.parse(this.json.value) : null;
  }

  isValid() {
    const problem = this.raw ? validateJson(this.json.value) : "";
    replace(this.problem, problem);
    this.json.setAttribute("aria-invalid", String(problem !== ""));
    return problem === "";
  }
}

/** @param {string} source */
function validateJson(source) {
  if (!source.trim()) return "";
  try {
    const value = JSON.parse(source);
    if (value && typeof value === "object" && !Array.isArray(value)) return "";
    return "Filters must be a JSON object.";
  } catch (error) {
    return `Invalid JSON: ${/** @type {Error} */ (error).message}`;
  }
}
