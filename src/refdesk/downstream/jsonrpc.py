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

MAX_NOTES = 1000
"""What a server may say during one call before its caller has taken any of it; progress beyond that is dropped."""

MAX_QUESTIONS = 16
"""What a server may ask at a time during one call."""

MAX_UNREAD = 1000
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


class Host(Protocol):
    """Whoever owns the connection: hears what belongs to no call."""

    def noticed(self, method: str, params: Mapping[str, Any]) -> None:
        """A notification: lists or resources that changed, log messages."""
        ...

    def disconnected(self, error: RefdeskError) -> None:
        """The connection is over."""
        ...


class Exchange:
    """A request of ours that is under way."""

    __slots__ = ("answer", "id", "notes", "questions", "teller", "voice")

    def __init__(self, id: str, answer: asyncio.Future[Message], voice: Voice | None) -> None:
        self.id = id
        self.answer = answer
        self.voice = voice
        self.notes: deque[tuple[str, Mapping[str, Any]]] | None = None
        self.teller: asyncio.Task[None] | None = None
        self.questions: dict[str | int, asyncio.Task[None]] | None = None


class Peer:
    """The conversation; an `Inbox` of its transport, which is given to it by `talk_through` before anything is sent."""

    def __init__(self, name: str, host: Host, outside: Voice | None = None) -> None:
        """`outside` is asked what belongs to no call; without it there is nobody to be asked."""
        self.name = name
        self._host = host
        self._transport: Transport | None = None
        self._exchanges: dict[str, Exchange] = {}
        self._error: RefdeskError | None = None
        self._loop = asyncio.get_running_loop()
        self._outside = None if outside is None else Exchange("", self._loop.create_future(), outside)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unread = 0
        self.garbage = 0
        """How much that came was no message, or an answer to nothing that was asked."""
        self.asks_anyone = False
        """Whether the server has asked something during calls without saying which of them it is about."""

    def talk_through(self, transport: Transport) -> None:
        """From now on messages can be sent."""
        self._transport = transport

    @property
    def in_flight(self) -> int:
        """Requests of ours that are under way."""
        return len(self._exchanges)

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
        transport = self._open_transport()
        id = str(uuid4())
        exchange = Exchange(id, self._loop.create_future(), voice)
        self._exchanges[id] = exchange
        try:
            if params is None:
                message: Message = {"jsonrpc": "2.0", "id": id, "method": method}
            else:
                if voice is not None and "_meta" in params and "progressToken" in params["_meta"]:
                    params = {**params, "_meta": {**params["_meta"], "progressToken": id}}
                message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
            await transport.send(message, headers)
            answer = await exchange.answer
            if exchange.teller is not None:
                await exchange.teller
        except asyncio.CancelledError:
            self._call_off(id)
            raise
        finally:
            del self._exchanges[id]
            self._hush(exchange)
        return self._result(answer)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        message: Message = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = params
        await self._open_transport().send(message)

    async def close(self) -> None:
        """End what is still being said; the transport is closed by its owner."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # What the transport calls.

    def received(self, message: Message, related: str | None = None) -> None:
        """Take a message of the server."""
        id = message.get("id")
        method = message.get("method")
        if method is None:
            exchange = self._exchanges.get(id) if isinstance(id, str) else None
            if exchange is None or exchange.answer.done():
                # Of a call that was given up, told twice, or made up.
                self.garbage += 1
            else:
                exchange.answer.set_result(message)
        elif not isinstance(method, str):
            self.garbled("a message whose method is no text")
        elif id is None:
            self._take_notification(method, _object(message.get("params")), related)
        elif isinstance(id, (str, int)):
            self._take_question(id, method, _object(message.get("params")), related)
        else:
            self.garbled("a request whose id is neither text nor number")

    def garbled(self, what: str) -> None:
        """Count what cannot be understood, and write the first of it down."""
        self.garbage += 1
        if self.garbage <= 10:
            fields = {"server": self.name, "what": what[:200]}
            logger.warning("downstream.garbled", extra={"fields": fields})

    def lost(self, error: RefdeskError) -> None:
        """Whoever waits for an answer is told at once, each by an error of their own."""
        if self._error is not None:
            return
        self._error = error
        for exchange in self._exchanges.values():
            if not exchange.answer.done():
                exchange.answer.set_exception(type(error)(error.detail))
                exchange.answer.exception()  # a caller that is still sending gets to know by that
        self._host.disconnected(error)

    # What the server says.

    def _take_notification(self, method: str, params: Mapping[str, Any], related: str | None) -> None:
        if method == "notifications/cancelled":
            self._stop_question(params.get("requestId"))
            return
        if method == "notifications/progress":
            token = params.get("progressToken")
            exchange = self._exchanges.get(token) if isinstance(token, str) else None
        elif method == "notifications/message":
            exchange = self._concerned(related)
        else:
            exchange = None
        if exchange is not None and exchange.voice is not None:
            self._tell(exchange, method, params)
        elif method != "notifications/progress":
            self._host.noticed(method, params)

    def _tell(self, exchange: Exchange, method: str, params: Mapping[str, Any]) -> None:
        """What is told to one caller stays in order, and waits for nobody else."""
        if exchange.notes is None:
            exchange.notes = deque(maxlen=MAX_NOTES)
        exchange.notes.append((method, params))
        if exchange.teller is None or exchange.teller.done():
            exchange.teller = self._spawn(self._tell_all(exchange))

    async def _tell_all(self, exchange: Exchange) -> None:
        """What cannot be told, because of what the server put into it, is not worth the call that it is about."""
        try:
            while exchange.notes and exchange.voice is not None:
                await exchange.voice.tell(*exchange.notes.popleft())
        except Exception as error:  # noqa: BLE001 whatever it is, it is written down
            self.garbled(f"a notification that cannot be passed on: {type(error).__name__}")

    def _take_question(self, id: str | int, method: str, params: Mapping[str, Any], related: str | None) -> None:
        if method == "ping":
            self._answer(id, {"result": {}})
            return
        # What is asked while nobody has a call under way, as by servers that want to know roots first, is about none.
        self.asks_anyone = self.asks_anyone or (related is None and any(self._with_voice()))
        exchange = self._concerned(related)
        if exchange is not None and related is None:
            # Any of this client's calls may be meant; each takes its share of the questions.
            exchange = min(self._of_same_client(exchange), key=lambda each: len(each.questions or ()))
        if exchange is None or exchange.voice is None:
            exchange = self._outside
        if exchange is None:
            self._answer(id, _unasked(method))
            return
        questions = exchange.questions = exchange.questions if exchange.questions is not None else {}
        if id in questions or len(questions) >= MAX_QUESTIONS:
            error = {"code": INTERNAL_ERROR, "message": "Too much is asked at a time"}
            self._answer(id, {"error": error})
            return
        questions[id] = self._spawn(self._have_answered(exchange, id, method, params))

    def _of_same_client(self, exchange: Exchange) -> list[Exchange]:
        """The calls that the client of this one has under way, the newest first."""
        key = exchange.voice.key if exchange.voice is not None else None
        calls = reversed(self._exchanges.values())
        return [each for each in calls if each.voice is not None and each.voice.key == key]

    async def _have_answered(self, exchange: Exchange, id: str | int, method: str, params: Mapping[str, Any]) -> None:
        voice, questions = exchange.voice, exchange.questions
        if voice is None or questions is None:
            return
        try:
            answer: Message = {"result": await voice.ask(str(id), method, params)}
        except RefdeskError as error:
            answer = {"error": {"code": error.code, "message": error.detail, "data": error.data}}
        except Exception as error:  # noqa: BLE001 the server is told, and it is written down
            self.garbled(f"a question that cannot be passed on: {type(error).__name__}")
            answer = {"error": {"code": INTERNAL_ERROR, "message": f"This {method[:100]} cannot be passed on"}}
        finally:
            questions.pop(id, None)
        self._answer(id, answer)

    def _concerned(self, related: str | None) -> Exchange | None:
        """Whose call it is that the server speaks about: it says so, or there is but one client that it can be."""
        if related is not None:
            return self._exchanges.get(related)
        with_voice = list(self._with_voice())
        if not with_voice:
            return None
        keys = {exchange.voice.key for exchange in with_voice if exchange.voice is not None}
        return with_voice[-1] if len(keys) == 1 else None

    def _with_voice(self) -> Iterator[Exchange]:
        return (exchange for exchange in self._exchanges.values() if exchange.voice is not None)

    def _stop_question(self, id: object) -> None:
        outside = () if self._outside is None else (self._outside,)
        for exchange in (*self._exchanges.values(), *outside):
            if exchange.questions and isinstance(id, (str, int)) and id in exchange.questions:
                exchange.questions[id].cancel()

    def _answer(self, id: str | int, answer: Message) -> None:
        self._say({"jsonrpc": "2.0", "id": id, **answer})

    # What is ours.

    def _call_off(self, id: str) -> None:
        params = {"requestId": id, "reason": "The caller no longer waits for it"}
        self._say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    def _say(self, message: Message) -> None:
        """Send what nobody waits for, unless too much of that is unread already."""
        if self._unread < MAX_UNREAD:
            self._unread += 1
            self._spawn(self._send_quietly(message))
        else:
            self.garbage += 1

    async def _send_quietly(self, message: Message) -> None:
        """To a server that may be gone, and then needs no answer."""
        try:
            if self._error is None and self._transport is not None:
                await self._transport.send(message)
        except RefdeskError as error:
            logger.debug("downstream.unheard", extra={"fields": {"server": self.name, "why": error.detail}})
        finally:
            self._unread -= 1

    def _hush(self, exchange: Exchange) -> None:
        if exchange.teller is not None:
            exchange.teller.cancel()
        if exchange.questions:
            self._pass_on(exchange, exchange.questions)

    def _pass_on(self, exchange: Exchange, questions: dict[str | int, asyncio.Task[None]]) -> None:
        """What is still asked when a call is over may be about another of the same client's calls; else it is called
        off."""
        others = self._of_same_client(exchange) if self.asks_anyone else []
        if not others:
            for task in questions.values():
                task.cancel()
            return
        inherited = others[0].questions = others[0].questions if others[0].questions is not None else {}
        for id, task in questions.items():
            inherited[id] = task
            task.add_done_callback(partial(_forget, inherited, id))

    def _open_transport(self) -> Transport:
        if self._error is not None:
            raise type(self._error)(self._error.detail)
        if self._transport is None:
            raise ServerGone(f"The server {self.name!r} is not connected")
        return self._transport

    def _result(self, answer: Message) -> Message:
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


def _forget(questions: dict[str | int, asyncio.Task[None]], id: str | int, _: asyncio.Task[None]) -> None:
    questions.pop(id, None)


def _object(params: object) -> Mapping[str, Any]:
    return params if isinstance(params, dict) else {}


def _unasked(method: str) -> Message:
    """What a server is told that asks outside of any call, or when it cannot be told whose call it means."""
    if method == "roots/list":
        return {"result": {"roots": []}}
    message = f"There is no one client here that {method} could be meant for"
    return {"error": {"code": METHOD_NOT_FOUND, "message": message}}
