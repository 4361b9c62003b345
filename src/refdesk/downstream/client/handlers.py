"""Who a server talks to while a program waits for its answer: the functions that the program gave for it.

Any of them may be a coroutine function. What one of them raises is its program's mistake: it is logged, and the server
told that there is no answer, for it waits for one.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

from refdesk.downstream.envelopes import CLIENT_CAPABILITIES
from refdesk.errors import METHOD_NOT_FOUND, ClientCannot, InternalError, RefdeskError

logger = logging.getLogger(__name__)

T = TypeVar("T")

Json = Mapping[str, Any]
Root = str | Path | Json
"""A folder: its path, its `file://` URI, or all that is to be said of it."""

OnSampling = Callable[[Json], Awaitable[Json | str] | Json | str]
"""From the parameters of `sampling/createMessage` to its result, or just the text of it."""
OnElicitation = Callable[[Json], Awaitable[Json | None] | Json | None]
"""From the parameters of `elicitation/create` to its result; None declines."""
OnRoots = Callable[[], Awaitable[Iterable[Root]] | Iterable[Root]] | Iterable[Root]
OnProgress = Callable[[float, float | None, str | None], Awaitable[None] | None]
"""Told how much is done, of how much if that is known, and what is being done."""
OnLog = Callable[[str, Any, str | None], Awaitable[None] | None]
"""Told the level, the message, and which part of the server wrote it."""
OnChange = Callable[[str, Json], Awaitable[None] | None]
"""Told the method and the parameters of what the server says to nobody in particular."""


@dataclass(frozen=True, slots=True, eq=False)
class Handlers:
    """The functions of one client; what there is none for is not offered to the server."""

    sampling: OnSampling | None = None
    elicitation: OnElicitation | None = None
    roots: OnRoots | None = None
    progress: OnProgress | None = None
    log: OnLog | None = None
    change: OnChange | None = None

    @property
    def capabilities(self) -> dict[str, Any]:
        """What the server may ask for."""
        offered = {"sampling": self.sampling, "elicitation": self.elicitation, "roots": self.roots}
        return {name: CLIENT_CAPABILITIES[name] for name, handler in offered.items() if handler is not None}

    async def handle_request(self, method: str, params: Json) -> Json:
        """What the server is answered; raises RefdeskErrors only."""
        try:
            answer = await self._dispatch_request(method, params)
            # Whatever cannot be sent would leave the server waiting.
            orjson.dumps(answer)
        except RefdeskError:
            raise
        except Exception:
            logger.exception("client.handler_failed", extra={"fields": {"method": method}})
            raise InternalError(f"The client's handler of {method} failed") from None
        return answer

    async def _dispatch_request(self, method: str, params: Json) -> dict[str, Any]:
        match method:
            case "sampling/createMessage" if self.sampling is not None:
                return _to_sampling_result(await _await_if_needed(self.sampling(params)))
            case "elicitation/create" if self.elicitation is not None:
                elicited = await _await_if_needed(self.elicitation(params))
                return {"action": "decline"} if elicited is None else dict(elicited)
            case "roots/list" if self.roots is not None:
                given = await _await_if_needed(self.roots()) if callable(self.roots) else self.roots
                return {"roots": [_to_root(root) for root in given]}
        raise _build_unhandled_error(method)

    async def notify(self, method: str, params: Json, progress: OnProgress | None = None) -> None:
        """Pass on what the server says; nobody but the log learns of a handler that fails."""
        try:
            match method:
                case "notifications/progress" if progress is not None or self.progress is not None:
                    handler = progress or self.progress
                    if handler is not None:
                        await _await_if_needed(
                            handler(params.get("progress", 0), params.get("total"), params.get("message"))
                        )
                case "notifications/message" if self.log is not None:
                    level = str(params.get("level", "info"))
                    await _await_if_needed(self.log(level, params.get("data"), params.get("logger")))
                case _ if self.change is not None and method != "notifications/progress":
                    await _await_if_needed(self.change(method, params))
        except Exception:
            logger.exception("client.handler_failed", extra={"fields": {"method": method}})

    @property
    def has_call_handlers(self) -> bool:
        """Whether anything that a server says or asks during a call is of interest."""
        return bool(self.capabilities or self.progress or self.log)


@dataclass(frozen=True, slots=True)
class HandlerCallbacks:
    """The handlers, for one call or for what belongs to none."""

    handlers: Handlers
    progress: OnProgress | None = None

    @property
    def key(self) -> object:
        """All calls of a client are answered by the same functions."""
        return self.handlers

    async def tell(self, method: str, params: Json) -> None:
        """Progress or a log message."""
        await self.handlers.notify(method, params, self.progress)

    async def ask(self, id: str, method: str, params: Json) -> Json:
        """Sampling, elicitation, roots."""
        return await self.handlers.handle_request(method, params)


def _build_unhandled_error(method: str) -> ClientCannot:
    """What the server is told by its code, and a program by the sentence."""
    error = ClientCannot(f"This client has no handler for {method[:100]}, which the server asks for")
    error.code = METHOD_NOT_FOUND
    return error


async def _await_if_needed(value: Awaitable[T] | T) -> T:
    return await value if inspect.isawaitable(value) else value


def _to_sampling_result(answer: Json | str) -> dict[str, Any]:
    if isinstance(answer, str):
        return {"role": "assistant", "content": {"type": "text", "text": answer}, "model": "unknown"}
    return dict(answer)


def _to_root(root: Root) -> dict[str, Any]:
    match root:
        case Mapping():
            return dict(root)
        case str() if "://" in root:
            return {"uri": root}
    path = Path(root).expanduser().absolute()
    return {"uri": path.as_uri(), "name": path.name}
