"""The body of a chat completion, piece by piece: server-sent events to text. Pure: bytes in, text and state out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

MAX_BODY_BYTES = 4 * 1024 * 1024
"""An answer of 4,000 tokens streams in about a megabyte, most of it repeated around every word."""

MAX_NAME_CHARACTERS = 100
"""Of the model's name, which the endpoint tells."""

DONE = b"[DONE]"


class Malformed(Exception):
    """The body is no chat completion; says in a few words why."""


class Completion:
    """An answer as it comes in."""

    def __init__(self) -> None:
        self.model = ""
        self.finish: str | None = None
        """Why the model stopped; None while it has not."""
        self.is_done = False
        self._texts: list[str] = []
        self._rest = b""
        self._size = 0

    @property
    def text(self) -> str:
        """What the model has written so far."""
        return "".join(self._texts)

    def feed(self, data: bytes) -> None:
        """Take in the next bytes of an event stream, wherever they were cut."""
        self.count(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take_line(line.rstrip(b"\r"))

    def count(self, data: bytes) -> None:
        """Hold the body to its bound."""
        self._size += len(data)
        if self._size > MAX_BODY_BYTES:
            raise Malformed(f"its answer is larger than {MAX_BODY_BYTES} bytes")

    def end(self) -> None:
        """The stream is over: was it complete?"""
        self._take_line(self._rest)
        if not self.is_done and self.finish is None:
            raise Malformed("its answer broke off before the end")

    def take_whole(self, body: bytes) -> None:
        """Take in an answer that came in one piece, from an endpoint that does not stream."""
        self._take(_parsed(body), "message")
        self.is_done = True

    def _take_line(self, line: bytes) -> None:
        """One line of the stream; comments and other fields than `data` mean nothing here."""
        if not line.startswith(b"data:") or self.is_done:
            return
        data = line.removeprefix(b"data:").strip()
        if data == DONE:
            self.is_done = True
        elif data:
            self._take(_parsed(data), "delta")

    def _take(self, event: Mapping[str, Any], holder: str) -> None:
        if event.get("error"):
            raise Malformed("it reported an error in the middle of its answer")
        model = event.get("model")
        if isinstance(model, str) and model:
            self.model = model[:MAX_NAME_CHARACTERS]
        for choice in _objects(event.get("choices")):
            held = choice.get(holder)
            content = held.get("content") if isinstance(held, Mapping) else None
            if isinstance(content, str):
                self._texts.append(content)
            finish = choice.get("finish_reason")
            if isinstance(finish, str):
                self.finish = finish


def _parsed(data: bytes) -> Mapping[str, Any]:
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Malformed("its answer is not JSON") from error
    if not isinstance(event, Mapping):
        raise Malformed("its answer is no chat completion")
    return event


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)][:1] if isinstance(value, list) else []
