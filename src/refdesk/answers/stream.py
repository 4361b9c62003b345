"""Incremental parser of chat completions, streamed as server-sent events or whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

MAX_BODY_BYTES = 4 * 1024 * 1024
"""An answer of 4,000 tokens streams in about a megabyte, most of it overhead around each token."""

MAX_NAME_CHARACTERS = 100
"""Length of the model's name, which comes from the endpoint."""

DONE = b"[DONE]"


class MalformedCompletion(Exception):
    """The body is not a chat completion; the message says why."""


class ChatCompletion:
    """A chat completion as it is received."""

    def __init__(self) -> None:
        self.model = ""
        self.finish_reason: str | None = None
        """Why the model stopped; None until then."""
        self.is_done = False
        self._texts: list[str] = []
        self._rest = b""
        self._size = 0

    @property
    def text(self) -> str:
        """The text received so far."""
        return "".join(self._texts)

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of an event stream, split anywhere."""
        self.check_size(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._feed_line(line.rstrip(b"\r"))

    def check_size(self, data: bytes) -> None:
        """Count bytes and raise if the body is too large."""
        self._size += len(data)
        if self._size > MAX_BODY_BYTES:
            raise MalformedCompletion(f"its answer is larger than {MAX_BODY_BYTES} bytes")

    def close(self) -> None:
        """End the stream; raise if it is incomplete."""
        self._feed_line(self._rest)
        if not self.is_done and self.finish_reason is None:
            raise MalformedCompletion("its answer ended early")

    def feed_body(self, body: bytes) -> None:
        """Parse a whole body, from an endpoint that does not stream."""
        self._feed_event(_parse_event(body), "message")
        self.is_done = True

    def _feed_line(self, line: bytes) -> None:
        """Parse one line; comments and fields other than `data` are ignored."""
        if not line.startswith(b"data:") or self.is_done:
            return
        data = line.removeprefix(b"data:").strip()
        if data == DONE:
            self.is_done = True
        elif data:
            self._feed_event(_parse_event(data), "delta")

    def _feed_event(self, event: Mapping[str, Any], holder: str) -> None:
        if event.get("error"):
            raise MalformedCompletion("it reported an error in the middle of its answer")
        model = event.get("model")
        if isinstance(model, str) and model:
            self.model = model[:MAX_NAME_CHARACTERS]
        for choice in _first_choice(event.get("choices")):
            held = choice.get(holder)
            content = held.get("content") if isinstance(held, Mapping) else None
            if isinstance(content, str):
                self._texts.append(content)
            finish = choice.get("finish_reason")
            if isinstance(finish, str):
                self.finish_reason = finish


def _parse_event(data: bytes) -> Mapping[str, Any]:
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise MalformedCompletion("its answer is not JSON") from error
    if not isinstance(event, Mapping):
        raise MalformedCompletion("its answer is not a chat completion")
    return event


def _first_choice(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)][:1] if isinstance(value, list) else []
