"""Titles and anchors of headings and of the terms of definition lists.

An anchor is an element's id, that of its section, or of an anchor next to it. Sphinx and DocBook set it on the element
around the section, static site generators on the heading, and hand-written pages have an empty `<a name>` before or
inside the heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from selectolax.lexbor import LexborNode

from refdesk.documents.model import Block, ListItem, Paragraph, Span, Term, is_section_heading

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


MAX_TITLE = 80
"""Characters of a title; the text has the whole term."""

LONG_SIGNATURE = 40
"""Characters from which a signature is shortened to its name."""

MAX_SYNONYMS = 16
"""Terms in a row that share a definition; more are a list of names."""

TITLE_SYNONYMS = 3

_TYPED = re.compile(r"(\S+) \(\w[\w ,.-]*\)")
"""A setting and its type, as in `wal_sender_timeout (integer)`."""

_SIGNATURE = re.compile(r"(?:class |static |async )*([\w.:$]+)\(")
_TYPES = frozenset(("class", "exception"))


@dataclass(slots=True)
class DefinitionList:
    """Open definition list with its current term."""

    kinds: frozenset[str] = frozenset()
    """Classes of the element; Sphinx names the kind of object."""
    has_terms: bool = True
    """Whether its terms are sections."""
    term: int | None = None
    """Position of the current term among the blocks."""
    titles: tuple[str, ...] = ()
    """Titles of the current term's synonyms."""
    is_defined: bool = False
    """Whether the definition of the current term has begun."""


def make_title(node: LexborNode, text: str, kinds: frozenset[str], above: str) -> str:
    """Return the short form of a term; `above` is the title of the term that it is a member of."""
    names = [name.text().strip() for name in node.css(".descname")] if "sig" in kinds else []
    if not names:
        long = LONG_SIGNATURE if "sig" not in kinds else 0
        lines = [" ".join(line.split()).rstrip(": ") for line in text.split("\n")]
        title = ", ".join(filter(None, lines))
        if (typed := _TYPED.fullmatch(title)) is not None:
            return typed[1]
        if len(title) > long and (signature := _SIGNATURE.match(title)) is not None:
            return f"{signature[1]}()"
        return _cut(title or text.strip())
    name = ", ".join(dict.fromkeys(names))
    prefix = node.css_first(".descclassname")
    qualifier = prefix.text().strip() if prefix is not None else ""
    if qualifier.endswith("."):
        name = qualifier + name
    elif above and name.isidentifier():
        name = f"{above.removesuffix('()').rpartition('.')[2]}.{name}"
    is_callable = _TYPES.isdisjoint(kinds) and name.replace(".", "_").isidentifier() and "(" in text
    return _cut(f"{name}()" if is_callable else name)


def _cut(title: str) -> str:
    return title if len(title) <= MAX_TITLE else title[:MAX_TITLE].rpartition(" ")[0].rstrip(" ,") + " …"


def join_titles(titles: tuple[str, ...]) -> str:
    """Return the title of synonyms: the first ones, without repetition."""
    names = list(dict.fromkeys(titles))
    more = [" …"] if len(names) > TITLE_SYNONYMS else []
    return _cut(", ".join(names[:TITLE_SYNONYMS]) + "".join(more))


def join_paragraphs(parts: Sequence[Paragraph | ListItem | Term]) -> Paragraph:
    """Join paragraphs as lines of one."""
    if len(parts) == 1 and isinstance(parts[0], Paragraph):
        return parts[0]
    lines: list[str] = []
    spans: list[Span] = []
    length = 0
    for part in parts:
        spans += (replace(span, start=span.start + length, end=span.end + length) for span in part.spans)
        lines.append(part.text)
        length += len(part.text) + 1
    return Paragraph("\n".join(lines), tuple(spans))


def adopt_following(blocks: list[Block]) -> None:
    """Let signatures without a definition have the text up to the next term or heading, as some manuals write it."""
    open_ends: list[int] = []
    for index, block in enumerate(blocks):
        while open_ends and open_ends[-1] <= index:
            open_ends.pop()
        if not isinstance(block, Term):
            continue
        if not block.size and block.spans and block.spans[0].kind == "code":
            end = index + 1
            limit = open_ends[-1] if open_ends else len(blocks)
            while end < limit and not isinstance(blocks[end], Term) and not is_section_heading(blocks[end]):
                end += 1
            blocks[index] = block = replace(block, size=end - index - 1)
        open_ends.append(index + 1 + block.size)
