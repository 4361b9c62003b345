"""How much of a document's text and structure survived a conversion, from 0 to 1 by kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from statistics import fmean

from .similarity import f1, multiset_f1, pair_up, similarity
from .structure import Heading, Structure, Table, plain, structure_of

COUNTED = ("text", "heading_f1", "adjacency_f1", "code_f1", "item_f1")
"""The kinds whose mean is the overall score."""

LONG_CELL = 12
"""Characters from which on a slip in a cell is forgiven; in a number or a short word it would be another value."""


@dataclass(frozen=True, slots=True)
class Score:
    """One document, or the mean of many.

    A kind that is neither in the truth nor in the output is None and leaves the overall score to the others. A kind
    that only one of them has is 0: what was lost and what was made up both count.
    """

    text: float | None
    """Indel similarity of the words in reading order: lost, added and misplaced words all lower it."""
    heading_f1: float | None
    """Headings by text; numbering and small slips are forgiven."""
    heading_level: float | None
    """The share of headings found whose depth is right; the highest of them counts as 1 on both sides."""
    cell_f1: float | None
    """Cells of tables by text; small slips in long ones are forgiven."""
    adjacency_f1: float | None
    """Pairs of cells beside or below each other: a cell in the wrong column costs its pairs."""
    code_f1: float | None
    """Lines inside code blocks, spacing aside."""
    item_f1: float | None
    """List items by their first paragraph; small slips are forgiven."""
    overall: float | None
    """The mean of text, headings, adjacency, code and items that there are; None for nothing against nothing."""


def score(truth_markdown: str, got_markdown: str) -> Score:
    """Compare what a converter wrote with the truth."""
    return compare(structure_of(truth_markdown), structure_of(got_markdown))


def compare(truth: Structure, got: Structure) -> Score:
    """The same for texts that have been read already."""
    heading_f1, heading_level = _headings(truth.headings, got.headings)
    tables = _mended(got.tables, truth.tables)
    kinds = {
        "text": similarity(truth.words, got.words) if truth.words or got.words else None,
        "heading_f1": heading_f1,
        "heading_level": heading_level,
        "cell_f1": _best_reading(truth.tables, tables, _cells),
        "adjacency_f1": _best_reading(truth.tables, tables, _adjacent),
        "code_f1": multiset_f1(map(_solid, truth.code), map(_solid, got.code)),
        "item_f1": _items(truth, got),
    }
    return Score(**kinds, overall=_mean(kinds[name] for name in COUNTED))


def mean(scores: Sequence[Score]) -> Score:
    """Of many documents, kind by kind over those that have the kind."""
    return Score(**{field.name: _mean(getattr(one, field.name) for one in scores) for field in fields(Score)})


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


_NUMBERING = re.compile(
    r"(?:(?i:chapter|appendix|section|part)\s+(?:\d+|[A-Z]\b)|\d+|[A-H](?=[.:\s]))(?:\.\d+)*[.:)]*\s+(?=\S)"
)


def heading_key(text: str) -> str:
    """What two editions of a heading have in common: neither numbering, spacing nor capitals."""
    text = plain(text).rstrip("¶#§ ")
    numbering = _NUMBERING.match(text)
    return _solid(text[numbering.end() :] if numbering else text).casefold()


def _solid(text: str) -> str:
    """Without any space: typesetting moves spaces about."""
    return "".join(plain(text).split())


def _headings(truth: Sequence[Heading], got: Sequence[Heading]) -> tuple[float | None, float | None]:
    """How many were found, and how many of those at the right depth."""
    pairs = pair_up([heading_key(one.text) for one in truth], [heading_key(one.text) for one in got])
    found = f1(len(pairs), len(truth), len(got))
    if not pairs:
        return found, found
    levels = [(truth[wanted].level, got[at].level) for wanted, at in pairs]
    highest = min(level for level, _ in levels), min(level for _, level in levels)
    return found, fmean(wanted - highest[0] == level - highest[1] for wanted, level in levels)


def _items(truth: Structure, got: Structure) -> float | None:
    """Items that match; those that are the truth's definitions are neither asked for nor held against anyone."""
    wanted = [_solid(text) for text in truth.items]
    found = [_solid(text) for text in got.items]
    pairs = pair_up(wanted, found)
    paired = {at for _, at in pairs}
    extra = [text for at, text in enumerate(found) if at not in paired]
    forgiven = _definitions_among(extra, [_solid(text) for text in truth.definitions])
    return f1(len(pairs), len(wanted), len(found) - forgiven)


def _definitions_among(items: Sequence[str], definitions: Sequence[str]) -> int:
    """How many items are a term or definition, or a term that its definition follows on the same line."""
    terms = tuple(filter(None, definitions))
    return sum(item.startswith(terms) for item in items)


CellsOf = Callable[[Table, bool], Iterator[tuple[str, ...]]]


def _mended(tables: Sequence[Table], truth: Sequence[Table]) -> list[Table]:
    """Tables in which a long cell that is alike one of the truth's has the truth's text."""
    wanted, found = _long_texts(truth), _long_texts(tables)
    slips = {found[at]: wanted[right] for right, at in pair_up(wanted, found)}
    return [
        tuple(tuple(replace(cell, text=slips.get(_solid(cell.text), cell.text)) for cell in row) for row in table)
        for table in tables
    ]


def _long_texts(tables: Sequence[Table]) -> list[str]:
    texts = (_solid(cell.text) for table in tables for row in table for cell in row)
    return list(dict.fromkeys(text for text in texts if len(text) >= LONG_CELL))


def _best_reading(truth: Sequence[Table], got: Sequence[Table], members: CellsOf) -> float | None:
    """A wide cell may be written once or in every place it covers; the reading that fits better counts."""
    readings = [
        multiset_f1(_of_all(truth, members, copies), _of_all(got, members, also))
        for copies in (False, True)
        for also in (False, True)
    ]
    return max((reading for reading in readings if reading is not None), default=None)


def _of_all(tables: Sequence[Table], members: CellsOf, copies: bool) -> Iterator[tuple[str, ...]]:
    return (member for table in tables for member in members(table, copies))


def _texts(table: Table, copies: bool) -> list[list[str]]:
    return [[_solid(cell.text) if copies or not cell.spanned else "" for cell in row] for row in table]


def _cells(table: Table, copies: bool) -> Iterator[tuple[str, ...]]:
    return ((text,) for row in _texts(table, copies) for text in row if text)


def _adjacent(table: Table, copies: bool) -> Iterator[tuple[str, ...]]:
    rows = _texts(table, copies)
    width = max(map(len, rows), default=0)
    for row in rows:
        yield from (("beside", *pair) for pair in _neighbours(row))
    for at in range(width):
        yield from (("below", *pair) for pair in _neighbours([row[at] for row in rows if at < len(row)]))


def _neighbours(row: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The texts that follow each other when blanks are passed over; a text beside itself is one wide cell."""
    return ((one, other) for one, other in pairwise(text for text in row if text) if one != other)
