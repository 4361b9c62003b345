"""Callbacks from a call to its client: progress, log messages and questions (elicitation, sampling, roots)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from refdesk.calls import LOG_LEVELS, Client, ClientRefused, InputRequired, LogLevel
from refdesk.errors import ClientCannot, InvalidArguments, MissingCapability, Problem
from refdesk.inbound.jsonrpc import RpcRequest
from refdesk.inbound.mcp.revisions import CLIENT_CAPABILITIES_META, INPUT_REQUIRED_METHODS, LOG_LEVEL_META
from refdesk.inbound.mcp.sessions import Session
from refdesk.inbound.mcp.streams import Channel

logger = logging.getLogger(__name__)

ROOTS_SECONDS = 10.0
"""How long a client may take to list its roots, which needs nobody's attention. One that doesn't has none."""

CAPABILITIES: Mapping[str, str] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""The client capability that each request needs."""


class StreamingClient(Client):
    """A client without a session in a handshake revision. It gets notifications but no requests."""

    __slots__ = ("_channel", "_request")

    def __init__(self, request: RpcRequest, channel: Channel) -> None:
        self._request = request
        self._channel = channel

    @property
    def key(self) -> object:
        """Unique per call, since calls can't be assigned to a client."""
        return self

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Send progress without blocking. A client that doesn't read misses some of it."""
        meta = self._request.params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        if not isinstance(token, (str, int)) or isinstance(token, bool):
            return
        params: dict[str, Any] = {"progressToken": token, "progress": done}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        stream = self._channel.open()
        if stream is not None and stream.has_room:
            stream.send(_notification("notifications/progress", params))

    async def log(self, level: LogLevel, data: Any, logger: str | None = None) -> None:
        threshold = self._get_log_level()
        if threshold is None or LOG_LEVELS.index(level) < LOG_LEVELS.index(threshold):
            return
        params: dict[str, Any] = {"level": level, "data": data}
        if logger is not None:
            params["logger"] = logger
        stream = self._channel.open()
        if stream is not None:
            await stream.wait_for_room()
            stream.send(_notification("notifications/message", params))

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        raise ClientCannot(f"This needs {method} from the client, over a session; connect with one.")

    def _get_log_level(self) -> LogLevel | None:
        """Return the minimum level of the log messages that the client wants. None if it wants none."""
        return "debug"


