// @ts-check
/** Page header: brand, navigation, caller and theme switch. */

import {getKey} from "./api.js";
import {button} from "./buttons.js";
import {h, replace} from "./dom.js";
import {icon} from "./icons.js";
import {showShortcuts} from "./keyboard.js";
import {path, ROUTES} from "./router.js";
import {isDark, switchTheme} from "./theme.js";

/** @typedef {{me: any, current: string, signIn: () => void, signOut: () => void}} HeaderState */

/** @param {Element} header @param {HeaderState} state */
export function drawHeader(header, state) {
  const menu = h("div", {class: "menu", id: "menu"}, navigation(state), account(state));
  const open = button("Menu", () => toggleMenu(header, open), {
    icon: "menu",
    attributes: {class: "button button-quiet menu-button", "aria-expanded": false, "aria-controls": "menu"},
  });
  replace(header, h("div", {class: "brand-row"}, brand(), open), menu);
  header.classList.remove("menu-open");
}

/** @param {Element} header @param {HTMLElement} open */
function toggleMenu(header, open) {
  open.setAttribute("aria-expanded", String(header.classList.toggle("menu-open")));
}

function brand() {
  const mark = h("img", {src: `${path("search")}favicon.svg`, alt: "", width: "24", height: "24"});
  return h("a", {class: "brand", href: path("search")}, mark, "Refdesk");
}

/** @param {HeaderState} state */
function navigation({me, current}) {
  const visibleRoutes = ROUTES.filter((route) => !route.unlisted && (!route.isVisible || route.isVisible(me)));
  const items = visibleRoutes.map(({name, label}) =>
    h("li", h("a", {href: path(name), "aria-current": name === current ? "page" : null}, icon(name), label)),
  );
  return h("nav", {"aria-label": "Views"}, h("ul", items));
}

/** @param {HeaderState} state */
function account({me, signIn, signOut}) {
  return h(
    "div",
    {class: "account"},
    me.user && caller(me),
    h(
      "div",
      {class: "account-actions"},
      themeButton(),
      button("Shortcuts", showShortcuts, {kind: "quiet small", attributes: {"aria-keyshortcuts": "?"}}),
      getKey() ? button("Sign out", signOut, {kind: "quiet small", icon: "out"}) : null,
      !getKey() && me.has_keys ? button("Sign in", signIn, {kind: "quiet small", icon: "keys"}) : null,
    ),
    me.version && h("p", {class: "version"}, `Refdesk ${me.version}`),
  );
}

/** @param {any} me */
function caller(me) {
  const roles = (me.roles ?? []).join(", ");
  return h(
    "p",
    {class: "caller"},
    h("bdi", {class: "caller-name"}, me.user),
    h("span", {class: "faint"}, `tenant ${me.tenant}`, roles && ` · ${roles}`),
  );
}

function themeButton() {
  const label = () => (isDark() ? "Light" : "Dark");
  const labelElement = h("span", label());
  return button([icon("theme"), labelElement], () => (switchTheme(), replace(labelElement, label())), {
    kind: "quiet small",
    attributes: {title: "Switch between light and dark"},
  });
}
