"""Forwards a downstream server's notifications and requests to the caller of a proxied call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from refdesk.calls import SILENT, Client, ClientRefused, LogLevel
from refdesk.errors import METHOD_NOT_FOUND, RefdeskError

_LEVELS: frozenset[str] = frozenset(get_args(LogLevel))


class NotOffered(RefdeskError):
    """The server asked the client for something that it does not support."""

    code = METHOD_NOT_FOUND

    def __init__(self, method: str) -> None:
        super().__init__(f"The client of this call doesn't support {method[:100]}")


class Declined(RefdeskError):
    """The client's error response to a server's request."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("message") or "The client's response is invalid"))
        code = error.get("code")
        if isinstance(code, int):
            self.code = code
        self._data = error.get("data")

    @property
    def data(self) -> dict[str, Any]:
        return self._data if isinstance(self._data, dict) else {}


class ClientCallbacks:
    """Callbacks to a client while its call is open."""

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def key(self) -> object:
        """Equal for all calls of one client."""
        return self._client.key

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Forward a server's notification."""
        await forward_notification(self._client, method, params)

    async def ask(self, id: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Forward a server's request and return the client's response."""
        if (fixed := check_capability(self._client, method)) is not None:
            return fixed
        if self._client.uses_input_required:
            # The server speaks the newest revision too, and has to ask by ending the call.
            raise NotOffered(method)
        try:
            return await self._client.ask(id, method, params)
        except ClientRefused as refused:
            raise Declined(refused.error) from refused


class NoCallbacks:
    """Callbacks of a caller that can neither be notified nor asked.

    It still counts as a caller: what a server sends during its call must not reach other callers.
    """

    key: object = "nobody"
    """The same for all, as nothing is delivered."""

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Drop the notification."""

    async def ask(self, id: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Reject the request."""
        return check_capability(SILENT, method) or {}


NO_CALLBACKS = NoCallbacks()


def check_capability(client: Client, method: str) -> Mapping[str, Any] | None:
    """Raise NotOffered if the client does not support a method; return the response if it is fixed.

    A client without roots gets an empty list, so that the server does not fail.
    """
    if client.can(method):
        return None
    if method == "roots/list":
        return {"roots": []}
    raise NotOffered(method)


async def forward_notification(client: Client, method: str, params: Mapping[str, Any]) -> None:
    """Forward progress or a log message to a client; malformed ones are dropped."""
    if method == "notifications/progress":
        done, total, message = params.get("progress"), params.get("total"), params.get("message")
        if isinstance(done, (int, float)):
            total = total if isinstance(total, (int, float)) else None
            await client.progress(done, total, message if isinstance(message, str) else None)
    elif method == "notifications/message":
        level, logger = params.get("level"), params.get("logger")
        known_level: LogLevel = level if level in _LEVELS else "info"
        await client.log(known_level, params.get("data"), logger if isinstance(logger, str) else None)
