// @ts-check
/**
 * Routes. URLs are /console/<name>?<query>; the search page has no name.
 *
 *   path(name, query)   URL for a link or for `navigate`: path("read", {id}), path("search")
 *   ROUTES              all views: name, loader and place in the navigation
 *
 * A view module exports {title, view(context) -> Element, leave?()}; `title` is a string or (context) => string.
 * context = {params, query, me, navigate, setQuery, toast, confirm, events, signal}:
 *   query      URLSearchParams of the URL; params is the same as a plain object
 *   navigate(address, {replace})   go to another URL
 *   setQuery({name: value | null}, {push}) change the view's URL without redrawing; `push` adds a history entry
 *   events(handlers)               as in api.js, closed when the view is left
 *   signal     aborted when the view is left: pass it to `tool` and `action`
 * When a view opens, focus goes to the element with data-first-focus, else to the view as a whole.
 */

/** Path the console is served from, including any proxy prefix. */
export const BASE = new URL(".", import.meta.url).pathname;

/**
 * @typedef {object} Route
 * @property {string} name
 * @property {string} label
 * @property {string} [key] shortcut after g
 * @property {boolean} [unlisted] not in the navigation
 * @property {(me: any) => boolean} [isVisible] whether to show it to this caller
 * @property {() => Promise<any>} load
 */

/** @type {Route[]} */
export const ROUTES = [
  {name: "search", label: "Search", key: "s", load: () => import("./views/search.js")},
  {name: "ask", label: "Ask", key: "a", load: () => import("./views/ask.js")},
  {name: "documents", label: "Documents", key: "d", load: () => import("./views/documents.js")},
  {name: "read", label: "Reader", unlisted: true, load: () => import("./views/reader.js")},
  {name: "servers", label: "Servers", key: "v", load: () => import("./views/servers.js")},
  {name: "activity", label: "Activity", key: "m", load: () => import("./views/activity.js")},
  {name: "keys", label: "Keys", key: "k", isVisible: (me) => me.may_administer, load: () => import("./views/keys.js")},
];

/** @param {string} name @param {Record<string, any>} [query] */
export function path(name, query = {}) {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") search.set(key, String(value));
  }
  const tail = search.size > 0 ? `?${search}` : "";
  return `${BASE}${name === "search" ? "" : name}${tail}`;
}

/** @param {URL} url @returns {Route | undefined} */
export function findRoute(url) {
  const name = url.pathname.slice(BASE.length).replace(/\/$/, "") || "search";
  return ROUTES.find((route) => route.name === name);
}

export class Router {
  /** @param {(url: URL) => Promise<void> | void} show */
  constructor(show) {
    this.show = show;
    window.addEventListener("popstate", () => this.reload());
    document.addEventListener("click", (event) => this.handleClick(event));
  }

  /** @param {string} address @param {{replace?: boolean}} [options] */
  navigate(address, {replace = false} = {}) {
    const url = new URL(address.replace(/^\/console\//, BASE), location.href);
    if (replace) history.replaceState(null, "", url);
    else history.pushState(null, "", url);
    return this.show(url);
  }

  reload() {
    return this.show(new URL(location.href));
  }

  /** @param {MouseEvent} event plain clicks on console links navigate without a page load */
  handleClick(event) {
    const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
    if (!(link instanceof HTMLAnchorElement) || !isPlainClick(event) || link.target || link.hasAttribute("download"))
      return;
    const url = new URL(link.href);
    if (url.origin !== location.origin || !url.pathname.startsWith(BASE) || isAnchor(url)) return;
    event.preventDefault();
    this.navigate(url.href);
  }
}

/** @param {MouseEvent} event */
function isPlainClick(event) {
  const hasModifier = event.metaKey || event.ctrlKey || event.shiftKey || event.altKey;
  return event.button === 0 && !hasModifier && !event.defaultPrevented;
}

/** @param {URL} url */
function isAnchor(url) {
  return url.hash !== "" && url.pathname === location.pathname && url.search === location.search;
}
