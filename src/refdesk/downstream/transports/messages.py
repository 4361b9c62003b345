"""JSON encoding of messages, and bounded decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from refdesk.downstream.transports.base import Message, TransportListener
from refdesk.errors import InvalidCall

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
