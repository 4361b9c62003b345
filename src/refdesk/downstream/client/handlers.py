"""Handlers for notifications and requests of a server: the functions passed to `refdesk.connect`.

Each may be a coroutine function. An exception in a handler is logged, and the server gets an error because it waits for
an answer.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import orjson

from refdesk.downstream.request_meta import CLIENT_CAPABILITIES
from refdesk.errors import METHOD_NOT_FOUND, ClientCannot, InternalError, RefdeskError

logger = logging.getLogger(__name__)

T = TypeVar("T")

Json = Mapping[str, Any]
Root = str | Path | Json
"""A root folder: its path, its `file://` URI, or the whole object."""

OnSampling = Callable[[Json], Awaitable[Json | str] | Json | str]
"""From the parameters of `sampling/createMessage` to its result, or just its text."""
OnElicitation = Callable[[Json], Awaitable[Json | None] | Json | None]
"""From the parameters of `elicitation/create` to its result; None declines."""
OnRoots = Callable[[], Awaitable[Iterable[Root]] | Iterable[Root]] | Iterable[Root]
OnProgress = Callable[[float, float | None, str | None], Awaitable[None] | None]
"""Called with the progress, the total if known, and a message."""
OnLog = Callable[[str, Any, str | None], Awaitable[None] | None]
"""Called with the level, the data and the logger name."""
OnChange = Callable[[str, Json], Awaitable[None] | None]
"""Called with the method and parameters of any other notification."""


@dataclass(frozen=True, slots=True, eq=False)
class Handlers:
    """Handlers of one client, and its callbacks. Capabilities without a handler aren't declared to the server."""

    sampling: OnSampling | None = None
    elicitation: OnElicitation | None = None
    roots: OnRoots | None = None
    progress: OnProgress | None = None
    log: OnLog | None = None
    change: OnChange | None = None
    key: object = field(default_factory=object)
    """Identifies the client, also in a copy with other handlers for one call."""

    @property
    def capabilities(self) -> dict[str, Any]:
        """Client capabilities to declare."""
        offered = {"sampling": self.sampling, "elicitation": self.elicitation, "roots": self.roots}
        return {name: CLIENT_CAPABILITIES[name] for name, handler in offered.items() if handler is not None}

    async def ask(self, id: str, method: str, params: Json) -> Json:
        """Answer a server request. Raises only RefdeskErrors."""
        try:
            answer = await self._dispatch_request(method, params)
            # An answer that can't be encoded would leave the server waiting.
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
                sampled: Json | str = await _await_if_needed(self.sampling(params))
                if isinstance(sampled, str):
                    return {"role": "assistant", "content": {"type": "text", "text": sampled}, "model": "unknown"}
                return dict(sampled)
            case "elicitation/create" if self.elicitation is not None:
                elicited = await _await_if_needed(self.elicitation(params))
                return {"action": "decline"} if elicited is None else dict(elicited)
            case "roots/list" if self.roots is not None:
                given = await _await_if_needed(self.roots()) if callable(self.roots) else self.roots
                return {"roots": [_to_root(root) for root in given]}
        error = ClientCannot(f"This client has no handler for {method[:100]}, which the server asks for")
        error.code = METHOD_NOT_FOUND
        raise error

    async def tell(self, method: str, params: Json) -> None:
        """Call the handler for a notification. Its exceptions are only logged."""
        try:
            match method:
                case "notifications/progress":
                    if self.progress is not None:
                        done, total, message = params.get("progress", 0), params.get("total"), params.get("message")
                        await _await_if_needed(self.progress(done, total, message))
                case "notifications/message" if self.log is not None:
                    level = str(params.get("level", "info"))
                    await _await_if_needed(self.log(level, params.get("data"), params.get("logger")))
                case _ if self.change is not None:
                    await _await_if_needed(self.change(method, params))
        except Exception:
            logger.exception("client.handler_failed", extra={"fields": {"method": method}})


async def _await_if_needed(value: Awaitable[T] | T) -> T:
    return await value if inspect.isawaitable(value) else value


def _to_root(root: Root) -> dict[str, Any]:
    match root:
        case Mapping():
            return dict(root)
        case str() if "://" in root:
            return {"uri": root}
    path = Path(root).expanduser().absolute()
    return {"uri": path.as_uri(), "name": path.name}
