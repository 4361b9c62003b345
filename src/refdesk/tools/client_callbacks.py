"""The caller of a proxied call, as the server hears them: what it tells is passed on, what it asks is answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from refdesk.calls import SILENT, Client, ClientRefused, LogLevel
from refdesk.errors import METHOD_NOT_FOUND, RefdeskError

_LEVELS: frozenset[str] = frozenset(get_args(LogLevel))


class NotOffered(RefdeskError):
    """What a server is told that asks a client for what it does not have."""

    code = METHOD_NOT_FOUND

    def __init__(self, method: str) -> None:
        super().__init__(f"The client of this call does not offer {method[:100]}")


class Declined(RefdeskError):
    """The error that a client answered with, for the server that asked."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("message") or "The client gave no usable answer"))
        code = error.get("code")
        if isinstance(code, int):
            self.code = code
        self._given = error.get("data")

    @property
    def data(self) -> dict[str, Any]:
        return self._given if isinstance(self._given, dict) else {}


class CallVoice:
    """A client that can be reached while its call is open."""

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def key(self) -> object:
        """Equal for the calls of one client."""
        return self._client.key

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Pass on what the server tells."""
        await tell(self._client, method, params)

    async def ask(self, id: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Have the client answer what the server asks."""
        if (known := refuse_unasked(self._client, method)) is not None:
            return known
        if self._client.asks_by_ending:
            # A server of the newest revision, which asks the same way or not at all.
            raise NotOffered(method)
        try:
            return await self._client.ask(id, method, params)
        except ClientRefused as refused:
            raise Declined(refused.error) from refused


class Silence:
    """A caller that can be neither told nor asked anything. It is one all the same: what a server says during its call
    is not for whoever else has one under way."""

    key: object = "nobody"
    """One for all of them: nothing that is said could be taken for another's."""

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Nobody hears it."""

    async def ask(self, id: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Nobody is there to be asked."""
        return refuse_unasked(SILENT, method) or {}


SILENCE = Silence()


def refuse_unasked(client: Client, method: str) -> Mapping[str, Any] | None:
    """Raises NotOffered for what a client cannot be asked; the answer, where there can be but one.

    A client that has no roots has none to tell, which is no reason for a server to fail.
    """
    if client.can(method):
        return None
    if method == "roots/list":
        return {"roots": []}
    raise NotOffered(method)


async def tell(client: Client, method: str, params: Mapping[str, Any]) -> None:
    """Pass on progress or a log message; what has not the shape of one is nobody's loss."""
    if method == "notifications/progress":
        done, total, message = params.get("progress"), params.get("total"), params.get("message")
        if isinstance(done, (int, float)):
            total = total if isinstance(total, (int, float)) else None
            await client.progress(done, total, message if isinstance(message, str) else None)
    elif method == "notifications/message":
        level, logger = params.get("level"), params.get("logger")
        known: LogLevel = level if level in _LEVELS else "info"
        await client.log(known, params.get("data"), logger if isinstance(logger, str) else None)
