"""An OpenAI-compatible endpoint on loopback that answers what a test tells it: whole, cut, slow, endless or wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.connections import closing

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]


def answer(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    """A whole answer; `content_type="…"` becomes a header."""
    named = {"content-length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


def failure(status: str, error: dict[str, Any] | None = None, **headers: str) -> bytes:
    """An error of the usual form."""
    return answer(json.dumps({"error": error or {}}).encode(), status, content_type="application/json", **headers)


def events(*texts: str, finish: str | None = "stop", done: bool = True, model: str = "stub-1") -> bytes:
    """The body of a streamed answer, a piece of its text in each event."""
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": {"role": "assistant", "content": None}}]}]
    chunks += [{"model": model, "choices": [{"delta": {"content": text}}]} for text in texts]
    if finish:
        chunks += [{"choices": [{"delta": {}, "finish_reason": finish}]}, {"choices": [], "usage": {"total_tokens": 9}}]
    body = b": welcome\r\n\r\n" + b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    return body + (b"data: [DONE]\n\n" if done else b"")


def stream_answer(*texts: str, **kind: Any) -> bytes:
    """A whole streamed answer."""
    return answer(events(*texts, **kind), content_type="text/event-stream; charset=utf-8")


@dataclass
class Endpoint:
    """What is answered, one after the other and the last one for good; and what was asked."""

    port: int = 0
    answers: list[bytes | Script] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """What `answers.api_url` is set to."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request after the other, until the client goes or a script has had its say."""
        with closing(writer):
            while await self._answer(reader, writer):
                await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(line.split(":")[1] for line in head.split("\r\n") if line.lower().startswith("content-length"))
        self.heads.append(head)
        self.bodies.append(json.loads(await reader.readexactly(int(length))))
        said = self.answers[min(len(self.bodies), len(self.answers)) - 1]
        if isinstance(said, bytes):
            writer.write(said)
            return True
        await said(writer)
        return False


@asynccontextmanager
async def running_endpoint(*answers: bytes | Script) -> AsyncIterator[Endpoint]:
    """An endpoint on a free port until the block ends, which also ends what it still has to say."""
    endpoint = Endpoint(answers=list(answers))
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(endpoint.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    endpoint.port = server.sockets[0].getsockname()[1]
    try:
        yield endpoint
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
