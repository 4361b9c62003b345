"""Citations in a written answer: `[1]`, `[1, 3]`, `[2-4]`. Found, and checked against what was retrieved. Pure.

What stands in code is none: `array[1]` is an element.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_RANGE = 100
"""The longest range that is read as one; there are never more hits than this."""

_CODE = re.compile(
    r"^ {0,3}(?P<fence>`{3,}|~{3,})[^\n]*\n.*?(?:^ {0,3}(?P=fence)[`~]*[ \t]*$|\Z)"
    r"|(?P<ticks>(?<!`)`+(?!`)).+?(?<!`)(?P=ticks)(?!`)",
    re.DOTALL | re.MULTILINE,
)
_NUMBERS = r"\d{1,9}(?:\s*[-–—]\s*\d{1,9})?"
_CITATION = re.compile(rf"\[\^?({_NUMBERS}(?:\s*[,;]\s*{_NUMBERS})*)\]")
_DENIAL = re.compile(
    r"\W*(?:sorry,?\s+|unfortunately,?\s+|i'm sorry,?\s+(?:but\s+)?)?the\s+(?:\w+\s+){0,2}"
    r"(?:documents|documentation|passages|sources|excerpts)\s+(?:\w+\s+)?(?:do|does)(?:\s+not|n['’]t)\s+(?:\w+\s+)?"
    r"(?:hold|contain|include|provide|have|give|say|mention|answer|cover|describe|explain|specify|state)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Grounding:
    """What an answer rests on."""

    cited: tuple[int, ...]
    """Positions, from 0, of the hits that it cites, each once, in the order of its text."""
    unknown: tuple[int, ...]
    """Numbers that it cites although no hit has them."""
    denies: bool
    """Whether it says that the documents do not hold the answer."""

    @property
    def is_sound(self) -> bool:
        """Whether the answer may be given: it cites only what was retrieved, and something, unless it denies."""
        return not self.unknown and bool(self.cited or self.denies)


def grounding(answer: str, hits: int) -> Grounding:
    """What an answer that was written from so many hits rests on."""
    numbers = tuple(dict.fromkeys(_cited_numbers(answer)))
    return Grounding(
        cited=tuple(number - 1 for number in numbers if 1 <= number <= hits),
        unknown=tuple(number for number in numbers if not 1 <= number <= hits),
        denies=_DENIAL.match(answer) is not None,
    )


def _cited_numbers(answer: str) -> Iterator[int]:
    for citation in _CITATION.finditer(_CODE.sub(" ", answer)):
        for part in re.split(r"[,;]", citation[1]):
            first, *last = map(int, re.split(r"[-–—]", part))
            yield from _range(first, last[0] if last else first)


def _range(first: int, last: int) -> Iterator[int]:
    """Both ends of a range and all between; of one that runs backwards or too far, a number that no hit has."""
    if first <= last < first + MAX_RANGE:
        yield from range(first, last + 1)
    else:
        yield 0
