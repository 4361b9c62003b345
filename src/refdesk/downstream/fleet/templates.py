"""Which URIs a URI template stands for: RFC 6570, read backwards.

No regular expression is made of what a server gives. Every place in the URI that can be reached is followed at once, so
that the time grows with the length of the URI and the number of expressions, and with nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_URI_LENGTH = 1000
"""Characters; a longer URI fits no template, and its server is found by asking."""

MAX_EXPRESSIONS = 6
"""Of a template, more than real ones have; one with more stands for nothing. A hundred templates of so many take an
eighth of a second for the longest URI, in which nobody is served."""

_EXPRESSION = re.compile(r"\{([+#./;?&]?)[^{}]*\}")

_TERMINATORS = {"": "/?#", "#": "", ".": "/?#", "/": "?#", ";": "/?#", "?": "#", "&": "#"}
"""By operator: the characters that end what an expression stands for. Looser than the RFC, as servers are."""


@dataclass(frozen=True, slots=True)
class Template:
    """A template that was taken apart: the text before, and then an expression's operator and the text after it."""

    head: str
    rest: tuple[tuple[str, str], ...]

    def fits(self, uri: str) -> bool:
        """Whether the URI can be one of those that the template stands for."""
        if len(uri) > MAX_URI_LENGTH or not uri.startswith(self.head):
            return False
        positions = {len(self.head)}
        for operator, text in self.rest:
            positions = _advance(uri, positions, operator)
            positions = {position + len(text) for position in positions if uri.startswith(text, position)}
            if not positions:
                return False
        return len(uri) in positions


def parse_template(text: str) -> Template | None:
    """The template; None for one that stands for everything, for too much, or for nothing."""
    head, *rest = _EXPRESSION.split(text, maxsplit=MAX_EXPRESSIONS + 1)
    if ":" not in head or len(rest) > 2 * MAX_EXPRESSIONS:
        # Without a scheme of its own it would claim what others have.
        return None
    return Template(head, tuple(zip(rest[::2], rest[1::2], strict=True)))


def _advance(uri: str, positions: set[int], operator: str) -> set[int]:
    """Where one can be behind an expression, having been at these places before it.

    One that brings a character of its own with it may stand for nothing at all.
    """
    if operator == "+":
        return set(range(min(positions) + 1, len(uri) + 1))
    prefix, terminators = operator, _TERMINATORS[operator]
    reached = set(positions) if prefix else set()
    is_inside = False
    for position in range(min(positions), len(uri)):
        character = uri[position]
        if prefix:
            is_inside = (position in positions and character == prefix) or (is_inside and character not in terminators)
        else:
            is_inside = (is_inside or position in positions) and character not in terminators
        if is_inside:
            reached.add(position + 1)
    return reached
