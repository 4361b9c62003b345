// @ts-check
/**
 * Panel with the call that the console just made, ready to paste. `callPanel()` is an element with `.show(call)`;
 * `toCurl`, `toJson` and `toPython` format the call. The key is never included, only the name of its variable.
 */

import {getKey} from "./api.js";
import {copyButton} from "./buttons.js";
import {h, replace} from "./dom.js";
import {tabs} from "./tabs.js";

/** @typedef {{tool: string, args: Record<string, any>, answer?: any}} Call */

const TAB_KEY = "refdesk.call.tab";

/** @param {string} tool */
function toolUrl(tool) {
  return new URL(`../api/tools/${tool}`, import.meta.url).href;
}

/** @param {string} text @returns {string} a single word in any POSIX shell */
export function quoteForShell(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** @param {Call} call */
export function toCurl({tool, args}) {
  const parts = [
    `curl -sS ${quoteForShell(toolUrl(tool))}`,
    getKey() && `-H "Authorization: Bearer $REFDESK_KEY"`,
    `-H 'Content-Type: application/json'`,
    `-d ${quoteForShell(JSON.stringify(args))}`,
  ];
  return parts.filter(Boolean).join(" \\\n  ");
}

/** @param {Call} call as params of MCP's tools/call */
export function toJson({tool, args}) {
  return JSON.stringify({name: tool, arguments: args}, null, 2);
}

/** @param {Call} call as a program that needs only the standard library */
export function toPython({tool, args}) {
  const headers = [`"Content-Type": "application/json"`];
  if (getKey()) headers.push(`"Authorization": f"Bearer {os.environ['REFDESK_KEY']}"`);
  return [
    "import json",
    getKey() && "import os",
    "import urllib.request",
    "",
    `arguments = ${toPythonLiteral(args)}`,
    "request = urllib.request.Request(",
    `    ${JSON.stringify(toolUrl(tool))},`,
    "    data=json.dumps(arguments).encode(),",
    `    headers={${headers.join(", ")}},`,
    ")",
    "with urllib.request.urlopen(request) as response:",
    "    answer = json.load(response)",
    `print(answer["content"][0]["text"])`,
  ]
    .filter((line) => typeof line === "string")
    .join("\n");
}

/** @param {any} value @returns {string} JSON strings are valid Python; the three constants aren't */
function toPythonLiteral(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(toPythonLiteral).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  const items = Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${toPythonLiteral(item)}`);
  return `{${items.join(", ")}}`;
}

/** @returns {HTMLElement & {show: (call: Call) => void}} */
export function callPanel() {
  const formatters = {curl: toCurl, json: toJson, python: toPython};
  /** @type {Record<string, any>} */
  const codeElements = {};
  for (const name of [...Object.keys(formatters), "raw"]) codeElements[name] = h("code");
  const part = (/** @type {string} */ name, /** @type {string} */ label) => codeWithCopy(codeElements[name], label);
  const body = tabs(
    "The call as",
    [
      ["curl", "curl", part("curl", "curl command")],
      ["json", "JSON", part("json", "JSON of the call")],
      ["python", "Python", part("python", "Python program")],
      ["raw", "Raw response", part("raw", "Raw response")],
    ],
    {selected: sessionStorage.getItem(TAB_KEY) ?? "curl", onChange: (name) => sessionStorage.setItem(TAB_KEY, name)},
  );
  const panel = h("section", {class: "call", "aria-label": "The call"}, h("h2", "The call"), body);
  panel.show = (/** @type {Call} */ call) => {
    for (const [name, make] of Object.entries(formatters)) replace(codeElements[name], make(call));
    replace(codeElements.raw, call.answer ? JSON.stringify(call.answer, null, 2) : "No response yet.");
  };
  return panel;
}

/** @param {Element} code @param {string} label */
function codeWithCopy(code, label) {
  const frame = h("pre", {class: "call-text", tabindex: "0", role: "group", "aria-label": label}, code);
  return h(
    "div",
    {class: "call-part"},
    frame,
    copyButton(() => code.textContent ?? ""),
  );
}
