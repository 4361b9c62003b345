"""Parser of citations in a written answer: `[1]`, `[1, 3]`, `[2-4]`.

Code is skipped: `array[1]` is an element.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_RANGE = 100
"""Longest range; there are never more hits than this."""

_CODE = re.compile(
    r"^ {0,3}(?P<fence>`{3,}|~{3,})[^\n]*\n.*?(?:^ {0,3}(?P=fence)[`~]*[ \t]*$|\Z)"
    r"|(?P<ticks>(?<!`)`+(?!`)).+?(?<!`)(?P=ticks)(?!`)",
    re.DOTALL | re.MULTILINE,
)
_NUMBERS = r"\d{1,9}(?:\s*[-–—]\s*\d{1,9})?"
_CITATION = re.compile(rf"\[\^?({_NUMBERS}(?:\s*[,;]\s*{_NUMBERS})*)\]")
_DENIAL = re.compile(
    r"\W*(?:sorry,?\s+|unfortunately,?\s+|i'm sorry,?\s+(?:but\s+)?)?"
    r"(?:no\s+answer\s+(?:was\s+)?found\b|the\s+(?:\w+\s+){0,2}(?:documents|documentation|passages|sources|excerpts)"
    r"\s+(?:\w+\s+)?(?:do|does)(?:\s+not|n['’]t)\s+(?:\w+\s+)?"
    r"(?:hold|contain|include|provide|have|give|say|mention|answer|cover|describe|explain|specify|state)\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Grounding:
    """The citations of an answer, checked against the hits."""

    cited: tuple[int, ...]
    """Indexes, from 0, of the cited hits, without duplicates, in order of appearance."""
    unknown: tuple[int, ...]
    """Cited numbers that no hit has."""
    is_denial: bool
    """Whether the answer says that the documents do not answer the question."""

    @property
    def is_valid(self) -> bool:
        """Whether the answer cites hits only, and at least one unless it is a denial."""
        return not self.unknown and bool(self.cited or self.is_denial)


def check_grounding(answer: str, hits: int) -> Grounding:
    """Check the citations of an answer that was written from `hits` hits."""
    numbers = tuple(dict.fromkeys(_parse_citations(answer)))
    return Grounding(
        cited=tuple(number - 1 for number in numbers if 1 <= number <= hits),
        unknown=tuple(number for number in numbers if not 1 <= number <= hits),
        is_denial=_DENIAL.match(answer) is not None,
    )


def _parse_citations(answer: str) -> Iterator[int]:
    for citation in _CITATION.finditer(_CODE.sub(" ", answer)):
        for part in re.split(r"[,;]", citation[1]):
            first, *last = map(int, re.split(r"[-–—]", part))
            end = last[0] if last else first
            # No hit has the number 0, which stands for a range that is reversed or too long.
            yield from range(first, end + 1) if first <= end < first + MAX_RANGE else (0,)
