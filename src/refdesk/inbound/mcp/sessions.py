"""Sessions of the handshake revisions, and the delivery of change notifications to clients of all revisions."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import orjson

from refdesk.calls import Caller, Event, ListChanged, LogLevel
from refdesk.errors import ClientCannot, InternalError, InvalidRequest, Overloaded
from refdesk.inbound.jsonrpc import MessageId, RpcResponse
from refdesk.inbound.mcp.revisions import HANDSHAKE_REVISIONS, SUBSCRIPTION_ID_META
from refdesk.inbound.mcp.streams import EventStore, EventStream, Outbox, SessionEvents, encode_event, encode_start
from refdesk.inbound.requests import DisconnectWatcher

MAX_LISTENERS = 1024
"""Maximum number of open `subscriptions/listen` requests."""

MAX_SUBSCRIPTIONS = 1000
MAX_URI_LENGTH = 8000
"""Limits per client: far above what clients use, and a few megabytes at most."""

_request_numbers = count(1)
"""Numbers of requests to clients, unique across sessions: an id of another session's request matches nothing."""


RequestWork = DisconnectWatcher | asyncio.Future[None]
"""The work of a request in progress, over HTTP or on standard input and output."""


class Session:
    """A connection to a client of a handshake revision."""

    def __init__(self, caller: Caller, send: Callable[[Mapping[str, Any]], object]) -> None:
        """`send` sends a notification outside of a call's stream, without blocking."""
        self.caller = caller
        self.send = send
        self.revision: str | None = None
        """The agreed revision. None before `initialize`."""
        self.capabilities: Mapping[str, Any] = {}
        """What the client has declared, in wire format."""
        self.log_level: LogLevel = "debug"
        """Minimum level of the log messages to send."""
        self.subscriptions: dict[str, Caller | None] = {}
        """The client's subscriptions by URI, with the caller who made them. None until the resource's server agrees."""
        self.in_flight: dict[MessageId, RequestWork] = {}
        """Requests of the client without a response yet."""
        self.roots: Mapping[str, Any] | None = None
        """The client's answer to `roots/list`, as long as it holds."""
        self.roots_changes = 0
        """How often the client has changed its roots."""
        self.is_closed = False
        self.key: object = object()
        """Equal for all calls of the session."""
        self._requests: dict[str, asyncio.Future[RpcResponse]] = {}

    def begin(self, id: MessageId, work: RequestWork) -> None:
        """Register a request. Raises InvalidRequest while another one with its id is in progress."""
        if id in self.in_flight:
            raise InvalidRequest("A request with this id is still being answered in this session")
        self.in_flight[id] = work

    def finish(self, id: MessageId, work: RequestWork) -> None:
        """Release the id of a request."""
        if self.in_flight.get(id) is work:
            del self.in_flight[id]

    def cancel(self, id: object) -> None:
        """Cancel a request in progress, and release its id: it gets no response."""
        work = self.in_flight.pop(id, None) if isinstance(id, str | int) else None
        if work is not None:
            work.cancel()

    @contextmanager
    def expect_response(self) -> Iterator[tuple[str, asyncio.Future[RpcResponse]]]:
        """Register a request to the client. Yields its id and a future for the response."""
        id = f"refdesk-{next(_request_numbers)}"
        response: asyncio.Future[RpcResponse] = asyncio.get_running_loop().create_future()
        self._requests[id] = response
        try:
            yield id, response
        finally:
            self._requests.pop(id, None)

    def forget_roots(self) -> None:
        """Ask the client for its roots again the next time they are needed."""
        self.roots = None
        self.roots_changes += 1

    @property
    def can_be_asked(self) -> bool:
        """Whether requests reach the client outside of its calls."""
        return True

    async def ask(self, method: str) -> Mapping[str, Any]:
        """Send a request that belongs to no call, and return the client's result."""
        with self.expect_response() as (id, response):
            self._send_request({"jsonrpc": "2.0", "id": id, "method": method})
            answer = await response
        if not isinstance(answer.result, Mapping):
            raise ClientCannot(f"The client gave no usable answer to {method}.")
        return answer.result

    def _send_request(self, request: Mapping[str, Any]) -> None:
        self.send(request)

    def resolve(self, response: RpcResponse) -> None:
        """Pass a response to the request that waits for it, if any."""
        pending = self._requests.get(str(response.id))
        if pending is not None and not pending.done():
            pending.set_result(response)

    def close(self) -> None:
        """Fail all requests to the client."""
        self.is_closed = True
        for response in self._requests.values():
            if not response.done():
                response.set_exception(ClientCannot("The client's session ended before it answered."))


