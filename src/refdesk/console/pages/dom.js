// @ts-check
/**
 * Element builders: the only way the console puts anything on the page.
 *
 *   h("button", {class: "button", on: {click: save}, disabled: busy, "aria-label": "Save"}, "Save", icon)
 *
 * Attributes
 *   class     a string, or a list whose falsy items are skipped
 *   on        {event: listener}
 *   data      {name: value}, as data-name
 *   css       {"--share": "40%"}, set through the style object (the CSP forbids inline styles)
 *   aria-*    true and false are written as "true" and "false"
 *   value, checked, disabled, selected, hidden, open, readOnly, multiple, indeterminate: set as properties
 *   href      kept only for http(s), mailto, anchors and paths of this site
 *   others    attributes; null, undefined and false omit it, true writes it without a value
 * Children are elements, strings, numbers or lists of these; null, undefined and false are skipped. The attributes are
 * optional. Text always becomes a text node, so document content is never parsed as HTML.
 *
 * `svg` builds SVG elements; `text` creates a text node; `clear` empties an element; `replace` replaces its children;
 * `newId` returns a unique element id.
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
const URL_ATTRIBUTES = new Set(["href", "src", "action", "formaction", "xlink:href"]);
const FORBIDDEN = /^(on.+|style|srcdoc|innerhtml|outerhtml)$/i;

/**
 * @param {string} tag
 * @param {Attributes | Child} [attributes]
 * @param {...Child} children
 * @returns {any} the element; `any` saves callers a cast
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
 * Return the URL if it is safe for a link, else null.
 * @param {unknown} value
 */
export function sanitizeUrl(value) {
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
  if (isAttributes(attributes))
    for (const [name, value] of Object.entries(attributes)) setAttribute(element, name, value);
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
function setAttribute(element, name, value) {
  if (name === "on") return addListeners(element, value);
  if (name === "data") return void Object.assign(element.dataset, value);
  if (name === "css") return setStyles(element, value);
  if (name === "class") return setClasses(element, value);
  if (FORBIDDEN.test(name)) throw new TypeError(`${name} is not set by h()`);
  if (PROPERTIES.has(name)) return void (element[name] = value);
  if (name.startsWith("aria-") && typeof value === "boolean") value = String(value);
  if (URL_ATTRIBUTES.has(name) && value != null) value = sanitizeUrl(value);
  if (value === null || value === undefined || value === false) return;
  element.setAttribute(name, value === true ? "" : String(value));
}

/** @param {Element} element @param {Record<string, EventListener>} listeners */
function addListeners(element, listeners) {
  for (const [event, listener] of Object.entries(listeners)) element.addEventListener(event, listener);
}

/** @param {HTMLElement} element @param {Record<string, string>} values */
function setStyles(element, values) {
  for (const [name, value] of Object.entries(values)) element.style.setProperty(name, value);
}

/** @param {Element} element @param {string | (string | false | null | undefined)[]} value */
function setClasses(element, value) {
  const names = Array.isArray(value) ? value.filter(Boolean).join(" ") : value;
  if (names) element.setAttribute("class", names);
}
