"""From scored pieces to the text of an answer: what is quoted, what completes it, in which order. Pure.

Whatever is quoted is a slice of a hit's own text; only citations, and line breaks between quotes, are added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from refdesk.answers.sentences import Piece
from refdesk.documents.tokens import count_tokens
from refdesk.engines.base import Hit

CITATION_TOKENS = 4
"""`[12]` and what sets it apart."""

MAX_QUOTED = 8
"""Pieces that are picked for an answer; who wants more reads the source."""

MAX_FOLLOWING = 8
"""Items of a list that are quoted after the sentence which introduces them."""

_LEANS_BACK = re.compile(
    r"[*_(]*(?:this|these|that|those|it|its|they|such|however|therefore|thus|hence|then|also|otherwise|instead|"
    r"similarly|in (?:this|that|these|such)|for (?:example|instance)|but|and|so)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+\Z")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a piece stands: which hit, and which of its pieces."""

    hit: int
    piece: int


@dataclass(frozen=True, slots=True)
class Quote:
    """Slices of one hit that stand together, under one citation."""

    hit: int
    slices: tuple[str, ...]
    is_prose: bool
    """Whether the citation can follow in the same line; below a table or code it cannot."""

    @property
    def text(self) -> str:
        """The quote as it is shown."""
        citation = f"[{self.hit + 1}]"
        between = "\n\n" if self.is_prose else "\n"
        return between.join(self.slices) + (f" {citation}" if self.is_prose else f"\n\n{citation}")


class Selection:
    """The pieces that are quoted, within a budget of tokens."""

    def __init__(self, pieces: Sequence[Sequence[Piece]], max_tokens: int) -> None:
        """`pieces`: those of each hit."""
        self._pieces = pieces
        self._room = max_tokens
        self.places: set[Place] = set()
        self.picked: list[Place] = []

    def add(self, place: Place) -> bool:
        """Take a piece in with what completes it, or by itself when that is too much; whether it could be taken."""
        if len(self.picked) >= MAX_QUOTED:
            return False
        needed = set(needed_by(self._pieces[place.hit], place.piece))
        completing = needed | set(completes(self._pieces[place.hit], place.piece))
        for numbers in (completing, needed):
            wanted = {Place(place.hit, number) for number in numbers} - self.places
            cost = sum(map(self._cost, wanted))
            if cost <= self._room:
                self.places |= wanted
                self.picked.append(place)
                self._room -= cost
                return True
        return False

    def _cost(self, place: Place) -> int:
        return count_tokens(self._pieces[place.hit][place.piece].text) + CITATION_TOKENS


def needed_by(pieces: Sequence[Piece], number: int) -> Iterator[int]:
    """The piece itself, and what it makes no sense without: a table's head, the term that it defines."""
    yield number
    piece = pieces[number]
    if piece.kind == "row":
        yield from (at for at, other in enumerate(pieces) if other.block == piece.block and other.kind == "head")
    first = next(at for at, other in enumerate(pieces) if other.block == piece.block)
    if first and pieces[first - 1].kind == "lead":
        yield first - 1


def completes(pieces: Sequence[Piece], number: int) -> Iterator[int]:
    """The neighbours that finish what a piece says: what `this` is, and what follows a colon."""
    piece = pieces[number]
    before = pieces[number - 1] if number else None
    if before and before.kind == "sentence":
        leans = before.block == piece.block and piece.kind == "sentence" and _LEANS_BACK.match(piece.text)
        if leans or (piece.kind == "code" and before.text.endswith(":")):
            yield number - 1
    if piece.text.endswith(":"):
        yield from _introduced(pieces, number)


def _introduced(pieces: Sequence[Piece], number: int) -> Iterator[int]:
    """What a sentence with a colon at its end announces: the code below it, or the items of the list."""
    following = pieces[number + 1 : number + 1 + MAX_FOLLOWING]
    if following and following[0].kind == "code":
        yield number + 1
        return
    for at, piece in enumerate(following, number + 1):
        if not piece.is_item:
            return
        yield at


def quotes(places: Sequence[Place], pieces: Sequence[Sequence[Piece]], hits: Sequence[Hit]) -> list[Quote]:
    """The quotes in reading order, grouped by document; the document of the piece that comes first is first."""
    order: dict[str, int] = {}
    for place in places:
        order.setdefault(hits[place.hit].document.id, len(order))

    def reading_order(place: Place) -> tuple[int, int, int, int]:
        hit = hits[place.hit]
        number = _NUMBER.search(hit.chunk_id)
        return order[hit.document.id], int(number[0]) if number else 0, place.hit, place.piece

    in_order = sorted(places, key=reading_order)
    return [
        quote
        for hit, group in groupby(in_order, key=lambda place: place.hit)
        for quote in _quotes_of(hit, hits[hit].text, pieces[hit], [place.piece for place in group])
    ]


def _quotes_of(hit: int, text: str, pieces: Sequence[Piece], numbers: Sequence[int]) -> Iterator[Quote]:
    """One for every run of neighbours; a table's head and a term go on with the row or sentence that needs them."""
    slices: list[str] = []
    start = numbers[0]
    for number, following in pairwise((*numbers, None)):
        if number is None or following == number + 1:
            continue
        slices.append(text[pieces[start].start : pieces[number].end])
        if following is None or not _goes_with(pieces[number], pieces[following]):
            yield Quote(hit, tuple(slices), pieces[number].kind in ("sentence", "lead"))
            slices = []
        start = following if following is not None else start


def _goes_with(piece: Piece, following: Piece) -> bool:
    in_same_table = piece.kind in ("head", "row") and piece.block == following.block
    return in_same_table or piece.kind == "lead"
