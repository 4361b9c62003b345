// @ts-check
/** Rows of field, operator and value, and the filters that the tool takes: there and back. */

/** @typedef {{field: string, operator: string, value: string}} Row */

/** @type {[string, string][]} */
export const OPERATORS = [
  ["$eq", "is"],
  ["$ne", "is not"],
  ["$in", "is one of"],
  ["$nin", "is none of"],
  ["$contains", "contains"],
  ["$ilike", "is like (%)"],
  ["$gt", ">"],
  ["$gte", "≥"],
  ["$lt", "<"],
  ["$lte", "≤"],
];

const LISTS = new Set(["$in", "$nin"]);
const TEXTS = new Set([
  "title",
  "version",
  "media_type",
  "source",
  "collection_id",
  "document_id",
  "created_at",
  "updated_at",
  "status",
]);

/** @param {Row[]} rows @returns {Record<string, any> | null} */
export function fromRows(rows) {
  const filled = rows.filter(({field, value}) => field && field !== "metadata." && value !== "").map(condition);
  if (filled.length === 0) return null;
  const names = new Set(filled.map((one) => Object.keys(one)[0]));
  return names.size === filled.length ? Object.assign({}, ...filled) : {$and: filled};
}

/** @param {Record<string, any> | null} filters @returns {Row[] | null} null where rows cannot say it */
export function toRows(filters) {
  if (filters === null) return [];
  const parts = Array.isArray(filters.$and) && Object.keys(filters).length === 1 ? filters.$and : [filters];
  const rows = parts.flatMap((part) => Object.entries(part ?? {}).map(([field, test]) => row(field, test)));
  return rows.includes(null) ? null : /** @type {Row[]} */ (rows);
}

/** @param {Row} row */
function condition({field, operator, value}) {
  const parsed = LISTS.has(operator)
    ? value.split(",").map((part) => valueOf(field, part.trim()))
    : valueOf(field, value);
  return {[field]: operator === "$eq" ? parsed : {[operator]: parsed}};
}

/** @param {string} field @param {string} value numbers compare with numbers only; a quoted number is a text */
function valueOf(field, value) {
  if (TEXTS.has(field)) return value;
  if (value === "true" || value === "false") return value === "true";
  if (value !== "" && Number.isFinite(Number(value))) return Number(value);
  return value.replace(/^"(.*)"$/, "$1");
}

/** @param {string} field @param {any} test @returns {Row | null} */
function row(field, test) {
  if (field.startsWith("$")) return null;
  if (isPlain(test)) return {field, operator: "$eq", value: shown(field, test)};
  const [operator, value, ...more] = Object.entries(test ?? {})[0] ?? [];
  const known = OPERATORS.some(([name]) => name === operator) && Object.keys(test).length === 1 && more.length === 0;
  if (!known || !operator) return null;
  if (LISTS.has(operator)) return Array.isArray(value) && value.every(isPlain) ? list(field, operator, value) : null;
  return isPlain(value) ? {field, operator, value: shown(field, value)} : null;
}

/** @param {string} field @param {string} operator @param {any[]} values @returns {Row | null} */
function list(field, operator, values) {
  const parts = values.map((value) => shown(field, value));
  return parts.some((part) => part.includes(",")) ? null : {field, operator, value: parts.join(", ")};
}

/** @param {any} value */
function isPlain(value) {
  return ["string", "number", "boolean"].includes(typeof value);
}

/** @param {string} field @param {any} value */
function shown(field, value) {
  if (typeof value !== "string" || valueOf(field, value) === value) return String(value);
  return `"${value}"`;
}
