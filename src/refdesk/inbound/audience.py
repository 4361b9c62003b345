"""Who is told when something changes: open sessions of the older revisions, and listeners of the newest one.

Events come in from anywhere without waiting; one task sends them out, and a client that does not take its
message in time misses it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from mcp.server.connection import Connection
from mcp.server.subscriptions import PromptsListChanged, ResourcesListChanged, ServerEvent, ToolsListChanged
from mcp.server.subscriptions import ResourceUpdated as ResourceUpdatedEvent

from refdesk.calls import Event, ListChanged, ResourceUpdated

DELIVERY_SECONDS = 2.0
"""A notice is worth no more waiting than this; its client asks again sooner or later."""

BACKLOG = 1024

Publish = Callable[[ServerEvent], Awaitable[None]]

_LIST_EVENTS: dict[str, ServerEvent] = {
    "tools": ToolsListChanged(),
    "resources": ResourcesListChanged(),
    "prompts": PromptsListChanged(),
}


class Audience:
    """Open connections and what each has subscribed to."""

    def __init__(self) -> None:
        self._connections: dict[Connection, set[str]] = {}
        self._publishers: list[Publish] = []
        self._waiting: set[Event] = set()
        self._send, self._receive = anyio.create_memory_object_stream[Event](BACKLOG)
        self._is_over = False

    def notice(self, event: Event) -> None:
        """Take an event; never waits. One that is waiting already is not told twice, and beyond the backlog none is."""
        if event not in self._waiting and len(self._waiting) < BACKLOG and not self._is_over:
            self._waiting.add(event)
            self._send.send_nowait(event)

    def also_tell(self, publish: Publish) -> None:
        """Hand every event to a bus of the newest revision too."""
        self._publishers.append(publish)

    def join(self, connection: Connection) -> None:
        """Add a connection until it closes."""
        if connection not in self._connections:
            self._connections[connection] = set()
            connection.exit_stack.callback(self._connections.pop, connection, None)

    def subscribe(self, connection: Connection, uri: str) -> None:
        """Tell this connection of changes to a resource."""
        self.join(connection)
        self._connections[connection].add(uri)

    def unsubscribe(self, connection: Connection, uri: str) -> None:
        """Tell it no longer."""
        self._connections.get(connection, set()).discard(uri)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Send events out while open."""
        async with self._send, self._receive, anyio.create_task_group() as tasks:
            tasks.start_soon(self._deliver_all)
            try:
                yield
            finally:
                # The desk outlasts the door, and what it still does is news to nobody.
                self._is_over = True
            tasks.cancel_scope.cancel()

    async def _deliver_all(self) -> None:
        async for event in self._receive:
            self._waiting.discard(event)
            async with anyio.create_task_group() as deliveries:
                for connection, uris in list(self._connections.items()):
                    deliveries.start_soon(_deliver, event, connection, frozenset(uris))
                for publish in self._publishers:
                    await publish(_modern(event))


async def _deliver(event: Event, connection: Connection, uris: frozenset[str]) -> None:
    with anyio.move_on_after(DELIVERY_SECONDS):
        if isinstance(event, ResourceUpdated):
            if event.uri in uris:
                await connection.send_resource_updated(event.uri)
        else:
            await connection.notify(f"notifications/{event.kind}/list_changed", None)


def _modern(event: Event) -> ServerEvent:
    return _LIST_EVENTS[event.kind] if isinstance(event, ListChanged) else ResourceUpdatedEvent(uri=event.uri)
