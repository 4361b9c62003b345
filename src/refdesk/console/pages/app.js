// @ts-check
/** Console entry point: identifies the caller, draws the header, and shows the view for the URL. */

import {action, events, isAbort, reconnect, setKey, onUnreachable, onUnauthorized} from "./api.js";
import {showUnreachable} from "./away.js";
import {h, replace} from "./dom.js";
import {listenForShortcuts} from "./keyboard.js";
import {askForKey} from "./keydialog.js";
import {announce, confirm, emptyState, errorBox, pageHeader, spinner, toast} from "./widgets.js";
import {path, Router, findRoute} from "./router.js";
import {drawHeader} from "./shell.js";

const header = /** @type {HTMLElement} */ (document.getElementById("header"));
const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const ANONYMOUS = {user: "", tenant: "", roles: [], may_write: false, may_administer: false};

/** @type {any} */
let me = ANONYMOUS;
/** @type {{module: any, stop: AbortController} | null} */
let currentView = null;
const router = new Router(show);

onUnauthorized((error) => askForKey(error.message));
onUnreachable(() => showUnreachable(onReachable));
listenForShortcuts((address) => router.navigate(address));
start();

async function start() {
  drawHeader(header, headerState());
  replace(main, spinner("Loading"));
  // Preload the view while the caller is identified. Errors are reported when it is shown.
  findRoute(new URL(location.href))
    ?.load()
    .catch(() => {});
  try {
    me = await action("me");
  } catch (error) {
    replace(main, h("h1", {class: "unseen"}, "Refdesk"), errorBox(error, start));
    return;
  }
  await router.reload();
}

/** @param {URL} url */
async function show(url) {
  leave();
  const stop = new AbortController();
  const route = findRoute(url);
  currentView = {module: null, stop};
  drawHeader(header, headerState(route?.name));
  if (!route) return void draw(notFoundView(), "Not found");
  try {
    const module = await route.load();
    if (stop.signal.aborted) return;
    currentView.module = module;
    const context = contextFor(url, stop.signal);
    const title = typeof module.title === "function" ? module.title(context) : module.title;
    draw(await module.view(context), title, stop.signal);
  } catch (error) {
    if (!isAbort(error)) draw(errorView(error), "Something went wrong", stop.signal);
  }
}

/** @param {Element} element @param {string} title @param {AbortSignal} [signal] */
function draw(element, title, signal) {
  if (signal?.aborted) return;
  const hadFocus = document.activeElement !== document.body;
  document.title = `${title} · Refdesk`;
  replace(main, element);
  window.scrollTo(0, 0);
  announce(title);
  const first = /** @type {HTMLElement | null} */ (main.querySelector("[data-first-focus]"));
  if (first) first.focus({preventScroll: true});
  else if (hadFocus) main.focus({preventScroll: true});
}

function leave() {
  currentView?.stop.abort();
  currentView?.module?.leave?.();
  currentView = null;
}

/** @param {URL} url @param {AbortSignal} signal */
function contextFor(url, signal) {
  const query = url.searchParams;
  return {
    query,
    params: Object.fromEntries(query),
    me,
    signal,
    toast,
    confirm,
    navigate: router.navigate.bind(router),
    setQuery,
    events: (/** @type {Record<string, (data?: any) => void>} */ handlers) => {
      const close = events(handlers);
      signal.addEventListener("abort", close, {once: true});
      return close;
    },
  };
}

/** @param {Record<string, string | null | undefined>} changes @param {{push?: boolean}} [options] */
function setQuery(changes, {push = false} = {}) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(changes)) {
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
  if (url.href === location.href) return;
  if (push) history.pushState(null, "", url);
  else history.replaceState(null, "", url);
}

/** @param {string} [current] */
function headerState(current = "") {
  return {me, current, signIn, signOut};
}

async function signIn() {
  if (await askForKey()) await start();
}

async function signOut() {
  setKey(null);
  me = ANONYMOUS;
  leave();
  await start();
}

function onReachable() {
  toast("Connected again.", "good");
  reconnect();
  if (me === ANONYMOUS) start();
  else if (main.querySelector(".error-box[data-away=yes]")) router.reload();
}

function notFoundView() {
  const link = h("a", {class: "button", href: path("search")}, "Search the documents");
  return h("div", pageHeader("Page not found"), emptyState({title: "Check the URL", actions: link}));
}

/** @param {any} error */
function errorView(error) {
  console.error(error);
  return h(
    "div",
    pageHeader("Something went wrong"),
    errorBox(error, () => router.reload()),
  );
}