class HttpSession(Session):
    """A session over HTTP. Its notifications go out on the stream of a GET request, and are stored."""

    def __init__(self, caller: Caller, store: EventStore) -> None:
        super().__init__(caller, self._store_and_send)
        self.id = secrets.token_hex(16)
        self.stream: EventStream | None = None
        self.last_used = 0.0
        self.idle_timer: asyncio.TimerHandle | None = None
        self._store = store
        self._events = SessionEvents()

    @property
    def can_be_asked(self) -> bool:
        return self.stream is not None

    def _store_and_send(self, message: Mapping[str, Any]) -> None:
        """Store a notification, and send it if the client listens. A client that doesn't read misses it."""
        encoded = orjson.dumps(message)
        number = self._store.add(self._events, encoded)
        if self.stream is not None and self.stream.has_room:
            self.stream.put(encode_event(encoded, number))

    def _send_request(self, request: Mapping[str, Any]) -> None:
        # Not stored: by the time a client reconnects, the request has timed out.
        if self.stream is not None:
            self.stream.put(encode_event(orjson.dumps(request)))

    def attach(self, stream: EventStream, last_event_id: bytes | None) -> None:
        """Send notifications on a stream, beginning with those after `last_event_id`."""
        if self.stream is not None:
            self.stream.finish()
        self.stream = stream
        if last_event_id is None:
            return
        for number, message in self._store.list_after(self._events, last_event_id):
            stream.put(encode_event(message, number))
        if self.revision == HANDSHAKE_REVISIONS[-1]:
            # Clients of earlier revisions can't parse an event without a message.
            stream.put(encode_start(self._store.add(self._events, None)))

    def detach(self, stream: EventStream) -> None:
        """Stop sending notifications on a stream."""
        if self.stream is stream:
            self.stream = None

    def close(self) -> None:
        super().close()
        if self.stream is not None:
            self.stream.finish()
        if self.idle_timer is not None:
            self.idle_timer.cancel()
        self._store.drop_session(self._events)


class SessionTable:
    """Open sessions over HTTP: bounded in number, bound to the user who opened them, and closed when idle."""

    def __init__(self, max_sessions: int, idle_seconds: float, on_close: Callable[[Session], None]) -> None:
        self._max_sessions = max_sessions
        self._idle_seconds = idle_seconds
        self._on_close = on_close
        self._sessions: dict[str, HttpSession] = {}
        self._events = EventStore()
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._sessions)

    def create(self, caller: Caller) -> HttpSession:
        """Create a session, to be added once it's initialized. Raises Overloaded if too many are open."""
        if len(self._sessions) >= self._max_sessions:
            raise Overloaded("Too many open sessions", retry_after=1.0)
        return HttpSession(caller, self._events)

    def add(self, session: HttpSession) -> None:
        """Open a session."""
        self._sessions[session.id] = session
        self.touch(session)
        session.idle_timer = self._loop.call_later(self._idle_seconds, self._expire, session)

    def find(self, id: bytes, caller: Caller) -> HttpSession | None:
        """Return an open session of a caller."""
        session = self._sessions.get(id.decode("latin-1"))
        if session is None or _get_owner(session.caller) != _get_owner(caller):
            return None
        session.last_used = self._loop.time()
        return session

    def touch(self, session: HttpSession) -> None:
        """Restart the idle timeout of a session."""
        session.last_used = self._loop.time()

    def close(self, session: HttpSession) -> None:
        """End a session."""
        if self._sessions.pop(session.id, None) is not None:
            session.close()
            self._on_close(session)

    def close_all(self) -> None:
        """End all sessions."""
        for session in list(self._sessions.values()):
            self.close(session)

    def end_streams(self) -> None:
        """End the streams of all sessions."""
        for session in self._sessions.values():
            if session.stream is not None:
                session.stream.finish()

    def _expire(self, session: HttpSession) -> None:
        """Close a session if it has been idle, else check again when it may have been."""
        is_busy = bool(session.in_flight) or session.stream is not None
        left = self._idle_seconds if is_busy else session.last_used + self._idle_seconds - self._loop.time()
        if left > 0:
            session.idle_timer = self._loop.call_later(left, self._expire, session)
        else:
            self.close(session)


def _get_owner(caller: Caller) -> tuple[str, str] | None:
    return (caller.tenant, caller.user) if caller.authenticated else None


@dataclass(eq=False, slots=True)
class ChangeListener:
    """An open `subscriptions/listen` request."""

    id: MessageId
    caller: Caller
    kinds: frozenset[str]
    """The lists whose changes it wants: `tools`, `resources` or `prompts`."""
    uris: frozenset[str]
    stream: Outbox
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification. A listener that doesn't read is ended, and has to ask again."""
        if self.stream.has_room:
            tagged = {**params, "_meta": {SUBSCRIPTION_ID_META: self.id}}
            self.stream.send({"jsonrpc": "2.0", "method": method, "params": tagged})
        else:
            self.ended.set()


class NotificationHub:
    """The sessions and listeners that are notified, and the events of this moment.

    Publishing never blocks, and a client that doesn't read misses notifications. Events of a tenant only go to that
    tenant's clients.
    """

    def __init__(self) -> None:
        self.sessions: set[Session] = set()
        self.listeners: set[ChangeListener] = set()
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

    def add_listener(self, listener: ChangeListener) -> None:
        """Notify a listener. Raises InternalError if there are too many."""
        if len(self.listeners) >= MAX_LISTENERS:
            raise InternalError("Subscription limit reached")
        self.listeners.add(listener)
        if self._is_closed:
            listener.ended.set()

    def close(self) -> None:
        """End all listeners. Later events have no recipients."""
        self._is_closed = True
        for listener in self.listeners:
            listener.ended.set()

    def _deliver(self) -> None:
        events, self._pending = self._pending, {}
        for event in events:
            if isinstance(event, ListChanged):
                method, params = f"notifications/{event.kind}/list_changed", None
                sessions = self.sessions
                listeners = [listener for listener in self.listeners if event.kind in listener.kinds]
            else:
                method, params = "notifications/resources/updated", {"uri": event.uri}
                sessions = {session for session in self.sessions if event.uri in session.subscriptions}
                listeners = [listener for listener in self.listeners if event.uri in listener.uris]
            message = {"jsonrpc": "2.0", "method": method} | ({"params": params} if params else {})
            for session in sessions:
                if event.is_for(session.caller):
                    session.send(message)
            for listener in listeners:
                if event.is_for(listener.caller):
                    listener.send(method, params or {})
