"""A document's blocks as the reader page gets them: structure and plain text, never HTML.

Whatever a document says stays text. Of its links only those are kept that a browser cannot take for a program.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from refdesk.documents.model import Block, Code, Heading, ListItem, Paragraph, Picture, Span, Table

Wire = dict[str, Any]

LONGEST_TEXT = 50_000
"""Characters of one block that are shown; what is longer is nothing that anybody reads in one piece."""

MOST_ROWS = 500
"""Of a table that are shown at once."""

DEEPEST_LIST = 8
"""Lists within lists; deeper items are shown at this depth."""

LONGEST_LINK = 2000

MOST_SPANS = 2000
"""Of one text that are told apart; no page that people wrote has as many in a paragraph."""

_SAFE_LINK = re.compile(r"(?:https?://|mailto:|#)[^\s\x00-\x1f\x7f]*", re.IGNORECASE)
_BESIDE = re.compile(r"[^\s\x00-\x1f\x7f:?#/\\][^\s\x00-\x1f\x7f:?\\]*")
"""A path from the document itself, with neither a scheme nor a host: the page finds out whether it names a document."""

_FLAGS = {"strong": "strong", "emphasis": "em", "code": "code"}


@dataclass(frozen=True, slots=True)
class Numbered:
    """Some blocks of a document, from a position on."""

    start: int
    blocks: Sequence[Block]
    headings: Mapping[int, str] = field(default_factory=dict)
    """The ids of sections, by the positions of their headings."""
    hits: Set[int] = frozenset()
    """The positions of the blocks that are marked as what was looked for."""


def to_wire(part: Numbered) -> list[Wire]:
    """The blocks in order; the items of a list that follow one another are one block."""
    found: list[Wire] = []
    items: list[tuple[int, ListItem]] = []
    for position, block in enumerate(part.blocks, part.start):
        if isinstance(block, ListItem):
            items.append((position, block))
            continue
        found += _lists(items, part.hits)
        items = []
        found.append(_marked(_block(block, part.headings.get(position)), position in part.hits))
    return [*found, *_lists(items, part.hits)]


def _block(block: Block, id: str | None) -> Wire:
    match block:
        case Heading():
            return {"type": "heading", "level": block.level, "id": id, "text": inlines(block.text)}
        case Paragraph():
            return _paragraph(block)
        case Code():
            return {"type": "code", "language": block.language[:50], **_shortened(block.text)}
        case Table():
            return _table(block)
        case Picture():
            return {"type": "image", "alt": block.caption[:LONGEST_TEXT]}
        case ListItem():
            raise AssertionError("items are put together as lists")


def _paragraph(paragraph: Paragraph) -> Wire:
    wire: Wire = {"type": "paragraph", "inlines": inlines(paragraph.text, paragraph.spans)}
    if len(paragraph.text) > LONGEST_TEXT:
        wire["omitted"] = len(paragraph.text) - LONGEST_TEXT
    if paragraph.role == "quote":
        return {"type": "quote", "blocks": [wire]}
    return wire if paragraph.role == "text" else {**wire, "role": paragraph.role}


def _table(table: Table) -> Wire:
    """The first row of header cells is the head; what else there is of them comes first among the rows."""
    grid = [[inlines(text) for text in row] for row in table.grid()[: MOST_ROWS + 1]]
    head = grid.pop(0) if grid and table.header_rows() else []
    wire: Wire = {"type": "table", "head": head, "rows": grid[:MOST_ROWS]}
    omitted = table.rows - len(wire["rows"]) - bool(head)
    more = {"caption": table.caption[:LONGEST_TEXT], "omitted": omitted}
    return wire | {name: value for name, value in more.items() if value}


def _shortened(text: str) -> Wire:
    omitted = len(text) - LONGEST_TEXT
    return {"text": text[:LONGEST_TEXT], **({"omitted": omitted} if omitted > 0 else {})}


def _marked(wire: Wire, is_hit: bool) -> Wire:
    return {**wire, "hit": True} if is_hit else wire


# Lists


def _lists(items: Sequence[tuple[int, ListItem]], hits: Set[int]) -> Iterator[Wire]:
    """Lists within lists. `open_lists` are those that the next item may go on with, the outermost first."""
    open_lists: list[Wire] = []
    for position, item in items:
        depth = min(item.depth, len(open_lists), DEEPEST_LIST)
        if len(open_lists) > depth and open_lists[depth]["ordered"] != item.ordered:
            del open_lists[depth:]
        if len(open_lists) <= depth:
            opened: Wire = {"type": "list", "ordered": item.ordered, "items": []}
            if item.ordered and item.number != 1:
                opened["start"] = item.number
            if open_lists:
                open_lists[-1]["items"][-1].append(opened)
            else:
                yield opened
            open_lists.append(opened)
        del open_lists[depth + 1 :]
        text: Wire = {"type": "paragraph", "inlines": inlines(item.text, item.spans)}
        open_lists[depth]["items"].append([_marked(text, position in hits)])


# Text


def inlines(text: str, spans: Sequence[Span] = ()) -> list[Wire]:
    """A text cut wherever something about it changes; spans may lie within and across one another."""
    text = text[:LONGEST_TEXT]
    shown = [span for span in spans[:MOST_SPANS] if _is_shown(span)]
    if not shown:
        return [{"text": text}] if text else []
    beginning = sorted(shown, key=lambda span: span.start, reverse=True)
    ending = sorted(shown, key=lambda span: span.end, reverse=True)
    places = {0, len(text), *(place for span in shown for place in (span.start, span.end))}
    inside = sorted(place for place in places if 0 <= place <= len(text))
    found: list[Wire] = []
    around = _Around()
    for start, end in pairwise(inside):
        while beginning and beginning[-1].start <= start:
            around.begin(beginning.pop())
        while ending and ending[-1].end <= start:
            around.end(ending.pop())
        found.append({"text": text[start:end], **around.wire()})
    return found


def _is_shown(span: Span) -> bool:
    return span.start < span.end and (span.kind != "link" or bool(_link(span.target)))


def _link(target: str) -> Wire:
    """Where a link leads, as far as a page may know."""
    if is_safe(target):
        return {"href": target.strip()}
    is_beside = len(target) <= LONGEST_LINK and _BESIDE.fullmatch(target.strip())
    return {"beside": target.strip()} if is_beside else {}


class _Around:
    """The spans that a place lies in, counted: a document may have thousands of them begin before the first ends."""

    def __init__(self) -> None:
        self._flags: Counter[str] = Counter()
        self._links: dict[Span, Wire] = {}

    def begin(self, span: Span) -> None:
        if span.kind == "link":
            self._links[span] = _link(span.target)
        else:
            self._flags[_FLAGS[span.kind]] += 1

    def end(self, span: Span) -> None:
        if span.kind == "link":
            self._links.pop(span, None)
        else:
            self._flags[_FLAGS[span.kind]] -= 1

    def wire(self) -> Wire:
        """What there is to say of the place; of links, the innermost."""
        flags: Wire = {flag: True for flag, count in self._flags.items() if count}
        return flags | next(reversed(self._links.values()), {})


def is_safe(target: str) -> bool:
    """Whether a link leads to a page, a mailbox or a place in the document, and nowhere else."""
    return len(target) <= LONGEST_LINK and _SAFE_LINK.fullmatch(target.strip()) is not None
