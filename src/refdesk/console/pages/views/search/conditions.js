// @ts-check
/** Converts between filter rows (field, operator, value) and the tool's filters. */

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

const LIST_OPERATORS = new Set(["$in", "$nin"]);
const TEXT_FIELDS = new Set([
  "title",
  "version",
  "document_type",
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
  const conditions = rows.filter(({field, value}) => field && field !== "metadata." && value !== "").map(toCondition);
  if (conditions.length === 0) return null;
  const names = new Set(conditions.map((one) => Object.keys(one)[0]));
  return names.size === conditions.length ? Object.assign({}, ...conditions) : {$and: conditions};
}

/** @param {Record<string, any> | null} filters @returns {Row[] | null} null if rows can't express it */
export function toRows(filters) {
  if (filters === null) return [];
  const parts = Array.isArray(filters.$and) && Object.keys(filters).length === 1 ? filters.$and : [filters];
  const rows = parts.flatMap((part) => Object.entries(part ?? {}).map(([field, test]) => toRow(field, test)));
  return rows.includes(null) ? null : /** @type {Row[]} */ (rows);
}

/** @param {Row} toRow */
function toCondition({field, operator, value}) {
  const parsed = LIST_OPERATORS.has(operator)
    ? value.split(",").map((part) => parseValue(field, part.trim()))
    : parseValue(field, value);
  return {[field]: operator === "$eq" ? parsed : {[operator]: parsed}};
}

/** @param {string} field @param {string} value numbers only match numbers; a quoted number is text */
function parseValue(field, value) {
  if (TEXT_FIELDS.has(field)) return value;
  if (value === "true" || value === "false") return value === "true";
  if (value !== "" && Number.isFinite(Number(value))) return Number(value);
  return value.replace(/^"(.*)"$/, "$1");
}

/** @param {string} field @param {any} test @returns {Row | null} */
function toRow(field, test) {
  if (field.startsWith("$")) return null;
  if (isScalar(test)) return {field, operator: "$eq", value: formatValue(field, test)};
  const [operator, value, ...more] = Object.entries(test ?? {})[0] ?? [];
  const isKnown = OPERATORS.some(([name]) => name === operator) && Object.keys(test).length === 1 && more.length === 0;
  if (!isKnown || !operator) return null;
  if (LIST_OPERATORS.has(operator))
    return Array.isArray(value) && value.every(isScalar) ? toListRow(field, operator, value) : null;
  return isScalar(value) ? {field, operator, value: formatValue(field, value)} : null;
}

/** @param {string} field @param {string} operator @param {any[]} values @returns {Row | null} */
function toListRow(field, operator, values) {
  const parts = values.map((value) => formatValue(field, value));
  return parts.some((part) => part.includes(",")) ? null : {field, operator, value: parts.join(", ")};
}

/** @param {any} value */
function isScalar(value) {
  return ["string", "number", "boolean"].includes(typeof value);
}

/** @param {string} field @param {any} value */
function formatValue(field, value) {
  if (typeof value !== "string" || parseValue(field, value) === value) return String(value);
  return `"${value}"`;
}
