"""Serializes document blocks for the reader page, as structure and plain text, never HTML.

Document content stays text. Links are kept only if a browser can't execute them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any

from refdesk.documents.model import Block, Code, Heading, ListItem, Paragraph, Picture, Span, Table, Term

Wire = dict[str, Any]

MAX_TEXT_LENGTH = 50_000
"""Characters shown per block. Nobody reads a longer block in one piece."""

MAX_ROWS = 500
"""Rows shown per table."""

MAX_LIST_DEPTH = 8
"""Nesting depth of lists. Deeper items are shown at this depth."""

MAX_LINK_LENGTH = 2000

MAX_SPANS = 2000
"""Spans kept per text. No paragraph written by people has as many."""

_SAFE_LINK = re.compile(r"(?:https?://|mailto:|#)[^\s\x00-\x1f\x7f]*", re.IGNORECASE)
_RELATIVE_LINK = re.compile(r"[^\s\x00-\x1f\x7f:?#/\\][^\s\x00-\x1f\x7f:?\\]*")
"""A relative path without scheme and host. The page checks whether it names a document."""

_FLAGS = {"strong": "strong", "emphasis": "em", "code": "code"}


def serialize_blocks(
    blocks: Sequence[Block], start: int = 0, headings: Mapping[int, str] | None = None, hits: Set[int] = frozenset()
) -> list[Wire]:
    """Serialize the blocks from position `start` on. Consecutive list items become one list.

    `headings` are section ids by the position of their heading; `hits` are positions of blocks to mark as search hits.
    """
    found: list[Wire] = []
    items: list[tuple[int, ListItem]] = []
    for position, block in enumerate(blocks, start):
        if isinstance(block, ListItem):
            items.append((position, block))
            continue
        found += _nest_lists(items, hits)
        items = []
        found.append(_mark_hit(_serialize_block(block, (headings or {}).get(position)), position in hits))
    return [*found, *_nest_lists(items, hits)]


def _serialize_block(block: Block, id: str | None) -> Wire:
    match block:
        case Heading():
            return {"type": "heading", "level": block.level, "id": id, "text": split_inlines(block.text)}
        case Paragraph():
            return _serialize_paragraph(block)
        case Term():
            return {**_serialize_paragraph(Paragraph(block.text, block.spans)), "id": id}
        case Code():
            omitted = len(block.text) - MAX_TEXT_LENGTH
            code = {"type": "code", "language": block.language[:50], "text": block.text[:MAX_TEXT_LENGTH]}
            return {**code, "omitted": omitted} if omitted > 0 else code
        case Table():
            return _serialize_table(block)
        case Picture():
            return {"type": "image", "alt": block.caption[:MAX_TEXT_LENGTH]}
        case ListItem():
            raise AssertionError("items are put together as lists")


def _serialize_paragraph(paragraph: Paragraph) -> Wire:
    wire: Wire = {"type": "paragraph", "inlines": split_inlines(paragraph.text, paragraph.spans)}
    if len(paragraph.text) > MAX_TEXT_LENGTH:
        wire["omitted"] = len(paragraph.text) - MAX_TEXT_LENGTH
    if paragraph.role == "quote":
        return {"type": "quote", "blocks": [wire]}
    return wire if paragraph.role == "text" else {**wire, "role": paragraph.role}


def _serialize_table(table: Table) -> Wire:
    """Serialize a table. The first header row becomes the head, further ones stay among the rows."""
    grid = [[split_inlines(text) for text in row] for row in table.grid()[: MAX_ROWS + 1]]
    head = grid.pop(0) if grid and table.header_rows() else []
    wire: Wire = {"type": "table", "head": head, "rows": grid[:MAX_ROWS]}
    omitted = table.rows - len(wire["rows"]) - bool(head)
    more = {"caption": table.caption[:MAX_TEXT_LENGTH], "omitted": omitted}
    return wire | {name: value for name, value in more.items() if value}


def _mark_hit(wire: Wire, is_hit: bool) -> Wire:
    return {**wire, "hit": True} if is_hit else wire


# Lists


def _nest_lists(items: Sequence[tuple[int, ListItem]], hits: Set[int]) -> Iterator[Wire]:
    """Build nested lists. `open_lists` are those that the next item may continue, outermost first."""
    open_lists: list[Wire] = []
    for position, item in items:
        depth = min(item.depth, len(open_lists), MAX_LIST_DEPTH)
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
        text: Wire = {"type": "paragraph", "inlines": split_inlines(item.text, item.spans)}
        open_lists[depth]["items"].append([_mark_hit(text, position in hits)])


# Text


def split_inlines(text: str, spans: Sequence[Span] = ()) -> list[Wire]:
    """Split a text into runs of the same formatting. Spans may nest and overlap."""
    text = text[:MAX_TEXT_LENGTH]
    visible = [
        span
        for span in spans[:MAX_SPANS]
        if span.start < span.end and (span.kind != "link" or _resolve_link(span.target))
    ]
    if not visible:
        return [{"text": text}] if text else []
    beginning = sorted(visible, key=lambda span: span.start, reverse=True)
    ending = sorted(visible, key=lambda span: span.end, reverse=True)
    places = {0, len(text), *(position for span in visible for position in (span.start, span.end))}
    inside = sorted(position for position in places if 0 <= position <= len(text))
    found: list[Wire] = []
    # The spans open at a position are counted: thousands may start before the first one ends.
    flags: Counter[str] = Counter()
    links: dict[Span, Wire] = {}
    for start, end in pairwise(inside):
        while beginning and beginning[-1].start <= start:
            span = beginning.pop()
            if span.kind == "link":
                links[span] = _resolve_link(span.target)
            else:
                flags[_FLAGS[span.kind]] += 1
        while ending and ending[-1].end <= start:
            span = ending.pop()
            if span.kind == "link":
                links.pop(span, None)
            else:
                flags[_FLAGS[span.kind]] -= 1
        formatting = {flag: True for flag, count in flags.items() if count}
        # Of nested links, the innermost counts.
        found.append({"text": text[start:end], **formatting, **next(reversed(links.values()), {})})
    return found


def _resolve_link(target: str) -> Wire:
    """Return the link fields to serialize; empty for an unsafe link."""
    if is_safe_link(target):
        return {"href": target.strip()}
    is_relative = len(target) <= MAX_LINK_LENGTH and _RELATIVE_LINK.fullmatch(target.strip())
    return {"beside": target.strip()} if is_relative else {}


def is_safe_link(target: str) -> bool:
    """Whether a link leads to a web page, a mail address or an anchor in the document."""
    return len(target) <= MAX_LINK_LENGTH and _SAFE_LINK.fullmatch(target.strip()) is not None
