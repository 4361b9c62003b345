"""JSON-RPC: messages, the interface of transports, and the peer that matches responses to requests.

Messages stay raw JSON objects; nothing is parsed into models just to be forwarded. Request ids are generated here, so a
response can only reach the caller that sent the request. `tests/downstream/contract.py` runs on every transport.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, Self
from uuid import uuid4

import orjson

from refdesk.errors import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    InvalidCall,
    RefdeskError,
    ServerAway,
    ServerGone,
    ServerRefused,
    ServerTalksNonsense,
)
from refdesk.support.tasks import TaskSet

logger = logging.getLogger(__name__)

Message = dict[str, Any]
"""A parsed JSON-RPC message: any JSON object."""

VERSION_HEADER = "mcp-protocol-version"

MAX_BATCH = 1000
"""Messages in one batch. No protocol version with batches uses that many."""

MAX_PARTS = 200_000
"""Objects and lists in one message. More take over a tenth of a second to parse and block the event loop: a few
megabytes of empty lists would take seconds and half a gigabyte."""

PART_COUNT_THRESHOLD = 262_144
"""Message size from which objects and lists are counted. Smaller messages can't contain enough to matter."""

MAX_NOTIFICATIONS = 1000
"""Notifications queued for one request until its caller consumes them. The oldest are dropped beyond that."""

MAX_SERVER_REQUESTS = 16
"""Concurrent requests that a server may send during one call."""

MAX_UNSENT = 1000
"""Messages queued without anyone awaiting them. A server that keeps sending requests but reads nothing gets no
responses."""


class NotTaken(ServerGone):
    """The connection ended before the server started on the message. It can be sent again on a new connection."""


class NotLetIn(ServerAway):
    """The server no longer accepts the credentials. Nothing was started, and a new connection may be accepted."""


class TransportListener(Protocol):
    """Receiver of a transport's events. Its methods don't block."""

    def on_message(self, message: Message, related: str | None = None) -> None:
        """Handle a message. `related` is the id of the request whose response stream it came on, if it came on one."""

    def on_garbage(self, what: str) -> None:
        """Handle data that isn't a message. Messages before and after it are unaffected."""

    def on_close(self, error: RefdeskError) -> None:
        """Handle the end of the connection. Called once, also when this side closes it."""


class Transport(ABC):
    """A connection to a server. The task that owns it opens and closes it as a context manager."""

    def __init__(self, name: str, listener: TransportListener) -> None:
        self.name = name
        self._listener = listener
        self._error: RefdeskError | None = None
        """Why the connection has ended."""

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect to the server, if that's necessary before the first message. Raises ServerAway if that fails."""
        return

    async def close(self) -> None:
        """Report the end of the connection, and release everything. Also called if `open` failed."""
        return

    @abstractmethod
    async def send(self, message: Message, headers: Mapping[str, str] | None = None) -> None:
        """Send a message. `headers` are for transports that have headers.

        A transport with one response stream per request returns when that stream has ended and the response was
        received. Errors of this message alone are raised; errors that end the connection are reported to the listener
        too. Cancelling closes the stream.
        """

    def set_protocol_version(self, version: str) -> None:
        """Set the negotiated version, if the transport depends on it. Called once, right after the handshake."""
        return

    def _close_with(self, error: RefdeskError) -> None:
        """Mark the connection as ended, and report the first reason."""
        if self._error is None:
            self._error = error
            self._listener.on_close(error)

    def _raise_if_closed(self) -> None:
        if self._error is not None:
            raise type(self._error)(self._error.detail)


class Callbacks(Protocol):
    """Callbacks of a request: what its caller does with the server's notifications and requests."""

    @property
    def key(self) -> object:
        """Identifies the client: equal for all calls of one client."""

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Handle a notification that belongs to the call: progress or a log message."""

    async def ask(self, id: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer a server request: sampling, elicitation or roots. A RefdeskError is returned to the server."""


