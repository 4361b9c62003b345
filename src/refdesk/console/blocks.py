"""A document's blocks as the reader page gets them: structure and plain text, never HTML.

Whatever a document says stays text. Of its links only those are kept that a browser cannot take for a program.
"""

from __future__ import annotations

import re
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
    coming = sorted(spans[:MOST_SPANS], key=lambda span: span.start, reverse=True)
    places = {0, len(text), *(place for span in coming for place in (span.start, span.end))}
    inside = sorted(place for place in places if 0 <= place <= len(text))
    found: list[Wire] = []
    around: list[Span] = []
    for start, end in pairwise(inside):
        while coming and coming[-1].start <= start:
            around.append(coming.pop())
        around = [span for span in around if span.end > start]
        found.append(_inline(text[start:end], around))
    return found


def _inline(text: str, spans: Sequence[Span]) -> Wire:
    wire: Wire = {"text": text}
    for span in spans:
        if span.kind != "link":
            wire[_FLAGS[span.kind]] = True
        elif is_safe(span.target):
            wire["href"] = span.target.strip()
    return wire


def is_safe(target: str) -> bool:
    """Whether a link leads to a page, a mailbox or a place in the document, and nowhere else."""
    return len(target) <= LONGEST_LINK and _SAFE_LINK.fullmatch(target.strip()) is not None
