"""List items: markers and depth."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from .layout import Line

BULLETS = frozenset("•◦▪▫●○■□◆◇‣⁃∙·➢➤►✓✔−–—-*\uf0b7\uf0a7\uf0d8\uf076\uf0fc\uf02d\uf06f")
"""Bullet characters, including private code points of symbol fonts."""

PLAIN_SIGNS = frozenset("−–—-*·")
"""Bullets that are also punctuation; a hanging indent or a neighbour has to confirm them."""

SURE_BULLETS = BULLETS - PLAIN_SIGNS

STEP = 4.0
"""Minimum indent of a nested list in points."""

LONGEST_MARKER = 8
"""Characters, `(viii)` and `xviii.` included."""

_NUMBER = re.compile(r"^[(\[]?(?:(?P<arabic>\d{1,3})|(?P<letter>[a-zA-Z])|(?P<roman>[ivxIVX]{1,6}))[.)\]]$")
_ROMAN = {"i": 1, "v": 5, "x": 10}


@dataclass(frozen=True, slots=True)
class Marker:
    """List marker: a bullet, or a number with its possible readings."""

    left: float
    body: float
    """Left edge of the item's text."""
    words: int
    """Number of words it takes."""
    numbers: frozenset[int] = frozenset()
    sure: bool = True
    style: str = ""

    @property
    def is_ordered(self) -> bool:
        return bool(self.numbers)


def parse_marker(line: Line) -> Marker | None:
    """Return the marker at the start of a line, or None."""
    words = line.words
    first = words[0]
    if line.bullet:
        return Marker(line.left, line.left, 0)
    if len(words) < 2 or len(first.text) > LONGEST_MARKER or words[1].glued:
        return None
    if first.text in BULLETS:
        return Marker(line.left, words[1].left, 1, sure=first.text not in PLAIN_SIGNS, style=first.text)
    if first.font.fixed:
        return None
    number = _NUMBER.match(first.text)
    if number is None:
        return None
    # Items of one list share punctuation and kind of number.
    kind = "1" if number["arabic"] else "A" if first.text.strip("()[].").isupper() else "a"
    return Marker(line.left, words[1].left, 1, _parse_numbers(number), False, re.sub(r"\w+", kind, first.text))


def _parse_numbers(number: re.Match[str]) -> frozenset[int]:
    if number["arabic"]:
        return frozenset((int(number["arabic"]),))
    text = (number["letter"] or number["roman"]).lower()
    readings = {ord(text) - ord("a") + 1} if number["letter"] else set()
    if set(text) <= set(_ROMAN):
        values = [_ROMAN[letter] for letter in text]
        readings.add(sum(-one if one < other else one for one, other in pairwise([*values, 0])))
    return frozenset(readings)


class OpenLists:
    """Lists open at a position, outermost first."""

    def __init__(self) -> None:
        self._levels: list[Marker] = []
        """The marker of the last item at each depth."""

    def accepts(self, marker: Marker) -> bool:
        """Whether an unsure marker continues an open list."""
        for level in reversed(self._levels):
            if level.style == marker.style and abs(level.left - marker.left) < 3 * STEP:
                return not marker.is_ordered or any(number - 1 in level.numbers for number in marker.numbers)
        return False

    def open(self, marker: Marker) -> int:
        """Record an item and return its depth."""
        while self._levels:
            last, outer = self._levels[-1], self._levels[:-1]
            # A marker may continue an outer list: flush right, 10 starts left of 9.
            is_outer = any(level.style == marker.style and abs(level.left - marker.left) < STEP for level in outer)
            if marker.left >= last.left - STEP / 2 and (abs(marker.left - last.left) < STEP or not is_outer):
                break
            self._levels.pop()
        if self._levels and marker.left < self._levels[-1].left + STEP:
            self._levels[-1] = marker
        else:
            self._levels.append(marker)
        return len(self._levels) - 1

    def close_beyond(self, left: float) -> None:
        """Close the lists that are indented further than running text at this position."""
        while self._levels and left < self._levels[-1].body - STEP:
            self._levels.pop()

    def clear(self) -> None:
        """Close all lists, as a heading does."""
        self._levels.clear()
