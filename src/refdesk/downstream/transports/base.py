"""What every way to a server promises; `tests/downstream/contract.py` is run on all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from refdesk.errors import RefdeskError, ServerAway, ServerGone

Message = dict[str, Any]
"""A JSON-RPC message as it was parsed; nothing is known of it but that it is an object."""

VERSION_HEADER = "mcp-protocol-version"


class NotTaken(ServerGone):
    """The connection is over, and the server has not begun what the message asks: it may be sent again in the next."""


class NotLetIn(ServerAway):
    """What was let in before is not any more: nothing was begun, and a new connection may be let in again."""


class TransportListener(Protocol):
    """Takes what a server sends; none of it waits."""

    def on_message(self, message: Message, related: str | None = None) -> None:
        """A message; `related` is the id of our request on whose own answer stream it came, where there is such."""
        ...

    def on_garbage(self, what: str) -> None:
        """Something that is no message; what came before and after it stands."""
        ...

    def on_close(self, error: RefdeskError) -> None:
        """The connection is over; nothing comes any more. Told once, also when it is closed from this side."""
        ...


class Transport(Protocol):
    """An open connection to a server. It is opened and closed as a context manager, by the task that owns it."""

    async def send(self, message: Message, headers: Mapping[str, str] | None = None) -> None:
        """Hand a message over; `headers` are for transports that have some.

        A transport on which every request has an answer stream of its own returns when that stream has ended, the
        answer received. What fails for this message alone is raised; what ends the connection is `lost` as well.
        Cancelling it gives the stream up.
        """
        ...

    def set_protocol_version(self, version: str) -> None:
        """The revision that both sides have agreed on; told once, right after the handshake."""
        ...
