// @ts-check
/**
 * Which view an address shows. Addresses are /console/<name>?<query>; the search page has no name.
 *
 *   path(name, query)   an address for a link or for `navigate`: path("read", {id}), path("search")
 *   ROUTES              every view: its name, what loads it, and its place in the navigation
 *
 * A view module exports {title, view(context) -> Element, leave?()}; `title` is a string or (context) => string.
 * context = {params, query, me, navigate, setQuery, toast, confirm, events, signal}:
 *   query      URLSearchParams of the address; params is the same as a plain object
 *   navigate(address, {replace})   goes to another address
 *   setQuery({name: value | null}, {push}) changes the address of this view without drawing it anew; `push` makes it
 *              a step that the browser's back button undoes
 *   events(handlers)               as in api.js, and closed by itself when the view is left
 *   signal     aborted when the view is left: give it to `tool` and `action`
 * What has the focus when a view opens: an element with data-first-focus, or else the view as a whole.
 */

/** The folder the console is served from, whatever a proxy in front of it has put before. */
export const BASE = new URL(".", import.meta.url).pathname;

/**
 * @typedef {object} Route
 * @property {string} name
 * @property {string} label
 * @property {string} [key] goes there after g
 * @property {boolean} [unlisted] not in the navigation
 * @property {(me: any) => boolean} [shown] whether this caller has a use for it
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
  {name: "keys", label: "Keys", key: "k", shown: (me) => me.may_administer, load: () => import("./views/keys.js")},
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
export function routeOf(url) {
  const name = url.pathname.slice(BASE.length).replace(/\/$/, "") || "search";
  return ROUTES.find((route) => route.name === name);
}

export class Router {
  /** @param {(url: URL) => Promise<void> | void} show */
  constructor(show) {
    this.show = show;
    window.addEventListener("popstate", () => this.reload());
    document.addEventListener("click", (event) => this.follow(event));
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

  /** @param {MouseEvent} event a plain click on a link within the console needs no new page */
  follow(event) {
    const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
    if (!(link instanceof HTMLAnchorElement) || !isPlain(event) || link.target || link.hasAttribute("download")) return;
    const url = new URL(link.href);
    if (url.origin !== location.origin || !url.pathname.startsWith(BASE) || isAnchor(url)) return;
    event.preventDefault();
    this.navigate(url.href);
  }
}

/** @param {MouseEvent} event */
function isPlain(event) {
  const held = event.metaKey || event.ctrlKey || event.shiftKey || event.altKey;
  return event.button === 0 && !held && !event.defaultPrevented;
}

/** @param {URL} url */
function isAnchor(url) {
  return url.hash !== "" && url.pathname === location.pathname && url.search === location.search;
}
