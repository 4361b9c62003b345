"""Lookup of the server that has an unlisted resource, by asking one after the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.transports.base import Message
from refdesk.errors import RefdeskError
from refdesk.support.lru import BoundedDict

logger = logging.getLogger(__name__)

SCAN_SECONDS = 5.0
"""Timeout for one server."""

MAX_SCAN_SECONDS = 15.0
"""Timeout for all servers together."""

MAX_RESOURCES = 1000
"""Remembered resources. The oldest is evicted first."""

Read = Callable[[Connection], Awaitable[Message]]


class ResourceOwners:
    """Servers of unlisted resources, as found by `scan`."""

    def __init__(self) -> None:
        self._owners: BoundedDict[str, Connection] = BoundedDict(MAX_RESOURCES)

    def get(self, uri: str) -> Connection | None:
        """Return the server that had the resource."""
        return self._owners.get(uri)

    def forget(self, connection: Connection) -> None:
        """Remove all resources of a server."""
        for uri in [uri for uri, owner in self._owners.items() if owner is connection]:
            del self._owners[uri]

    async def scan(self, uri: str, connections: Iterable[Connection], read: Read) -> tuple[Connection, Message] | None:
        """Return the first server that can read the resource, with the result, or None."""
        try:
            async with asyncio.timeout(MAX_SCAN_SECONDS):
                for connection in connections:
                    if _may_have_resources(connection) and (answer := await _try_read(connection, read)) is not None:
                        self._owners[uri] = connection
                        return connection, answer
        except TimeoutError:
            logger.warning("downstream.scan_ended", extra={"fields": {"seconds": MAX_SCAN_SECONDS}})
        return None


def _may_have_resources(connection: Connection) -> bool:
    is_available = connection.status.state in ("Running", "Stopped")  # an idle server wakes up
    return is_available and connection.server_profile is not None and connection.server_profile.has("resources")


async def _try_read(connection: Connection, read: Read) -> Message | None:
    """Read the resource from a server. Return None if it fails or times out."""
    try:
        async with asyncio.timeout(SCAN_SECONDS):
            return await read(connection)
    except (RefdeskError, TimeoutError):
        return None
