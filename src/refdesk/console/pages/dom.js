// @ts-check
/**
 * Elements made of names, attributes and text: the only way the console puts anything on the page.
 *
 *   h("button", {class: "button", on: {click: save}, disabled: busy, "aria-label": "Save"}, "Save", icon)
 *
 * Attributes
 *   class     a string, or a list whose false parts are left out
 *   on        {event: listener}
 *   data      {name: value}, as data-name
 *   css       {"--share": "40%"}, set through the style object (inline styles are refused by the page's policy)
 *   aria-*    true and false are written out as words
 *   value, checked, disabled, selected, hidden, open, readOnly, multiple, indeterminate: set as properties
 *   href      kept only when it leads to http(s), mailto, an anchor or a path of this site; else left out
 *   others    attributes; null, undefined and false leave one out, true writes it without a value
 * Children are elements, strings, numbers, lists of these; null, undefined and false are left out. The attributes may
 * be left out as well. Text always becomes a text node, so whatever a document holds stays text.
 *
 * `svg` does the same for drawings; `text` makes a text node; `clear` empties an element; `replace` gives it new
 * children; `newId` makes an id that no other element has.
 */

/** @typedef {Node | string | number | null | undefined | false} Leaf */
/** @typedef {Leaf | any[]} Child */
/** @typedef {Record<string, any>} Attributes */

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set([
  "value",
  "checked",
  "disabled",
  "selected",
  "hidden",
  "open",
  "readOnly",
  "multiple",
  "indeterminate",
]);
const ADDRESSES = new Set(["href", "src", "action", "formaction", "xlink:href"]);
const REFUSED = /^(on.+|style|srcdoc|innerhtml|outerhtml)$/i;

/**
 * @param {string} tag
 * @param {Attributes | Child} [attributes]
 * @param {...Child} children
 * @returns {any} the element; `any`, so that a caller need not say which kind it asked for
 */
export function h(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

/**
 * @param {string} tag
 * @param {Attributes | Child} [attributes]
 * @param {...Child} children
 * @returns {any}
 */
export function svg(tag, attributes, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

let lastId = 0;

/** @param {string} [prefix] */
export function newId(prefix = "id") {
  lastId += 1;
  return `${prefix}-${lastId}`;
}

/** @param {unknown} value */
export function text(value) {
  return document.createTextNode(String(value));
}

/** @param {Element} element */
export function clear(element) {
  element.replaceChildren();
  return element;
}

/**
 * @param {Element} element
 * @param {...Child} children
 */
export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/**
 * An address that may stand in a link, or null.
 * @param {unknown} value
 */
export function safeAddress(value) {
  const address = String(value).trim();
  if (address.startsWith("#") || /^\/(?![/\\])/.test(address)) return address;
  return /^(https?:\/\/|mailto:)/i.test(address) ? address : null;
}

/**
 * @param {HTMLElement | SVGElement} element
 * @param {Attributes | Child} attributes
 * @param {Child[]} children
 */
function build(element, attributes, children) {
  if (isAttributes(attributes)) for (const [name, value] of Object.entries(attributes)) set(element, name, value);
  else children = [/** @type {Child} */ (attributes), ...children];
  append(element, children);
  return element;
}

/**
 * @param {unknown} value
 * @returns {value is Attributes}
 */
function isAttributes(value) {
  return typeof value === "object" && value !== null && !(value instanceof Node) && !Array.isArray(value);
}

/**
 * @param {Element} parent
 * @param {Child[]} children
 */
function append(parent, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(parent, child);
    else parent.append(child instanceof Node ? child : text(child));
  }
}

/**
 * @param {any} element
 * @param {string} name
 * @param {any} value
 */
function set(element, name, value) {
  if (name === "on") return listen(element, value);
  if (name === "data") return void Object.assign(element.dataset, value);
  if (name === "css") return styles(element, value);
  if (name === "class") return classes(element, value);
  if (REFUSED.test(name)) throw new TypeError(`${name} is not set by h()`);
  if (PROPERTIES.has(name)) return void (element[name] = value);
  if (name.startsWith("aria-") && typeof value === "boolean") value = String(value);
  if (ADDRESSES.has(name) && value != null) value = safeAddress(value);
  if (value === null || value === undefined || value === false) return;
  element.setAttribute(name, value === true ? "" : String(value));
}

/** @param {Element} element @param {Record<string, EventListener>} listeners */
function listen(element, listeners) {
  for (const [event, listener] of Object.entries(listeners)) element.addEventListener(event, listener);
}

/** @param {HTMLElement} element @param {Record<string, string>} values */
function styles(element, values) {
  for (const [name, value] of Object.entries(values)) element.style.setProperty(name, value);
}

/** @param {Element} element @param {string | (string | false | null | undefined)[]} value */
function classes(element, value) {
  const names = Array.isArray(value) ? value.filter(Boolean).join(" ") : value;
  if (names) element.setAttribute("class", names);
}
