"""Delivery of change notifications to open sessions and to listeners of the modern revision.

Publishing never blocks. One task delivers the events, and a client that doesn't take its message in time misses it.
Events of a tenant only go to that tenant's clients.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import anyio
from mcp.server.connection import Connection
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    PromptsListChanged,
    ResourcesListChanged,
    ServerEvent,
    ToolsListChanged,
)
from mcp.server.subscriptions import ResourceUpdated as ResourceUpdatedEvent

from refdesk.calls import ANONYMOUS, Caller, Event, ListChanged, ResourceUpdated
from refdesk.errors import InvalidArguments, Problem

DELIVERY_SECONDS = 2.0
"""Time limit for delivering a notification. A client that misses one asks again sooner or later."""

BACKLOG = 1024

MAX_SUBSCRIPTIONS = 1000
MAX_URI_LENGTH = 8000
"""Limits per connection: far above what clients use, and a few megabytes at most."""

_LIST_EVENTS: dict[str, ServerEvent] = {
    "tools": ToolsListChanged(),
    "resources": ResourcesListChanged(),
    "prompts": PromptsListChanged(),
}


_listener_caller: ContextVar[Caller] = ContextVar("refdesk.listening", default=ANONYMOUS)
"""The caller whose request is about to subscribe to the bus."""


class TenantEventBus(InMemorySubscriptionBus):
    """Delivers events to the listeners of the modern revision, whose requests stay open."""

    def __init__(self) -> None:
        super().__init__()
        self._event: Event | None = None

    @contextmanager
    def listen_as(self, caller: Caller) -> Iterator[None]:
        """Bind the subscriptions made in the block to a caller."""
        token = _listener_caller.set(caller)
        try:
            yield
        finally:
            _listener_caller.reset(token)

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Add a listener that gets the events the current caller may see."""
        caller = _listener_caller.get()

        def deliver(event: ServerEvent) -> None:
            if self._event is None or self._event.is_for(caller):
                listener(event)

        return super().subscribe(deliver)

    async def publish_event(self, event: Event) -> None:
        """Publish an event. Listeners take it before this returns."""
        self._event = event
        if isinstance(event, ListChanged):
            await self.publish(_LIST_EVENTS[event.kind])
        else:
            await self.publish(ResourceUpdatedEvent(uri=event.uri))


@dataclass(frozen=True, slots=True)
class _Subscriber:
    """The caller of a connection and the resources it's subscribed to."""

    caller: Caller
    uris: set[str] = field(default_factory=set)


class NotificationHub:
    """Open connections, their subscriptions and the queue of events."""

    def __init__(self) -> None:
        self.bus = TenantEventBus()
        self._subscribers: dict[Connection, _Subscriber] = {}
        self._pending: set[Event] = set()
        self._send, self._receive = anyio.create_memory_object_stream[Event](BACKLOG)
        self._is_closed = False

    def publish(self, event: Event) -> None:
        """Queue an event without blocking.

        Duplicates of a queued event are dropped, and so are events when the queue is full.
        """
        if event not in self._pending and len(self._pending) < BACKLOG and not self._is_closed:
            self._pending.add(event)
            self._send.send_nowait(event)

    def add_connection(self, connection: Connection, caller: Caller) -> None:
        """Register a connection until it closes."""
        if connection not in self._subscribers:
            self._subscribers[connection] = _Subscriber(caller)
            connection.exit_stack.callback(self._subscribers.pop, connection, None)

    def subscribe(self, connection: Connection, caller: Caller, uri: str) -> bool:
        """Subscribe a connection to a resource. Return False if it already is."""
        self.add_connection(connection, caller)
        uris = self._subscribers[connection].uris
        if uri in uris:
            return False
        if len(uri) > MAX_URI_LENGTH or len(uris) >= MAX_SUBSCRIPTIONS:
            rule = f"must have at most {MAX_URI_LENGTH} characters, and be one of at most {MAX_SUBSCRIPTIONS}"
            raise InvalidArguments([Problem("uri", rule)])
        uris.add(uri)
        return True

    def is_subscribed(self, connection: Connection, uri: str) -> bool:
        """Return whether a connection is open and subscribed to a resource."""
        return connection in self._subscribers and uri in self._subscribers[connection].uris

    def unsubscribe(self, connection: Connection, uri: str) -> None:
        """Remove a subscription."""
        if connection in self._subscribers:
            self._subscribers[connection].uris.discard(uri)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Deliver events while open."""
        async with self._send, self._receive, anyio.create_task_group() as tasks:
            tasks.start_soon(self._deliver_all)
            try:
                yield
            finally:
                # The application outlives the server, and later events have no recipients.
                self._is_closed = True
            tasks.cancel_scope.cancel()

    async def _deliver_all(self) -> None:
        async for event in self._receive:
            self._pending.discard(event)
            async with anyio.create_task_group() as deliveries:
                for connection, subscriber in list(self._subscribers.items()):
                    if _is_relevant(event, subscriber):
                        deliveries.start_soon(_deliver, event, connection)
                await self.bus.publish_event(event)


def _is_relevant(event: Event, subscriber: _Subscriber) -> bool:
    is_wanted = isinstance(event, ListChanged) or event.uri in subscriber.uris
    return is_wanted and event.is_for(subscriber.caller)


async def _deliver(event: Event, connection: Connection) -> None:
    with anyio.move_on_after(DELIVERY_SECONDS):
        if isinstance(event, ResourceUpdated):
            await connection.send_resource_updated(event.uri)
        else:
            await connection.notify(f"notifications/{event.kind}/list_changed", None)
