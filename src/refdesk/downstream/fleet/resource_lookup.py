"""Lookup of the server that has a resource: by its URI templates (RFC 6570), or by asking one server after the other.

Server input is never compiled into a regular expression. All reachable positions are tracked at once, so that the time
grows only with the length of the URI and the number of expressions.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.jsonrpc import Message
from refdesk.errors import RefdeskError

logger = logging.getLogger(__name__)

SCAN_SECONDS = 5.0
"""Timeout for one server."""

MAX_SCAN_SECONDS = 15.0
"""Timeout for all servers together."""

MAX_URI_LENGTH = 1000
"""Longer URIs match no template. Their servers are found by `scan`."""

MAX_EXPRESSIONS = 6
"""Expressions per template: more than real ones have. Templates with more match nothing. A hundred templates of this
size take an eighth of a second for the longest URI, which blocks the event loop."""

_EXPRESSION = re.compile(r"\{([+#./;?&]?)[^{}]*\}")

_TERMINATORS = {"": "/?#", "#": "", ".": "/?#", "/": "?#", ";": "/?#", "?": "#", "&": "#"}
"""Characters that end an expression, by operator. Looser than the RFC, like real servers."""

Read = Callable[[Connection], Awaitable[Message]]


async def scan_servers(connections: Iterable[Connection], read: Read) -> tuple[Connection, Message] | None:
    """Return the first server that can read a resource, with the result, or None."""
    try:
        async with asyncio.timeout(MAX_SCAN_SECONDS):
            for connection in connections:
                profile = connection.server_profile
                is_available = connection.status.state in ("Running", "Stopped")  # an idle server wakes up
                if is_available and profile is not None and profile.has("resources"):
                    with suppress(RefdeskError, TimeoutError):
                        async with asyncio.timeout(SCAN_SECONDS):
                            return connection, await read(connection)
    except TimeoutError:
        logger.warning("downstream.scan_ended", extra={"fields": {"seconds": MAX_SCAN_SECONDS}})
    return None


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
