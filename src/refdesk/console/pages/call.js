// @ts-check
/**
 * "The call": what the console has just sent, ready to paste. `callPanel(tool, args)` is an element with `.show(call)`;
 * `asCurl`, `asJson` and `asPython` make the texts. The key is never in them, only the name of a variable for it.
 */

import {getKey} from "./api.js";
import {copyButton} from "./buttons.js";
import {h, replace} from "./dom.js";
import {tabs} from "./tabs.js";

/** @typedef {{tool: string, args: Record<string, any>, answer?: any}} Call */

const CHOSEN = "refdesk.call.tab";

/** @param {string} tool */
function address(tool) {
  return new URL(`../api/tools/${tool}`, import.meta.url).href;
}

/** @param {string} text @returns {string} one word for any POSIX shell */
export function shellQuoted(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** @param {Call} call */
export function asCurl({tool, args}) {
  const parts = [
    `curl -sS ${shellQuoted(address(tool))}`,
    getKey() && `-H "Authorization: Bearer $REFDESK_KEY"`,
    `-H 'Content-Type: application/json'`,
    `-d ${shellQuoted(JSON.stringify(args))}`,
  ];
  return parts.filter(Boolean).join(" \\\n  ");
}

/** @param {Call} call the params of MCP's tools/call */
export function asJson({tool, args}) {
  return JSON.stringify({name: tool, arguments: args}, null, 2);
}

/** @param {Call} call with nothing but the standard library */
export function asPython({tool, args}) {
  const headers = [`"Content-Type": "application/json"`];
  if (getKey()) headers.push(`"Authorization": f"Bearer {os.environ['REFDESK_KEY']}"`);
  return [
    "import json",
    getKey() && "import os",
    "import urllib.request",
    "",
    `arguments = ${pythonLiteral(args)}`,
    "request = urllib.request.Request(",
    `    ${JSON.stringify(address(tool))},`,
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

/** @param {any} value @returns {string} a text in JSON is a text in Python as well; the three constants are not */
function pythonLiteral(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonLiteral).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  const items = Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${pythonLiteral(item)}`);
  return `{${items.join(", ")}}`;
}

/** @returns {HTMLElement & {show: (call: Call) => void}} */
export function callPanel() {
  const made = {curl: asCurl, json: asJson, python: asPython};
  /** @type {Record<string, any>} */
  const shown = {};
  for (const name of [...Object.keys(made), "raw"]) shown[name] = h("code");
  const part = (/** @type {string} */ name, /** @type {string} */ label) => codeWithCopy(shown[name], label);
  const body = tabs(
    "The call as",
    [
      ["curl", "curl", part("curl", "curl command")],
      ["json", "JSON", part("json", "JSON of the call")],
      ["python", "Python", part("python", "Python program")],
      ["raw", "Raw answer", part("raw", "Raw answer")],
    ],
    {selected: sessionStorage.getItem(CHOSEN) ?? "curl", onChange: (name) => sessionStorage.setItem(CHOSEN, name)},
  );
  const panel = h("section", {class: "call", "aria-label": "The call"}, h("h2", "The call"), body);
  panel.show = (/** @type {Call} */ call) => {
    for (const [name, make] of Object.entries(made)) replace(shown[name], make(call));
    replace(shown.raw, call.answer ? JSON.stringify(call.answer, null, 2) : "No answer yet.");
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
