"""What leads to a heading within its page: the id of the heading itself, of the section that it opens, or of a mark.

Generators of documentation put it in all three places. Sphinx and DocBook give it to the element around the section,
static site generators to the heading, and pages written by hand have an empty `<a name>` before it or inside of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from selectolax.lexbor import LexborNode

from .boilerplate import is_boilerplate

MAX_ANCHOR = 300
"""Characters; what is longer is no anchor that anybody wrote, and half of it would lead nowhere."""

MAX_PRECEDING = 20
"""Elements that are looked at before a heading; index entries can put a handful there."""

_OUTERMOST = frozenset(("body", "html", "main"))
_LAYOUT = frozenset(
    """app body bodycontent bodywrapper container content contents doccontent document main main-content maincontent
    mw-content-text page page-content primary root wrapper __next""".split()
)
"""Ids of elements that lay out a page: they lead to its top, which no id is needed for."""

_ANCHORS = "[id], a[name]"


def find_anchor(heading: LexborNode) -> str:
    """The anchor of a heading; empty where the page gives it none."""
    return (
        _get_anchor(heading)
        or _find_section_anchor(heading)
        or _find_preceding_anchor(heading)
        or _find_inner_anchor(heading)
    )


def _find_section_anchor(heading: LexborNode) -> str:
    """The id of the innermost element around the heading that has one and says nothing before it."""
    node, above = heading, heading.parent
    while above is not None and above.tag not in _OUTERMOST and _is_first_content(node):
        anchor = _get_anchor(above)
        if anchor and anchor.lower() not in _LAYOUT:
            return anchor
        node, above = above, above.parent
    return ""


def _is_first_content(node: LexborNode) -> bool:
    """Whether nothing is said before an element within the one around it."""
    *_, first = [None, *_iter_empty_before(node)]
    return (first or node).prev is None


def _find_preceding_anchor(heading: LexborNode) -> str:
    """The nearest anchor among the silent elements right before the heading."""
    for node in _iter_empty_before(heading):
        if node.tag != "-text" and (anchor := _get_anchor(node) or _find_inner_anchor(node)):
            return anchor
    return ""


def _iter_empty_before(node: LexborNode) -> Iterator[LexborNode]:
    """The elements and blanks right before an element, nearest first, up to one that says something."""
    before = node.prev
    for _ in range(MAX_PRECEDING):
        if before is None or not _is_empty(before):
            return
        yield before
        before = before.prev


def _is_empty(node: LexborNode) -> bool:
    tag = node.tag or "-"
    if tag == "-text":
        return not (node.text_content or "").strip()
    return tag[0] == "-" or not node.text().strip() or is_boilerplate(tag, node.attributes, node)


def _find_inner_anchor(node: LexborNode) -> str:
    marks = map(_get_anchor, node.css(_ANCHORS))
    return next(filter(None, marks), "")


def _get_anchor(node: LexborNode) -> str:
    attributes = node.attributes
    anchor = (attributes.get("id") or (attributes.get("name") if node.tag == "a" else "") or "").strip()
    return anchor if len(anchor) <= MAX_ANCHOR else ""
