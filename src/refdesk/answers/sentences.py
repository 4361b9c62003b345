"""Splits Markdown into fragments that can be quoted: sentences, table rows, code.

Every fragment is a slice of the text. Rows and code blocks are quoted whole or not at all. Headings, defined terms and
table heads are quoted only together with what they introduce.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["sentence", "row", "code", "head", "lead"]
"""`head`: the first rows of a table, up to the delimiter row. `lead`: a heading, or a term defined below."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A slice of a text."""

    start: int
    end: int
    kind: Kind
    block: int
    """Index of the paragraph, list item, table or code block that contains it."""
    text: str
    is_item: bool = False
    """Whether it is part of a list item."""


_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}#{1,6}\s")
_TERM = re.compile(r"\s*(?:[-*+]\s+)?(\*\*|__)(?!\s).+?\1:?\s*")
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s+\S")
_DELIMITER = re.compile(r"\s*\|?(?:\s*:?-+:?\s*\|)+\s*(?::?-+:?)?\s*")
_NOTICE = re.compile(r" {0,3}#{1,6}\s+(?:note|tip|hint|caution|warning|important|danger)\W*", re.IGNORECASE)
_UNBREAKABLE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)|\[[^\[\]]*\]\([^()\s]*\)", re.DOTALL)
_NUMBERING = re.compile(r"[\W\d_]*(?:[A-Z]\.)?[\W\d_]*")
_SENTENCE_END = re.compile(r"[.!?]+[\"'”’)\]*_`]*(?=\s+(?:[\"'“‘(\[*_<]*[^\Wa-z_]|[*_]*`))|[。！？]+[」』”’）]*")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:e\.g|i\.e|etc|vs|cf|viz|approx|resp|fig|figs|sec|ch|no|nos|vol|pp?|ed|eds|al|dr|mr|mrs|ms|prof|"
    r"st|jr|sr|inc|ltd|co|corp|[A-Z])\.$",
    re.IGNORECASE,
)
_LINK = re.compile(r"!?\[[^\[\]]*\]\([^()\s]*\)")
_LINK_TARGET = re.compile(r"(?<=\])\((?:<[^>\n]*>|[^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+\"[^\"\n]*\")?\)")
_MARKS = re.compile(r"`{3,}\S*|[*`|\\]|(?m:^\s*(?:#{1,6}|>)\s)")


def has_content(text: str) -> bool:
    """Return whether a fragment is more than a link."""
    return bool(re.search(r"\w{2}", _LINK.sub("", text)))


def strip_markup(text: str) -> str:
    """Return the text without link targets and Markdown markup."""
    return _MARKS.sub("", _LINK_TARGET.sub("", text))


def split_fragments(text: str) -> list[Fragment]:
    """Return all fragments in reading order."""
    fragments: list[Fragment] = []
    lines = list(_find_lines(text))
    at = number = 0
    while at < len(lines):
        line = text[slice(*lines[at])]
        if not line.strip():
            at += 1
            continue
        stop, kind = _scan_block(text, lines, at)
        start, end = lines[at][0] + _count_indent(line), lines[stop - 1][1]
        match kind:
            case "code" | "lead":
                fragments.append(Fragment(start, end, kind, number, text[start:end]))
            case "table":
                fragments += _split_rows(text, start, end, number)
            case "text":
                is_item = _ITEM.match(text, start) is not None
                fragments += [
                    Fragment(*span, "sentence", number, text[slice(*span)], is_item)
                    for span in _split_sentences(text, start, end)
                ]
        number += kind is not None
        at = stop
    return fragments


def _find_lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each line, without trailing whitespace."""
    start = 0
    for line in text.split("\n"):
        yield start, start + len(line.rstrip())
        start += len(line) + 1


def _count_indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _scan_block(
    text: str, lines: Sequence[tuple[int, int]], at: int
) -> tuple[int, Literal["text", "table", "code", "lead"] | None]:
    """Return the line after the block that begins at a line, and the block's kind.

    The kind is None if it is not quotable: unclosed code, the label of a notice.
    """

    def line(number: int) -> str:
        return text[slice(*lines[number])]

    first = line(at)
    if fence := _FENCE.match(first):
        closing = re.compile(rf" {{0,3}}{re.escape(fence[1][0])}{{{len(fence[1])},}}\s*")
        end = next((number for number in range(at + 1, len(lines)) if closing.fullmatch(line(number))), None)
        return (len(lines), None) if end is None else (end + 1, "code")
    if _is_row(first):
        return _skip_while(lines, at, lambda number: _is_row(line(number))), "table"
    if _HEADING.match(first):
        return at + 1, None if _NOTICE.fullmatch(first) else "lead"
    end = _skip_while(lines, at, lambda number: _is_continuation(line(number)))
    return end, "lead" if end == at + 1 and _TERM.fullmatch(first) else "text"


def _skip_while(lines: Sequence[tuple[int, int]], at: int, goes_on: Callable[[int], bool]) -> int:
    return next((number for number in range(at + 1, len(lines)) if not goes_on(number)), len(lines))


def _is_row(line: str) -> bool:
    return line.lstrip().startswith("|")


def _is_continuation(line: str) -> bool:
    """Return whether a line belongs to the paragraph or list item above it."""
    opens = _FENCE.match(line) or _is_row(line) or _HEADING.match(line) or _ITEM.match(line)
    return bool(line.strip()) and not opens


def _split_rows(text: str, table: int, table_end: int, number: int) -> Iterator[Fragment]:
    rows = [(table + start, table + end) for start, end in _find_lines(text[table:table_end])]
    below_head = 2 if len(rows) > 1 and _DELIMITER.fullmatch(text[slice(*rows[1])]) else 0
    if below_head:
        yield Fragment(rows[0][0], rows[1][1], "head", number, text[rows[0][0] : rows[1][1]])
    for start, end in rows[below_head:]:
        yield Fragment(start, end, "row", number, text[start:end])


def _split_sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the sentences of a paragraph, ignoring full stops in code, links, abbreviations and numbers."""
    whole = [span.span() for span in _UNBREAKABLE.finditer(text, start, end)]
    for mark in _SENTENCE_END.finditer(text, start, end):
        if any(begin < mark.start() < stop - 1 for begin, stop in whole):
            continue
        if mark[0] == "." and _ABBREVIATION.search(text, max(start, mark.start() - 8), mark.end()):
            continue
        if _NUMBERING.fullmatch(text, start, mark.end()):
            continue
        yield start, mark.end()
        start = mark.end() + _count_indent(text[mark.end() : end])
    if start < end:
        yield start, end
