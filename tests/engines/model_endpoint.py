"""An embedding service on loopback that can be out of order for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson

from tests.connections import closing
from tests.engines.desks import WordSums


class ModelEndpoint:
    """Answers `POST /v1/embeddings` as OpenAI's does."""

    def __init__(self) -> None:
        self.url = ""
        self.is_away = False
        self._model = WordSums()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        with closing(writer):
            while head := await reader.readuntil(b"\r\n\r\n"):
                status, body = await self._respond(await reader.readexactly(_length(head)))
                writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()

    async def _respond(self, body: bytes) -> tuple[str, bytes]:
        if self.is_away:
            return "500 Internal Server Error", orjson.dumps({"error": {"message": "out of order"}})
        vectors = await self._model.embed_passages(orjson.loads(body)["input"])
        data = [{"index": place, "embedding": vector.tolist()} for place, vector in enumerate(vectors)]
        return "200 OK", orjson.dumps({"data": data})


def _length(head: bytes) -> int:
    [length] = [line.partition(b":")[2] for line in head.splitlines() if line.lower().startswith(b"content-length:")]
    return int(length)


@asynccontextmanager
async def model_endpoint() -> AsyncIterator[ModelEndpoint]:
    """The service, on a free port."""
    endpoint = ModelEndpoint()
    server = await asyncio.start_server(endpoint.answer, "127.0.0.1", 0)
    async with server:
        endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield endpoint
