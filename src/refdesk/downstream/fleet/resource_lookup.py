"""Whose a resource is that no list names: found by asking one server after the other, and remembered."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable

from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.transports.base import Message
from refdesk.errors import RefdeskError

logger = logging.getLogger(__name__)

SCAN_SECONDS = 5.0
"""How long one server has to say whether the resource is its own."""

MAX_SCAN_SECONDS = 15.0
"""How long all of them have."""

MAX_RESOURCES = 1000
"""Resources that are remembered; the one found longest ago goes first."""

Read = Callable[[Connection], Awaitable[Message]]


class ResourceOwners:
    """Resources whose servers were found by asking."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, Connection] = OrderedDict()

    def get(self, uri: str) -> Connection | None:
        """The server that gave it."""
        return self._owners.get(uri)

    def forget(self, connection: Connection) -> None:
        """A server that is used no longer has nothing."""
        for uri in [uri for uri, owner in self._owners.items() if owner is connection]:
            del self._owners[uri]

    async def scan(self, uri: str, connections: Iterable[Connection], read: Read) -> tuple[Connection, Message] | None:
        """The first server that lets the resource be read, and what it gave; None when none does."""
        try:
            async with asyncio.timeout(MAX_SCAN_SECONDS):
                for connection in connections:
                    if _may_have_resources(connection) and (answer := await _try_read(connection, read)) is not None:
                        self._store(uri, connection)
                        return connection, answer
        except TimeoutError:
            logger.warning("downstream.scan_ended", extra={"fields": {"seconds": MAX_SCAN_SECONDS}})
        return None

    def _store(self, uri: str, connection: Connection) -> None:
        self._owners[uri] = connection
        self._owners.move_to_end(uri)
        if len(self._owners) > MAX_RESOURCES:
            self._owners.popitem(last=False)


def _may_have_resources(connection: Connection) -> bool:
    is_available = connection.status.state in ("Running", "Stopped")  # one that is only asleep wakes up
    return is_available and connection.greeting is not None and connection.greeting.has("resources")


async def _try_read(connection: Connection, read: Read) -> Message | None:
    """What the server gives, if it does: one that says no, fails or takes long is not the one."""
    try:
        async with asyncio.timeout(SCAN_SECONDS):
            return await read(connection)
    except (RefdeskError, TimeoutError):
        return None
