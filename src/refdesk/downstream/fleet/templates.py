"""Matching of URIs against URI templates (RFC 6570).

Server input is never compiled into a regular expression. All reachable positions are tracked at once, so that the time
grows only with the length of the URI and the number of expressions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_URI_LENGTH = 1000
"""Longer URIs match no template. Their servers are found by `scan`."""

MAX_EXPRESSIONS = 6
"""Expressions per template: more than real ones have. Templates with more match nothing. A hundred templates of this
size take an eighth of a second for the longest URI, which blocks the event loop."""

_EXPRESSION = re.compile(r"\{([+#./;?&]?)[^{}]*\}")

_TERMINATORS = {"": "/?#", "#": "", ".": "/?#", "/": "?#", ";": "/?#", "?": "#", "&": "#"}
"""Characters that end an expression, by operator. Looser than the RFC, like real servers."""


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template: the literal prefix, then pairs of operator and following literal."""

    head: str
    rest: tuple[tuple[str, str], ...]

    def fits(self, uri: str) -> bool:
        """Whether the URI can be an expansion of the template."""
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
    """Parse a template. Return None if it has no scheme or too many expressions."""
    head, *rest = _EXPRESSION.split(text, maxsplit=MAX_EXPRESSIONS + 1)
    if ":" not in head or len(rest) > 2 * MAX_EXPRESSIONS:
        # Without a scheme it would match the URIs of other servers.
        return None
    return Template(head, tuple(zip(rest[::2], rest[1::2], strict=True)))


def _advance(uri: str, positions: set[int], operator: str) -> set[int]:
    """Return the positions reachable after an expression, given the positions before it.

    An expression whose operator adds a prefix may be empty.
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