class SessionClient(StreamingClient):
    """A client of a session. Requests go out on the stream of its call, and it responds with a message of its own."""

    __slots__ = ("_roots_seconds", "_session")

    def __init__(
        self, request: RpcRequest, channel: Channel, session: Session, *, roots_seconds: float = ROOTS_SECONDS
    ) -> None:
        # Repeats the base class: `super()` would cost every call a fifth of a microsecond in Python 3.11.
        self._request = request
        self._channel = channel
        self._session = session
        self._roots_seconds = roots_seconds

    @property
    def key(self) -> object:
        return self._session.key

    def can(self, method: str) -> bool:
        return not self._session.is_closed and _declares(self._session.capabilities, method)

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if method == "roots/list":
            return await self._list_roots(params)
        return await self._send(method, params)

    async def _list_roots(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the session's roots, from memory if the client announces changes."""
        session = self._session
        if session.roots is not None:
            return session.roots
        changes = session.roots_changes
        try:
            async with asyncio.timeout(self._roots_seconds):
                answer = await self._send("roots/list", params)
        except TimeoutError:
            why = f"the client didn't answer within {self._roots_seconds:g} s"
            logger.warning("client.roots_unknown", extra={"fields": {"why": why}})
            session.roots = answer = {"roots": []}
        if session.capabilities["roots"].get("listChanged") is True and session.roots_changes == changes:
            session.roots = answer
        return answer

    async def _send(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        session = self._session
        if not self.can(method):
            raise ClientCannot(f"This needs {method} from the client, which has not declared that it offers it.")
        _require_form(session.capabilities, method, params)
        stream = self._channel.open()
        if stream is None:
            raise ClientCannot(f"The call that {method} was for is over.")
        with session.expect_response() as (id, response):
            stream.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
            try:
                answer = await response
            except asyncio.CancelledError:
                cancellation = {"requestId": id, "reason": "Nobody waits for the answer any more"}
                notification = _notification("notifications/cancelled", cancellation)
                if not stream.send(notification):
                    session.send(notification)
                raise
        if isinstance(answer.error, Mapping):
            raise ClientRefused(method, answer.error)
        if not _is_answer(method, answer.result):
            raise ClientCannot(f"The client gave no usable answer to {method}.")
        result: Mapping[str, Any] = answer.result
        return result

    def _get_log_level(self) -> LogLevel | None:
        return self._session.log_level


class ModernClient(StreamingClient):
    """A client of the stateless revision.

    A request to it ends the call with `input_required`, and the client calls again with the answer.
    """

    __slots__ = ()

    uses_input_required = True

    def can(self, method: str) -> bool:
        return self._request.method in INPUT_REQUIRED_METHODS and _declares(self._get_capabilities(), method)

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        answers: Mapping[str, Any] = self._request.params.get("inputResponses") or {}
        if name in answers:
            answer: Mapping[str, Any] = answers[name]
            if not _is_answer(method, answer):
                raise InvalidArguments([Problem(f"inputResponses.{name}", f"must be a result of {method}")])
            return answer
        if method not in CAPABILITIES or self._request.method not in INPUT_REQUIRED_METHODS:
            raise ClientCannot(f"The client cannot be asked {method} during {self._request.method}.")
        capabilities = self._get_capabilities()
        if not _declares(capabilities, method):
            raise MissingCapability(CAPABILITIES[method])
        _require_form(capabilities, method, params)
        raise InputRequired({name: {"method": method, "params": params}})

    def _get_capabilities(self) -> Mapping[str, Any]:
        # No request of this revision is answered without them.
        declared: Mapping[str, Any] = self._request.params["_meta"][CLIENT_CAPABILITIES_META]
        return declared

    def _get_log_level(self) -> LogLevel | None:
        level: LogLevel | None = self._request.params["_meta"].get(LOG_LEVEL_META)
        return level


def _notification(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def _declares(capabilities: Mapping[str, Any], method: str) -> bool:
    """Return whether a client supports a request in at least one form."""
    return isinstance(capabilities.get(CAPABILITIES.get(method, "")), Mapping)


def _require_form(capabilities: Mapping[str, Any], method: str, params: Mapping[str, Any]) -> None:
    """Raise ClientCannot if a client doesn't support this form of a request."""
    declared = capabilities.get(CAPABILITIES[method], {})
    if method == "elicitation/create":
        # A client that declares no mode supports forms, the only mode of the first revisions.
        form = params.get("mode", "form")
        lacks = form not in declared and not (form == "form" and "url" not in declared)
    else:
        form = "tools"
        lacks = method == "sampling/createMessage" and bool(params.get("tools")) and form not in declared
    if lacks:
        raise ClientCannot(f"This needs {method} with {form!r} from the client, which has not declared that.")


class _Elicitation(BaseModel):
    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


class _Sampling(BaseModel):
    role: Literal["user", "assistant"]
    content: dict[str, Any] | list[dict[str, Any]]
    model: str


class _Root(BaseModel):
    uri: str


class _Roots(BaseModel):
    roots: list[_Root]


_ANSWERS: Mapping[str, type[BaseModel]] = {
    "elicitation/create": _Elicitation,
    "sampling/createMessage": _Sampling,
    "roots/list": _Roots,
}


def _is_answer(method: str, answer: Any) -> bool:
    """Return whether a client's result has the form that a request needs."""
    model = _ANSWERS.get(method)
    if model is None:
        return False
    try:
        model.model_validate(answer)
    except ValidationError:
        return False
    return True
