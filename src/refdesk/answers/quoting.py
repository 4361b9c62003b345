"""Selection and layout of quotes in an extractive answer.

Every quote is a slice of a hit's text; only citations and line breaks between quotes are added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from refdesk.answers.sentences import Fragment
from refdesk.documents.tokens import measure_tokens
from refdesk.engines.base import Hit

CITATION_TOKENS = 4
"""Cost of `[12]` and the whitespace around it."""

MAX_QUOTES = 8
"""Fragments picked for an answer."""

MAX_LIST_ITEMS = 8
"""List items quoted after the sentence that introduces them."""

_BACK_REFERENCE = re.compile(
    r"[*_(]*(?:this|these|that|those|it|its|they|such|however|therefore|thus|hence|then|also|otherwise|instead|"
    r"similarly|in (?:this|that|these|such)|for (?:example|instance)|but|and|so)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+\Z")


@dataclass(frozen=True, slots=True)
class FragmentPosition:
    """Index of a hit, and of a fragment in it."""

    hit: int
    fragment: int


@dataclass(frozen=True, slots=True)
class Quote:
    """Slices of one hit under one citation."""

    hit: int
    slices: tuple[str, ...]
    is_prose: bool
    """Whether the citation can follow on the same line; below a table or code it cannot."""

    @property
    def text(self) -> str:
        """The quote with its citation."""
        citation = f"[{self.hit + 1}]"
        between = "\n\n" if self.is_prose else "\n"
        return between.join(self.slices) + (f" {citation}" if self.is_prose else f"\n\n{citation}")


class QuoteSelection:
    """The fragments to quote, within a token budget."""

    def __init__(self, fragments: Sequence[Sequence[Fragment]], max_tokens: int) -> None:
        """`fragments`: those of each hit."""
        self._fragments = fragments
        self._budget = max_tokens
        self.positions: set[FragmentPosition] = set()
        self.picked: list[FragmentPosition] = []

    def add(self, position: FragmentPosition) -> bool:
        """Add a fragment with its complements, or alone if those do not fit; return whether it was added."""
        if len(self.picked) >= MAX_QUOTES:
            return False
        required = set(find_required(self._fragments[position.hit], position.fragment))
        complete = required | set(find_complements(self._fragments[position.hit], position.fragment))
        for numbers in (complete, required):
            missing = {FragmentPosition(position.hit, number) for number in numbers} - self.positions
            texts = (self._fragments[part.hit][part.fragment].text for part in missing)
            cost = sum(measure_tokens(text) + CITATION_TOKENS for text in texts)
            if cost <= self._budget:
                self.positions |= missing
                self.picked.append(position)
                self._budget -= cost
                return True
        return False


def find_required(fragments: Sequence[Fragment], number: int) -> Iterator[int]:
    """Yield the fragment and those it is incomprehensible without: a table's head, the term that it defines."""
    yield number
    fragment = fragments[number]
    if fragment.kind == "row":
        yield from (at for at, other in enumerate(fragments) if other.block == fragment.block and other.kind == "head")
    first = next(at for at, other in enumerate(fragments) if other.block == fragment.block)
    if first and fragments[first - 1].kind == "lead":
        yield first - 1


def find_complements(fragments: Sequence[Fragment], number: int) -> Iterator[int]:
    """Yield the neighbours that complete a fragment: the antecedent of `this`, and what follows a colon."""
    fragment = fragments[number]
    before = fragments[number - 1] if number else None
    if before and before.kind == "sentence":
        leans = before.block == fragment.block and fragment.kind == "sentence" and _BACK_REFERENCE.match(fragment.text)
        if leans or (fragment.kind == "code" and before.text.endswith(":")):
            yield number - 1
    if fragment.text.endswith(":"):
        yield from _find_introduced(fragments, number)


def _find_introduced(fragments: Sequence[Fragment], number: int) -> Iterator[int]:
    """Yield what a sentence ending in a colon introduces: the code below it, or the list items."""
    following = fragments[number + 1 : number + 1 + MAX_LIST_ITEMS]
    if following and following[0].kind == "code":
        yield number + 1
        return
    for at, fragment in enumerate(following, number + 1):
        if not fragment.is_item:
            return
        yield at


def build_quotes(
    positions: Sequence[FragmentPosition], fragments: Sequence[Sequence[Fragment]], hits: Sequence[Hit]
) -> list[Quote]:
    """Return the quotes in reading order, grouped by document, in the order of each document's first position."""
    order: dict[str, int] = {}
    for position in positions:
        order.setdefault(hits[position.hit].document.id, len(order))

    def reading_order(position: FragmentPosition) -> tuple[int, int, int, int]:
        hit = hits[position.hit]
        number = _NUMBER.search(hit.chunk_id)
        return order[hit.document.id], int(number[0]) if number else 0, position.hit, position.fragment

    in_order = sorted(positions, key=reading_order)
    return [
        quote
        for hit, group in groupby(in_order, key=lambda position: position.hit)
        for quote in _build_hit_quotes(hit, hits[hit].text, fragments[hit], [position.fragment for position in group])
    ]


def _build_hit_quotes(hit: int, text: str, fragments: Sequence[Fragment], numbers: Sequence[int]) -> Iterator[Quote]:
    """Yield a quote per run of neighbours; a table's head and a term are joined with what needs them."""
    slices: list[str] = []
    start = numbers[0]
    for number, following in pairwise((*numbers, None)):
        if number is None or following == number + 1:
            continue
        slices.append(text[fragments[start].start : fragments[number].end])
        if following is None or not _is_continued_by(fragments[number], fragments[following]):
            yield Quote(hit, tuple(slices), fragments[number].kind in ("sentence", "lead"))
            slices = []
        start = following if following is not None else start


def _is_continued_by(fragment: Fragment, following: Fragment) -> bool:
    in_same_table = fragment.kind in ("head", "row") and fragment.block == following.block
    return in_same_table or fragment.kind == "lead"
