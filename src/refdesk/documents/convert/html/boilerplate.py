"""Boilerplate of web pages: navigation, sidebars, edit links, permalinks, banners, hidden elements."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from selectolax.lexbor import LexborNode

Attributes = Mapping[str, str | None]

_EXCLUDED_TAGS = frozenset(
    """head script style noscript template svg canvas iframe frame object embed applet audio video map nav button input
    select textarea datalist progress meter dialog link meta rp""".split()
)

_EXCLUDED_CLASSES = frozenset(
    """navheader navfooter related sphinxsidebar sphinxsidebarwrapper wy-nav-side wy-nav-top wy-breadcrumbs rst-versions
    rst-footer-buttons rst-breadcrumbs-buttons breadcrumb breadcrumbs nav-panel prev-next-area prev-next-footer
    bottom-of-page related-pages bd-sidebar-primary bd-sidebar-secondary bd-header-article bd-footer-content
    sidebar-drawer toc-drawer mobile-header content-icon-container view-this-page edit-this-page back-to-top
    md-header md-tabs md-sidebar md-footer md-source-file md-content__button md-path pagination-nav
    theme-doc-toc-mobile theme-doc-toc-desktop theme-doc-breadcrumbs theme-doc-footer theme-doc-version-badge
    nav-chapters nav-wide-wrapper nav-wrapper headerlink header-anchor heading-anchor hash-link anchor-link
    anchorjs-link copiable-link copiable-anchor permalink id_link toc-backlink mw-editsection mw-jump-link navbox
    catlinks noprint printfooter copybtn copy-button clipboard skip-link skip-to-content skiplink sr-only
    visually-hidden screen-reader-text screen-reader-only cookie-banner cookie-consent cookie-notice site-header
    site-footer site-nav page-footer page-nav post-nav docs-sidebar share-buttons social-share addtoany footer lineno
    linenos gutter rouge-gutter linenodiv viewcode-link viewcode-back srclink hideme
    footnote-back footnote-backref""".split()
)
"""Class names used by documentation generators and their themes."""

_EXCLUDED_IDS = frozenset("footer footer-text navbar sidebar breadcrumbs cookie-banner searchbox".split())

_EXCLUDED_ROLES = frozenset(
    """navigation banner contentinfo search complementary dialog alertdialog menu menubar toolbar tooltip
    button""".split()
)

_NAVIGATION_WORDS = frozenset(
    """nav navbar navigation navmenu navlinks navbuttons breadcrumb breadcrumbs pager pagination menu submenu mainmenu
    sidebar sidenav topbar toolbar subnav header footer masthead prevnext nextprev toctitle share social cookie cookies
    consent banner""".split()
)
"""Words in class names that often mean navigation; the content of the element has to agree."""

_CONTAINERS = frozenset(("div", "section", "ul", "ol", "table", "p", "form", "span", "td"))
"""Elements that can hold navigation."""

MAX_NAME = 300
"""Characters inspected of a class or an id."""

_WORD = re.compile(r"[A-Za-z][a-z]*")
_HIDDEN_STYLE = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)
_PERMALINK_TEXTS = frozenset(("", "¶", "#", "§", "🔗", "⚓", "↩", "↩︎", "permalink", "direct link"))
_PAGE_LINK = re.compile(
    r"(?:edit|improve|view|show|report)\s+(?:(?:this|the|a|an|on|page|source|bug|issue|problem|github|gitlab)\b\s*){1,4}"
    r"|(?:skip|jump) to (?:main |the )?(?:content|navigation|search)|(?:back|return) to top|\[?top\]?"
    r"|copy(?: link| code)?",
    re.IGNORECASE,
)

MOSTLY_LINKS = 0.5
"""Share of link text from which a doubtful element is navigation."""


def is_boilerplate(tag: str, attributes: Attributes, node: LexborNode) -> bool:
    """Whether an element isn't part of the content."""
    if tag in _EXCLUDED_TAGS:
        return tag != "script" or not (attributes.get("type") or "").startswith("math/tex")
    if not attributes:
        return False
    verdict = _classify(tag, (attributes.get("class") or "")[:MAX_NAME], (attributes.get("id") or "")[:MAX_NAME])
    if verdict == "doubtful":
        return measure_link_share(node) > MOSTLY_LINKS and node.css_first("h1, h2, p > code, pre") is None
    return (
        verdict == "boilerplate"
        or _is_hidden(attributes)
        or attributes.get("role") in _EXCLUDED_ROLES
        or (tag == "a" and _is_page_link(attributes, node))
    )


@lru_cache(maxsize=4096)
def _classify(tag: str, classes: str, identity: str) -> Literal["content", "boilerplate", "doubtful"]:
    """Classify an element by its class and id, cached since pages have few."""
    if identity in _EXCLUDED_IDS or not _EXCLUDED_CLASSES.isdisjoint(classes.split()):
        return "boilerplate"
    words = _WORD.findall(f"{classes} {identity}".lower()) if tag in _CONTAINERS else ()
    return "content" if _NAVIGATION_WORDS.isdisjoint(words) else "doubtful"


def is_page_boilerplate(tag: str, node: LexborNode) -> bool:
    """Whether a header, footer or aside belongs to the page instead of the text."""
    if tag == "header":
        return node.css_first("h1, h2, h3") is None
    if tag == "footer":
        return "footnote" not in (node.attributes.get("class") or "")
    return measure_link_share(node) > MOSTLY_LINKS


def measure_link_share(node: LexborNode) -> float:
    """Return the share of an element's text that is in links."""
    length = len("".join(node.text().split()))
    return sum(len("".join(link.text().split())) for link in node.css("a")) / length if length else 1.0


def _is_hidden(attributes: Attributes) -> bool:
    if "hidden" in attributes or attributes.get("aria-hidden") == "true":
        return attributes.get("role") != "tabpanel"
    style = attributes.get("style")
    return style is not None and "n" in style and bool(_HIDDEN_STYLE.search(style))


def _is_page_link(attributes: Attributes, node: LexborNode) -> bool:
    """Whether a link is a permalink or leads to the page's source or top."""
    text = node.text().strip()
    if len(text) > 40:
        return False
    if "#" in (attributes.get("href") or "") and text.lower().strip("\u200b") in _PERMALINK_TEXTS:
        return node.css_first("img") is None
    return _PAGE_LINK.fullmatch(text) is not None
