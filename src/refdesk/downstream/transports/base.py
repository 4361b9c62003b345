"""Transport interface, JSON encoding of messages, and bounded decoding.

`tests/downstream/contract.py` runs on every implementation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from refdesk.errors import InvalidCall, RefdeskError, ServerAway, ServerGone

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


MAX_BATCH = 1000
"""Messages in one batch. No protocol version with batches uses that many."""

MAX_PARTS = 200_000
"""Objects and lists in one message. More take over a tenth of a second to parse and block the event loop: a few
megabytes of empty lists would take seconds and half a gigabyte."""

PART_COUNT_THRESHOLD = 262_144
"""Message size from which objects and lists are counted. Smaller messages can't contain enough to matter."""

MAX_QUOTE_CHARACTERS = 100
"""Characters of invalid input quoted in a log entry."""


def encode_message(name: str, message: Message, option: int = 0) -> bytes:
    """Encode a message for the named server as JSON, with options of orjson."""
    try:
        return orjson.dumps(message, _encode_mapping, option)
    except orjson.JSONEncodeError as error:
        raise InvalidCall(f"This cannot be sent to the server {name!r} as JSON: {error}") from error


def deliver_text(listener: TransportListener, text: str) -> None:
    """Parse a text and deliver the message or batch to the listener. Anything else is reported as garbage."""
    if len(text) > PART_COUNT_THRESHOLD and text.count("[") + text.count("{") > MAX_PARTS:
        listener.on_garbage(f"a text of {len(text)} characters with more parts than are taken")
        return
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError:
        listener.on_garbage(f"no JSON: {text[:MAX_QUOTE_CHARACTERS]!r}")
        return
    if type(content) is dict:
        listener.on_message(content)
    elif isinstance(content, list) and 0 < len(content) <= MAX_BATCH:
        deliver_batch(listener, content)
    else:
        listener.on_garbage(f"JSON that is no message: {text[:MAX_QUOTE_CHARACTERS]!r}")


def deliver_batch(listener: TransportListener, messages: list[Any]) -> None:
    """Deliver the messages of a batch. Anything else in it is reported as garbage."""
    for message in messages:
        if isinstance(message, dict):
            listener.on_message(message)
        else:
            listener.on_garbage("something in a batch that is no message")


def _encode_mapping(value: Any) -> Any:
    """Encode mappings other than dict."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not known to JSON")
