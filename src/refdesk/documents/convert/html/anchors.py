"""Anchor of a heading or term: its id, that of its section, or of an anchor next to it.

Sphinx and DocBook set it on the element around the section, static site generators on the heading, and hand-written
pages have an empty `<a name>` before or inside the heading.
"""

from __future__ import annotations

from collections.abc import Iterator

from selectolax.lexbor import LexborNode

from .boilerplate import is_boilerplate

MAX_ANCHOR = 300
"""Characters; a longer id is ignored, since part of it would lead nowhere."""

MAX_PRECEDING = 20
"""Elements inspected before a heading; index entries can put a handful there."""

_OUTERMOST = frozenset(("body", "html", "main"))
_LAYOUT = frozenset(
    """app body bodycontent bodywrapper container content contents doccontent document main main-content maincontent
    mw-content-text page page-content primary root wrapper __next""".split()
)
"""Ids of layout elements, which lead to the top of the page."""

_ANCHORS = "[id], a[name]"


def find_anchor(heading: LexborNode) -> str:
    """Return the anchor of a heading, or an empty string."""
    return (
        _get_anchor(heading)
        or _find_section_anchor(heading)
        or _find_preceding_anchor(heading)
        or _find_inner_anchor(heading)
    )


def find_term_anchor(term: LexborNode) -> str:
    """Return the anchor of a `dt`, or an empty string."""
    if anchor := _get_anchor(term):
        return anchor
    first, before = term.first_child, term.prev
    if before is not None and before.tag == "-text":
        before = before.prev
    if before is not None and before.tag not in ("dd", "dt") and (anchor := _find_preceding_anchor(term)):
        return anchor
    return _find_inner_anchor(term) if first is not None and (first.tag != "-text" or first.next is not None) else ""


def _find_section_anchor(heading: LexborNode) -> str:
    """Return the id of the innermost element that starts with the heading and has one."""
    node, above = heading, heading.parent
    while above is not None and above.tag not in _OUTERMOST:
        *_, first = node, *_iter_empty_before(node)
        if first.prev is not None:
            break
        anchor = _get_anchor(above)
        if anchor and anchor.lower() not in _LAYOUT:
            return anchor
        node, above = above, above.parent
    return ""


def _find_preceding_anchor(heading: LexborNode) -> str:
    """Return the nearest anchor among the empty elements right before the heading."""
    for node in _iter_empty_before(heading):
        if node.tag != "-text" and (anchor := _get_anchor(node) or _find_inner_anchor(node)):
            return anchor
    return ""


def _iter_empty_before(node: LexborNode) -> Iterator[LexborNode]:
    """Yield the elements without content right before an element, nearest first."""
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
