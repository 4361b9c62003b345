"""Limits on HTML before parsing.

The parser is quadratic in the depth of a page and in the attributes of one tag.
"""

from __future__ import annotations

import re

from refdesk.errors import CannotConvert

MAX_CHARACTERS = 10_000_000
"""Some 2000 printed pages; the largest single-page manuals have about half."""

MAX_DEPTH = 3_000
"""Real pages stay below 100; unclosed tags add some hundreds."""

MAX_ATTRIBUTES = 5_000
"""Attributes of one tag; takes the parser 0.04 s."""

_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/<>]*)([^<>]*)")
_LONG_TAG = re.compile(rf"<[a-zA-Z][^<>]{{{2 * MAX_ATTRIBUTES},}}")
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
_NON_NESTING = frozenset(
    "area base br col embed hr img input link meta param source track wbr p li dt dd tr td th option".split()
)
"""Void tags, and tags closed by the next one of their kind."""

_SVG_TAGS = frozenset(
    """svg g a path rect circle ellipse line polyline polygon text tspan textpath use defs symbol marker stop image mask
    lineargradient radialgradient clippath pattern filter animate metadata switch""".split()
)
_HTML_IN_SVG = frozenset(("title", "desc", "foreignobject"))


def check(text: str) -> None:
    """Raise `CannotConvert` for a page that is too large or too deeply nested to parse in reasonable time."""
    if len(text) > MAX_CHARACTERS:
        raise CannotConvert(
            f"The page has {len(text):,} characters, more than the {MAX_CHARACTERS:,} that are converted; split it."
        )
    if text.count("<") - text.count("</") > MAX_DEPTH and _is_too_deep(text):
        raise CannotConvert(f"The page nests more than {MAX_DEPTH:,} elements; it is broken or made to do harm.")
    if any(len(_QUOTED.sub("", tag[0]).split()) > MAX_ATTRIBUTES for tag in _LONG_TAG.finditer(text)):
        raise CannotConvert(
            f"A tag has more than {MAX_ATTRIBUTES:,} attributes; the page is broken or made to do harm."
        )


def _is_too_deep(text: str) -> bool:
    depth, in_svg = 0, False
    for closing, name, rest in _TAG.findall(text):
        name = name.lower()
        if name in _NON_NESTING:
            continue
        if not closing and in_svg and name in _SVG_TAGS and rest.endswith("/"):
            continue
        depth = max(0, depth - 1) if closing else depth + 1
        if depth > MAX_DEPTH:
            return True
        in_svg = _is_in_svg(name, bool(closing), in_svg)
    return False


def _is_in_svg(name: str, closing: bool, before: bool) -> bool:
    """Whether the parser is inside of SVG after a tag; only there does a slash close an element."""
    if name == "svg":
        return not closing
    if name in _HTML_IN_SVG:
        return closing
    return before and name in _SVG_TAGS
