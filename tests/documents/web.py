"""A web server on loopback that answers exactly the bytes a test gives it: honest, lying, slow or endless."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.connections import closing

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]


def answer(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    """A whole answer; `content_type="text/html"` becomes a header, and the length is right unless it is given."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named.setdefault("content-length", str(len(body)))
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode("latin-1") + body


def redirect(location: str, status: str = "302 Found") -> bytes:
    """An answer that sends the client elsewhere."""
    return answer(status=status, location=location)


@dataclass
class Web:
    """What the server answers by path, and what it was asked."""

    port: int = 0
    pages: dict[str, bytes | Script] = field(default_factory=dict)
    connections: int = 0
    requests: list[str] = field(default_factory=list)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        """The address of a page."""
        return f"http://{host}:{self.port}{path}"

    @property
    def paths(self) -> list[str]:
        """The paths that were asked for, in order."""
        return [request.split(" ")[1] for request in self.requests]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request after the other until the client goes or a script has had its say."""
        self.connections += 1
        with closing(writer):
            while await self._answer(reader, writer):
                await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head.decode("latin-1"))
        page = self.pages.get(self.paths[-1], answer(status="404 Not Found"))
        if isinstance(page, bytes):
            writer.write(page)
            return True
        await page(writer)
        return False


@asynccontextmanager
async def running_web(host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[Web]:
    """A server on a free port until the block ends, which also ends what it still has to say."""
    web = Web()
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(web.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, host, 0, ssl=tls)
    web.port = server.sockets[0].getsockname()[1]
    try:
        yield web
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
