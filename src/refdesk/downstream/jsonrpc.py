"""The conversation with one server over one connection: ids, answers, and what the server says in between.

Raw JSON objects go in and come out; nothing is built for what is only passed on. Ids are minted here, so that answers
can never reach another caller than the one who asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping
from functools import partial
from typing import Any, Protocol
from uuid import uuid4

from refdesk.downstream.transports.base import Message, Transport
from refdesk.errors import RefdeskError, ServerGone, ServerRefused, ServerTalksNonsense

logger = logging.getLogger(__name__)

MAX_NOTIFICATIONS = 1000
"""What a server may say during one call before its caller has taken any of it; progress beyond that is dropped."""

MAX_SERVER_REQUESTS = 16
"""What a server may ask at a time during one call."""

MAX_UNSENT = 1000
"""Of what is said to a server that nobody waits for: a server that asks on and on and reads nothing gets no answers."""

METHOD_NOT_FOUND = -32601
INTERNAL_ERROR = -32603


class Voice(Protocol):
    """Whoever made a call, as far as the server can speak to them while it works on it."""

    @property
    def key(self) -> object:
        """Equal for the calls of one client, so that what a server asks can be told apart by who is to answer."""
        ...

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """A notification that belongs to the call: progress or a log message."""
        ...

    async def ask(self, id: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """A request of the server: sampling, elicitation, roots. RefdeskErrors are told to the server."""
        ...


class PeerListener(Protocol):
    """Whoever owns the connection: hears what belongs to no call."""

    def on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        """A notification: lists or resources that changed, log messages."""
        ...

    def on_disconnect(self, error: RefdeskError) -> None:
        """The connection is over."""
        ...


class PendingRequest:
    """A request of ours that is under way."""

    __slots__ = ("answer", "id", "notifications", "notifier", "server_requests", "voice")

    def __init__(self, id: str, answer: asyncio.Future[Message], voice: Voice | None) -> None:
        self.id = id
        self.answer = answer
        self.voice = voice
        self.notifications: deque[tuple[str, Mapping[str, Any]]] | None = None
        self.notifier: asyncio.Task[None] | None = None
        self.server_requests: dict[str | int, asyncio.Task[None]] | None = None


class Peer:
    """The conversation; an `Inbox` of its transport, which is given to it by `talk_through` before anything is sent."""

    def __init__(self, name: str, host: PeerListener, fallback: Voice | None = None) -> None:
        """`outside` is asked what belongs to no call; without it there is nobody to be asked."""
        self.name = name
        self._host = host
        self._transport: Transport | None = None
        self._pending: dict[str, PendingRequest] = {}
        self._error: RefdeskError | None = None
        self._loop = asyncio.get_running_loop()
        self._fallback = None if fallback is None else PendingRequest("", self._loop.create_future(), fallback)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsent = 0
        self.garbage = 0
        """How much that came was no message, or an answer to nothing that was asked."""
        self.has_ambiguous_requests = False
        """Whether the server has asked something during calls without saying which of them it is about."""

    def attach(self, transport: Transport) -> None:
        """From now on messages can be sent."""
        self._transport = transport

    @property
    def in_flight(self) -> int:
        """Requests of ours that are under way."""
        return len(self._pending)

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        voice: Voice | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Message:
        """The result of a request. Cancelling it tells the server; there is no time-out here.

        Raises ServerRefused with the server's own error, ServerGone at once when the connection is lost meanwhile.
        """
        transport = self._require_transport()
        id = str(uuid4())
        pending = PendingRequest(id, self._loop.create_future(), voice)
        self._pending[id] = pending
        try:
            if params is None:
                message: Message = {"jsonrpc": "2.0", "id": id, "method": method}
            else:
                if voice is not None and "_meta" in params and "progressToken" in params["_meta"]:
                    params = {**params, "_meta": {**params["_meta"], "progressToken": id}}
                message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
            await transport.send(message, headers)
            answer = await pending.answer
            if pending.notifier is not None:
                await pending.notifier
        except asyncio.CancelledError:
            self._send_cancellation(id)
            raise
        finally:
            del self._pending[id]
            self._finish(pending)
        return self._unwrap_result(answer)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        message: Message = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = params
        await self._require_transport().send(message)

    async def close(self) -> None:
        """End what is still being said; the transport is closed by its owner."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # What the transport calls.

    def on_message(self, message: Message, related: str | None = None) -> None:
        """Take a message of the server."""
        id = message.get("id")
        method = message.get("method")
        if method is None:
            pending = self._pending.get(id) if isinstance(id, str) else None
            if pending is None or pending.answer.done():
                # Of a call that was given up, told twice, or made up.
                self.garbage += 1
            else:
                pending.answer.set_result(message)
        elif not isinstance(method, str):
            self.on_garbage("a message whose method is no text")
        elif id is None:
            self._handle_notification(method, _as_object(message.get("params")), related)
        elif isinstance(id, (str, int)):
            self._handle_request(id, method, _as_object(message.get("params")), related)
        else:
            self.on_garbage("a request whose id is neither text nor number")

    def on_garbage(self, what: str) -> None:
        """Count what cannot be understood, and write the first of it down."""
        self.garbage += 1
        if self.garbage <= 10:
            fields = {"server": self.name, "what": what[:200]}
            logger.warning("downstream.garbled", extra={"fields": fields})

    def on_close(self, error: RefdeskError) -> None:
        """Whoever waits for an answer is told at once, each by an error of their own."""
        if self._error is not None:
            return
        self._error = error
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(type(error)(error.detail))
                pending.answer.exception()  # a caller that is still sending gets to know by that
        self._host.on_disconnect(error)

    # What the server says.

    def _handle_notification(self, method: str, params: Mapping[str, Any], related: str | None) -> None:
        if method == "notifications/cancelled":
            self._cancel_server_request(params.get("requestId"))
            return
        if method == "notifications/progress":
            token = params.get("progressToken")
            pending = self._pending.get(token) if isinstance(token, str) else None
        elif method == "notifications/message":
            pending = self._find_related(related)
        else:
            pending = None
        if pending is not None and pending.voice is not None:
            self._queue_notification(pending, method, params)
        elif method != "notifications/progress":
            self._host.on_notification(method, params)

    def _queue_notification(self, pending: PendingRequest, method: str, params: Mapping[str, Any]) -> None:
        """What is told to one caller stays in order, and waits for nobody else."""
        if pending.notifications is None:
            pending.notifications = deque(maxlen=MAX_NOTIFICATIONS)
        pending.notifications.append((method, params))
        if pending.notifier is None or pending.notifier.done():
            pending.notifier = self._spawn(self._deliver_notifications(pending))

    async def _deliver_notifications(self, pending: PendingRequest) -> None:
        """What cannot be told, because of what the server put into it, is not worth the call that it is about."""
        try:
            while pending.notifications and pending.voice is not None:
                await pending.voice.tell(*pending.notifications.popleft())
        except Exception as error:  # noqa: BLE001 whatever it is, it is written down
            self.on_garbage(f"a notification that cannot be passed on: {type(error).__name__}")

    def _handle_request(self, id: str | int, method: str, params: Mapping[str, Any], related: str | None) -> None:
        if method == "ping":
            self._respond(id, {"result": {}})
            return
        # What is asked while nobody has a call under way, as by servers that want to know roots first, is about none.
        if related is None and any(self._iter_with_callbacks()):
            self.has_ambiguous_requests = True
        pending = self._find_related(related)
        if pending is not None and related is None:
            # Any of this client's calls may be meant; each takes its share of the questions.
            pending = min(self._list_same_client(pending), key=lambda each: len(each.server_requests or ()))
        if pending is None or pending.voice is None:
            pending = self._fallback
        if pending is None:
            self._respond(id, _reply_without_client(method))
            return
        if pending.server_requests is None:
            pending.server_requests = {}
        server_requests = pending.server_requests
        if id in server_requests or len(server_requests) >= MAX_SERVER_REQUESTS:
            error = {"code": INTERNAL_ERROR, "message": "Too much is asked at a time"}
            self._respond(id, {"error": error})
            return
        server_requests[id] = self._spawn(self._answer_request(pending, id, method, params))

    def _list_same_client(self, pending: PendingRequest) -> list[PendingRequest]:
        """The calls that the client of this one has under way, the newest first."""
        key = pending.voice.key if pending.voice is not None else None
        calls = reversed(self._pending.values())
        return [each for each in calls if each.voice is not None and each.voice.key == key]

    async def _answer_request(
        self, pending: PendingRequest, id: str | int, method: str, params: Mapping[str, Any]
    ) -> None:
        voice, server_requests = pending.voice, pending.server_requests
        if voice is None or server_requests is None:
            return
        try:
            answer: Message = {"result": await voice.ask(str(id), method, params)}
        except RefdeskError as error:
            answer = {"error": {"code": error.code, "message": error.detail, "data": error.data}}
        except Exception as error:  # noqa: BLE001 the server is told, and it is written down
            self.on_garbage(f"a question that cannot be passed on: {type(error).__name__}")
            answer = {"error": {"code": INTERNAL_ERROR, "message": f"This {method[:100]} cannot be passed on"}}
        finally:
            server_requests.pop(id, None)
        self._respond(id, answer)

    def _find_related(self, related: str | None) -> PendingRequest | None:
        """Whose call it is that the server speaks about: it says so, or there is but one client that it can be."""
        if related is not None:
            return self._pending.get(related)
        candidates = list(self._iter_with_callbacks())
        if not candidates:
            return None
        keys = {pending.voice.key for pending in candidates if pending.voice is not None}
        return candidates[-1] if len(keys) == 1 else None

    def _iter_with_callbacks(self) -> Iterator[PendingRequest]:
        return (pending for pending in self._pending.values() if pending.voice is not None)

    def _cancel_server_request(self, id: object) -> None:
        fallback = () if self._fallback is None else (self._fallback,)
        for pending in (*self._pending.values(), *fallback):
            if pending.server_requests and isinstance(id, (str, int)) and id in pending.server_requests:
                pending.server_requests[id].cancel()

    def _respond(self, id: str | int, answer: Message) -> None:
        self._send_in_background({"jsonrpc": "2.0", "id": id, **answer})

    # What is ours.

    def _send_cancellation(self, id: str) -> None:
        params = {"requestId": id, "reason": "The caller no longer waits for it"}
        self._send_in_background({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    def _send_in_background(self, message: Message) -> None:
        """Send what nobody waits for, unless too much of that is unread already."""
        if self._unsent < MAX_UNSENT:
            self._unsent += 1
            self._spawn(self._send_ignoring_errors(message))
        else:
            self.garbage += 1

    async def _send_ignoring_errors(self, message: Message) -> None:
        """To a server that may be gone, and then needs no answer."""
        try:
            if self._error is None and self._transport is not None:
                await self._transport.send(message)
        except RefdeskError as error:
            logger.debug("downstream.unheard", extra={"fields": {"server": self.name, "why": error.detail}})
        finally:
            self._unsent -= 1

    def _finish(self, pending: PendingRequest) -> None:
        if pending.notifier is not None:
            pending.notifier.cancel()
        if pending.server_requests:
            self._transfer_server_requests(pending, pending.server_requests)

    def _transfer_server_requests(
        self, pending: PendingRequest, server_requests: dict[str | int, asyncio.Task[None]]
    ) -> None:
        """What is still asked when a call is over may be about another of the same client's calls; else it is called
        off."""
        others = self._list_same_client(pending) if self.has_ambiguous_requests else []
        if not others:
            for task in server_requests.values():
                task.cancel()
            return
        if others[0].server_requests is None:
            others[0].server_requests = {}
        transferred = others[0].server_requests
        for id, task in server_requests.items():
            transferred[id] = task
            task.add_done_callback(partial(_remove, transferred, id))

    def _require_transport(self) -> Transport:
        if self._error is not None:
            raise type(self._error)(self._error.detail)
        if self._transport is None:
            raise ServerGone(f"The server {self.name!r} is not connected")
        return self._transport

    def _unwrap_result(self, answer: Message) -> Message:
        result = answer.get("result")
        if isinstance(result, dict):
            return result
        error = answer.get("error")
        if isinstance(error, dict):
            code = error.get("code")
            number = code if isinstance(code, int) and not isinstance(code, bool) else INTERNAL_ERROR
            raise ServerRefused(self.name, number, str(error.get("message") or "no reason given"), error.get("data"))
        raise ServerTalksNonsense(f"The server {self.name!r} gave an answer without a result")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _remove(server_requests: dict[str | int, asyncio.Task[None]], id: str | int, _: asyncio.Task[None]) -> None:
    server_requests.pop(id, None)


def _as_object(params: object) -> Mapping[str, Any]:
    return params if isinstance(params, dict) else {}


def _reply_without_client(method: str) -> Message:
    """What a server is told that asks outside of any call, or when it cannot be told whose call it means."""
    if method == "roots/list":
        return {"result": {"roots": []}}
    message = f"There is no one client here that {method} could be meant for"
    return {"error": {"code": METHOD_NOT_FOUND, "message": message}}