class SessionEvents(Protocol):
    """Receiver of a session's events that belong to no call. Its methods don't block."""

    @property
    def on_notification(self) -> Callable[[str, Mapping[str, Any]], None]:
        """Handles a notification: a changed list or resource, or a log message."""

    def on_disconnect(self, error: RefdeskError) -> None:
        """Handle the end of the connection."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request that was sent and has no response yet."""

    answer: asyncio.Future[Message]
    callbacks: Callbacks | None
    notifications: deque[tuple[str, Mapping[str, Any]]] | None = None
    notifier: asyncio.Task[None] | None = None
    server_requests: dict[str | int, asyncio.Task[None]] = field(default_factory=dict)


class Peer:
    """JSON-RPC endpoint of one connection.

    It's the listener of its `transport`, which is set before anything is sent.
    """

    def __init__(
        self,
        name: str,
        events: SessionEvents,
        fallback: Callbacks | None = None,
        list_roots: Callable[[], Sequence[Mapping[str, Any]]] = tuple,
    ) -> None:
        """`fallback` answers server requests that belong to no call. Without it they are rejected.

        `list_roots` returns the roots for a server that asks for them without naming a call.
        """
        self.name = name
        self._events = events
        self.transport: Transport | None = None
        self._pending: dict[str, PendingRequest] = {}
        self._error: RefdeskError | None = None
        self._loop = asyncio.get_running_loop()
        self._fallback = None if fallback is None else PendingRequest(self._loop.create_future(), fallback)
        self._list_roots = list_roots
        self._tasks = TaskSet()
        self._unsent = 0
        self.garbage = 0
        """Number of invalid messages and of responses to unknown requests."""
        self.ambiguous_requests = 0
        """Number of requests that the server has sent during calls without naming the call they belong to."""

    @property
    def caller_keys(self) -> set[object]:
        """The clients whose pending requests a request of the server may belong to."""
        return {pending.callbacks.key for pending in self._pending.values() if pending.callbacks is not None}

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        callbacks: Callbacks | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Message:
        """Send a request and return its result. Cancelling it notifies the server. There is no timeout here.

        Raises ServerRefused with the server's own error, and ServerGone as soon as the connection is lost.
        """
        transport = self._require_transport()
        id = str(uuid4())
        pending = PendingRequest(self._loop.create_future(), callbacks)
        self._pending[id] = pending
        try:
            if params is None:
                message: Message = {"jsonrpc": "2.0", "id": id, "method": method}
            else:
                if callbacks is not None and "_meta" in params and "progressToken" in params["_meta"]:
                    params = {**params, "_meta": {**params["_meta"], "progressToken": id}}
                message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
            await transport.send(message, headers)
            answer = await pending.answer
            if pending.notifier is not None:
                await pending.notifier
        except asyncio.CancelledError:
            cancelled = {"requestId": id, "reason": "The caller no longer waits for it"}
            self._send_in_background({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})
            raise
        finally:
            del self._pending[id]
            if pending.notifier is not None:
                pending.notifier.cancel()
            if pending.server_requests:
                self._transfer_server_requests(pending)
        return self._unwrap_result(answer)

    async def notify(self, method: str) -> None:
        """Send a notification without parameters."""
        await self._require_transport().send({"jsonrpc": "2.0", "method": method})

    def notify_in_background(self, method: str) -> None:
        """Send a notification without parameters that nobody awaits."""
        self._send_in_background({"jsonrpc": "2.0", "method": method})

    async def close(self) -> None:
        """Cancel all background tasks. The transport is closed by its owner."""
        await self._tasks.cancel()

    # Transport listener

    def on_message(self, message: Message, related: str | None = None) -> None:
        """Dispatch a message of the server."""
        id, method, params = message.get("id"), message.get("method"), message.get("params")
        if method is None:
            pending = self._pending.get(id) if isinstance(id, str) else None
            if pending is None or pending.answer.done():
                # The request was cancelled, answered before or never sent.
                self.garbage += 1
            else:
                pending.answer.set_result(message)
        elif not isinstance(method, str):
            self.on_garbage("a message whose method is not text")
        elif id is None:
            self._handle_notification(method, params if isinstance(params, dict) else {}, related)
        elif isinstance(id, (str, int)):
            self._handle_request(id, method, params if isinstance(params, dict) else {}, related)
        else:
            self.on_garbage("a request whose id is neither text nor number")

    def on_garbage(self, what: str) -> None:
        """Count an invalid message, and log the first ten."""
        self.garbage += 1
        if self.garbage <= 10:
            fields = {"server": self.name, "what": what[:200]}
            logger.warning("downstream.garbled", extra={"fields": fields})

    def on_close(self, error: RefdeskError) -> None:
        """Fail all pending requests, each with its own exception."""
        if self._error is not None:
            return
        self._error = error
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(type(error)(error.detail))
                pending.answer.exception()  # retrieved here: the caller may still be sending
        self._events.on_disconnect(error)

    # Notifications and requests of the server

    def _handle_notification(self, method: str, params: Mapping[str, Any], related: str | None) -> None:
        if method == "notifications/cancelled":
            id = params.get("requestId")
            for each in (*self._pending.values(), *(() if self._fallback is None else (self._fallback,))):
                if isinstance(id, (str, int)) and id in each.server_requests:
                    each.server_requests[id].cancel()
            return
        if method == "notifications/progress":
            token = params.get("progressToken")
            pending = self._pending.get(token) if isinstance(token, str) else None
        elif method == "notifications/message":
            pending = self._find_related(related)
        else:
            pending = None
        if pending is not None and pending.callbacks is not None:
            # Queued for its caller, in order and without blocking others.
            if pending.notifications is None:
                pending.notifications = deque(maxlen=MAX_NOTIFICATIONS)
            pending.notifications.append((method, params))
            if pending.notifier is None or pending.notifier.done():
                pending.notifier = self._tasks.spawn(self._deliver_notifications(pending))
        elif method != "notifications/progress":
            self._events.on_notification(method, params)

    async def _deliver_notifications(self, pending: PendingRequest) -> None:
        """Deliver queued notifications. One that can't be delivered must not fail its call."""
        try:
            while pending.notifications and pending.callbacks is not None:
                await pending.callbacks.tell(*pending.notifications.popleft())
        except Exception as error:  # noqa: BLE001 logged
            self.on_garbage(f"a notification that cannot be forwarded: {type(error).__name__}")

    def _handle_request(self, id: str | int, method: str, params: Mapping[str, Any], related: str | None) -> None:
        if method == "ping":
            self._respond(id, {"result": {}})
            return
        if method == "roots/list" and related is None and (roots := list(self._list_roots())):
            # They are for the whole session, whichever call is pending.
            self._respond(id, {"result": {"roots": roots}})
            return
        # Without a pending call the request isn't ambiguous: some servers ask for roots first.
        if related is None and any(pending.callbacks is not None for pending in self._pending.values()):
            self.ambiguous_requests += 1
        pending = self._find_related(related)
        if pending is not None and related is None:
            # Any call of this client may be meant, so the requests are spread over them.
            pending = min(self._list_same_client(pending), key=lambda each: len(each.server_requests))
        if pending is None or pending.callbacks is None:
            pending = self._fallback
        if pending is None:
            if method == "roots/list":
                self._respond(id, {"result": {"roots": []}})
            else:
                error = {"code": METHOD_NOT_FOUND, "message": f"{method} can't be assigned to one client"}
                self._respond(id, {"error": error})
            return
        server_requests = pending.server_requests
        if id in server_requests or len(server_requests) >= MAX_SERVER_REQUESTS:
            error = {"code": INTERNAL_ERROR, "message": "Too many concurrent requests"}
            self._respond(id, {"error": error})
            return
        server_requests[id] = self._tasks.spawn(self._answer_request(pending, id, method, params))

    def _list_same_client(self, pending: PendingRequest) -> list[PendingRequest]:
        """Return the pending requests of the same client, newest first."""
        key = pending.callbacks.key if pending.callbacks is not None else None
        calls = reversed(self._pending.values())
        return [each for each in calls if each.callbacks is not None and each.callbacks.key == key]

    async def _answer_request(
        self, pending: PendingRequest, id: str | int, method: str, params: Mapping[str, Any]
    ) -> None:
        callbacks, server_requests = pending.callbacks, pending.server_requests
        if callbacks is None:
            return
        try:
            answer: Message = {"result": await callbacks.ask(str(id), method, params)}
        except RefdeskError as error:
            answer = {"error": {"code": error.code, "message": error.detail, "data": error.data}}
        except Exception as error:  # noqa: BLE001 logged, and returned to the server
            self.on_garbage(f"a question that cannot be forwarded: {type(error).__name__}")
            answer = {"error": {"code": INTERNAL_ERROR, "message": f"This {method[:100]} cannot be forwarded"}}
        finally:
            server_requests.pop(id, None)
        self._respond(id, answer)

    def _find_related(self, related: str | None) -> PendingRequest | None:
        """Return the request that a message belongs to.

        It's the one that the message names. Without a name, it's the newest one if all callers are the same client.
        """
        if related is not None:
            return self._pending.get(related)
        candidates = [(each, each.callbacks.key) for each in self._pending.values() if each.callbacks is not None]
        return candidates[-1][0] if len({key for _, key in candidates}) == 1 else None

    def _respond(self, id: str | int, answer: Message) -> None:
        self._send_in_background({"jsonrpc": "2.0", "id": id, **answer})

    # Outgoing messages

    def _send_in_background(self, message: Message) -> None:
        """Send a message that nobody awaits, unless too many are queued."""
        if self._unsent < MAX_UNSENT:
            self._unsent += 1
            self._tasks.spawn(self._send_ignoring_errors(message))
        else:
            self.garbage += 1

    async def _send_ignoring_errors(self, message: Message) -> None:
        """Send a message, and ignore a lost connection."""
        try:
            if self._error is None and self.transport is not None:
                await self.transport.send(message)
        except RefdeskError as error:
            logger.debug("downstream.unheard", extra={"fields": {"server": self.name, "why": error.detail}})
        finally:
            self._unsent -= 1

    def _transfer_server_requests(self, pending: PendingRequest) -> None:
        """Move open server requests to another call of the same client, or cancel them."""
        others = self._list_same_client(pending) if self.ambiguous_requests else []
        if not others:
            for task in pending.server_requests.values():
                task.cancel()
            return
        transferred = others[0].server_requests
        for id, task in pending.server_requests.items():
            transferred[id] = task
            task.add_done_callback(partial(transferred.pop, id))  # the task is the default of `pop`

    def _require_transport(self) -> Transport:
        if self._error is not None:
            raise type(self._error)(self._error.detail)
        if self.transport is None:
            raise ServerGone(f"The server {self.name!r} is not connected")
        return self.transport

    def _unwrap_result(self, answer: Message) -> Message:
        result = answer.get("result")
        if isinstance(result, dict):
            return result
        error = answer.get("error")
        if isinstance(error, dict):
            code = error.get("code")
            number = code if isinstance(code, int) and not isinstance(code, bool) else INTERNAL_ERROR
            raise ServerRefused(self.name, number, str(error.get("message") or "no reason given"), error.get("data"))
        raise ServerTalksNonsense(f"The server {self.name!r} returned a response without a result")


def encode_message(name: str, message: Message, option: int = 0) -> bytes:
    """Encode a message for the named server as JSON, with options of orjson."""
    try:
        return orjson.dumps(message, _encode_mapping, option)
    except orjson.JSONEncodeError as error:
        raise InvalidCall(f"This cannot be sent to the server {name!r} as JSON: {error}") from error


def _encode_mapping(value: Any) -> Any:
    """Encode mappings other than dict."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not known to JSON")


def deliver_messages(listener: TransportListener, content: Any) -> bool:
    """Deliver a message or the messages of a batch. Return False if the content is neither.

    Anything else in a batch is reported as garbage.
    """
    if type(content) is dict:
        listener.on_message(content)
        return True
    if not isinstance(content, list) or not 0 < len(content) <= MAX_BATCH:
        return False
    for message in content:
        if isinstance(message, dict):
            listener.on_message(message)
        else:
            listener.on_garbage("something in a batch that is no message")
    return True
