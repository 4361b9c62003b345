"""Delivery of change notifications to sessions and to listeners of the stateless revision.

Publishing never blocks, and a client that doesn't read misses notifications. Events of a tenant only go to that
tenant's clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from refdesk.calls import Caller, Event, ListChanged
from refdesk.errors import InternalError
from refdesk.inbound.envelope import MessageId
from refdesk.inbound.mcp.revisions import SUBSCRIPTION_ID_META
from refdesk.inbound.mcp.sessions import Session
from refdesk.inbound.mcp.streams import MessageStream

MAX_LISTENERS = 1024
"""Maximum number of open `subscriptions/listen` requests."""

MAX_SUBSCRIPTIONS = 1000
MAX_URI_LENGTH = 8000
"""Limits per client: far above what clients use, and a few megabytes at most."""


@dataclass(eq=False, slots=True)
class ChangeListener:
    """An open `subscriptions/listen` request."""

    id: MessageId
    caller: Caller
    kinds: frozenset[str]
    """The lists whose changes it wants: `tools`, `resources` or `prompts`."""
    uris: frozenset[str]
    stream: MessageStream
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification. A listener that doesn't read is ended, and has to ask again."""
        if self.stream.has_room:
            tagged = {**params, "_meta": {SUBSCRIPTION_ID_META: self.id}}
            self.stream.send({"jsonrpc": "2.0", "method": method, "params": tagged})
        else:
            self.ended.set()


class NotificationHub:
    """The sessions and listeners that are notified, and the events of this moment."""

    def __init__(self) -> None:
        self._sessions: set[Session] = set()
        self._listeners: set[ChangeListener] = set()
        self._pending: dict[Event, None] = {}
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    def publish(self, event: Event) -> None:
        """Deliver an event soon. Duplicates until then are dropped."""
        if self._is_closed:
            return  # the application outlives the server
        if not self._pending:
            self._loop.call_soon(self._deliver)
        self._pending.setdefault(event)

    def add_session(self, session: Session) -> None:
        """Notify a session until it's removed."""
        self._sessions.add(session)

    def remove_session(self, session: Session) -> None:
        """Stop notifying a session."""
        self._sessions.discard(session)

    def add_listener(self, listener: ChangeListener) -> None:
        """Notify a listener until it's removed."""
        if len(self._listeners) >= MAX_LISTENERS:
            raise InternalError("Subscription limit reached")
        self._listeners.add(listener)
        if self._is_closed:
            listener.ended.set()

    def remove_listener(self, listener: ChangeListener) -> None:
        """Stop notifying a listener."""
        self._listeners.discard(listener)

    def close(self) -> None:
        """End all listeners. Later events have no recipients."""
        self._is_closed = True
        for listener in self._listeners:
            listener.ended.set()

    def _deliver(self) -> None:
        events, self._pending = self._pending, {}
        for event in events:
            if isinstance(event, ListChanged):
                method, params = f"notifications/{event.kind}/list_changed", None
                sessions = self._sessions
                listeners = [listener for listener in self._listeners if event.kind in listener.kinds]
            else:
                method, params = "notifications/resources/updated", {"uri": event.uri}
                sessions = {session for session in self._sessions if event.uri in session.subscriptions}
                listeners = [listener for listener in self._listeners if event.uri in listener.uris]
            message = {"jsonrpc": "2.0", "method": method} | ({"params": params} if params else {})
            for session in sessions:
                if event.is_for(session.caller):
                    session.send(message)
            for listener in listeners:
                if event.is_for(listener.caller):
                    listener.send(method, params or {})
