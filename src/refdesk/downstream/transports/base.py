"""Transport interface. `tests/downstream/contract.py` runs on every implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from refdesk.errors import RefdeskError, ServerAway, ServerGone

Message = dict[str, Any]
"""A parsed JSON-RPC message: any JSON object."""

VERSION_HEADER = "mcp-protocol-version"


class NotTaken(ServerGone):
    """The connection ended before the server started on the message. It can be sent again on a new connection."""


class NotLetIn(ServerAway):
    """The server no longer accepts the credentials. Nothing was started, and a new connection may be accepted."""


class TransportListener(Protocol):
    """Receiver of a transport's events. Its methods don't block."""

    def on_message(self, message: Message, related: str | None = None) -> None:
        """Handle a message. `related` is the id of the request whose response stream it came on, if it came on one."""
        ...

    def on_garbage(self, what: str) -> None:
        """Handle data that isn't a message. Messages before and after it are unaffected."""
        ...

    def on_close(self, error: RefdeskError) -> None:
        """Handle the end of the connection. Called once, also when this side closes it."""
        ...


class Transport(Protocol):
    """An open connection to a server. The task that owns it opens and closes it as a context manager."""

    async def send(self, message: Message, headers: Mapping[str, str] | None = None) -> None:
        """Send a message. `headers` are for transports that have headers.

        A transport with one response stream per request returns when that stream has ended and the response was
        received. Errors of this message alone are raised; errors that end the connection are reported to the listener
        too. Cancelling closes the stream.
        """
        ...

    def set_protocol_version(self, version: str) -> None:
        """Set the negotiated version. Called once, right after the handshake."""
        ...
