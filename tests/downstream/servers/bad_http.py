"""An HTTP server that does what no server should: raw sockets, so that every byte of it can be wrong.

Where a request is sent to says what becomes of it:

    /mcp          a good server; a tool that is named like a fault shows that fault, and `echo` works
    /FAULT        a good handshake; then every request meets the fault
    /init/FAULT   every request meets the fault, the handshake too
    /sse, /sse/FAULT    the same over the transport of 2024-11-05: `event: endpoint`, messages on the one stream

`python -m tests.downstream.servers.bad_http PORT` runs it alone; `bad_http()` in the loop of a test.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from tests.downstream.servers import bad_http_faults as _faults  # noqa: F401 - which fills FAULTS
from tests.downstream.servers.raw_http import FAULTS, HangUp, Request, as_json
from tests.waiting import PATIENCE_SECONDS

__all__ = ["FAULTS", "BadHttp", "Request", "bad_http"]


class BadHttp:
    """A running server, and what it has seen."""

    def __init__(self, drip_seconds: float) -> None:
        self.port = 0
        self.drip_seconds = drip_seconds
        """Between two pieces of what comes in drips."""
        self.seen: list[Request] = []
        self.sessions: set[str] = set()
        self.connections = 0
        self.connections_made = 0
        self.streams: list[Request] = []
        self.left = asyncio.Event()
        """A client hung up while something was still to come."""
        self.stream_opened = asyncio.Event()
        self.hangs_at_the_end = False
        self.happened: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._moved = asyncio.Event()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that is true after a request, or after the end of a connection."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                self._moved.clear()
                await self._moved.wait()

    def url(self, path: str = "mcp") -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def list_posts(self, method: str) -> list[Request]:
        """The requests that carried this method."""
        return [request for request in self.seen if request.body and request.message.get("method") == method]

    async def say(self, message: Any, id: str | None = None) -> None:
        """On every stream that is open for what belongs to no call."""
        for stream in list(self.streams):
            with contextlib.suppress(ConnectionError, RuntimeError):  # its client has gone, unnoticed so far
                await stream.event(message, id)

    async def cut_streams(self) -> None:
        """End those streams; they may be opened anew."""
        self.stream_opened.clear()
        for stream in list(self.streams):
            stream.writer.close()

    def once(self, what: str) -> bool:
        """Whether it is for the first time."""
        first = what not in self.happened
        self.happened.add(what)
        return first

    # The server itself.

    def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """In a task of our own: asyncio complains about those of its own that are cancelled."""
        assert isinstance(reader, _Reader)
        task = asyncio.ensure_future(self._converse(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End every conversation."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _converse(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.connections_made += 1
        try:
            while (request := await _read_request(reader, writer)) is not None:
                self.seen.append(request)
                self._moved.set()
                await self._serve_watched(request, reader)
        except HangUp:
            pass
        except (ConnectionError, asyncio.IncompleteReadError, RuntimeError):
            self.left.set()  # the last is what uvloop says of a socket that was closed meanwhile
        finally:
            self.connections -= 1
            self._moved.set()
            writer.close()

    async def _serve_watched(self, request: Request, reader: _Reader) -> None:
        """Serve it, but stop when the client is gone: it sends nothing more before it has its answer."""
        serving = asyncio.ensure_future(self._serve(request))
        watching = asyncio.ensure_future(reader.ended.wait())
        try:
            await asyncio.wait((serving, watching), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                return serving.result()
            self.left.set()
            raise HangUp
        finally:
            for task in (serving, watching):
                task.cancel()
            await asyncio.gather(serving, watching, return_exceptions=True)

    async def _serve(self, request: Request) -> None:
        parts = request.path.strip("/").split("/")
        if parts[0] == "sse":
            await self._serve_old(request, parts)
        elif parts[0] == "init":
            await FAULTS[parts[1]](self, request)
        elif request.method == "POST":
            await self._serve_post(request, parts[0])
        elif request.method == "DELETE" and self.hangs_at_the_end:
            await asyncio.Event().wait()
        elif request.method == "DELETE":
            self.sessions.discard(request.headers.get("mcp-session-id", ""))
            await request.reply()
        else:
            await self._serve_get(request, parts[0])

    async def _serve_post(self, request: Request, mode: str) -> None:
        message = request.message
        session = request.headers.get("mcp-session-id")
        if session is not None and session not in self.sessions:
            await request.reply(as_json(request.failure(-32600, "Session not found")), 404)
        elif "id" not in message or "method" not in message:
            await request.reply(status=202)
        elif message["method"] == "initialize":
            await self._greet(request)
        else:
            await self._play(request, mode)

    async def _greet(self, request: Request) -> None:
        session = uuid4().hex
        self.sessions.add(session)
        version = request.message.get("params", {}).get("protocolVersion", "2025-11-25")
        info = {"name": "bad", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"tools": {"listChanged": True}}, "serverInfo": info}
        answer = {"jsonrpc": "2.0", "id": request.message["id"], "result": result}
        await request.reply(as_json(answer), mcp_session_id=session, set_cookie="tasty=yes")

    async def _play(self, request: Request, mode: str) -> None:
        params = request.message.get("params") or {}
        if mode == "mcp" and request.message["method"] == "tools/call":
            mode = params.get("name", "mcp")
        if mode in FAULTS:
            await FAULTS[mode](self, request)
        elif request.message["method"] == "tools/list":
            names = ["echo", *FAULTS]
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
            answer = {"jsonrpc": "2.0", "id": request.message["id"], "result": {"tools": tools}}
            await request.reply(as_json(answer))
        else:
            await request.reply(as_json(request.answer(str((params.get("arguments") or {}).get("text", "done")))))

    async def _serve_get(self, request: Request, mode: str) -> None:
        session = request.headers.get("mcp-session-id")
        if session is not None and session not in self.sessions:
            await request.reply(status=404)
        elif mode == "get405" or ("resum" in mode and "last-event-id" not in request.headers):
            await request.reply(status=405)
        elif mode in FAULTS and "resum" in mode:
            await FAULTS[mode](self, request)
        else:
            await self._hold_stream(request)

    async def _hold_stream(self, request: Request, first: bytes = b": hello\n\n") -> None:
        await request.begin_events()
        await request.chunk(first)
        self.streams.append(request)
        self.stream_opened.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.streams.remove(request)

    async def _serve_old(self, request: Request, parts: list[str]) -> None:
        """The transport of 2024-11-05: answers come on the stream, POSTs are only taken."""
        mode = parts[1] if len(parts) > 1 else ""
        if request.method == "GET":
            await self._open_old(request, mode)
        elif mode.startswith("e") and mode in FAULTS and request.message.get("method") == "tools/call":
            await FAULTS[mode](self, request)
        else:
            await request.reply(b"Accepted", 202, "text/plain")
            await self._answer_old(request, mode)

    async def _open_old(self, request: Request, mode: str) -> None:
        places = {
            "foreign": "http://127.0.0.2:9/x",
            "otherport": f"http://127.0.0.1:{self.port + 1}/sse",
            "user": f"http://a:b@127.0.0.1:{self.port}/sse",
        }
        if mode == "late":
            await self._hold_stream(request)
        elif mode in FAULTS and not mode.startswith(("e4", "e5")):
            await FAULTS[mode](self, request)
        elif mode == "init401":
            await request.reply(status=401)
        else:
            place = places.get(mode, "/" + "/".join(part for part in ("sse", mode) if part) + "?session=1")
            await self._hold_stream(request, f"event: endpoint\ndata: {place}\n\n".encode())

    async def _answer_old(self, request: Request, mode: str) -> None:
        message = request.message
        if "id" not in message or "method" not in message:
            return
        if message["method"] == "initialize":
            info = {
                "protocolVersion": "2024-11-05",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "bad", "version": "1"},
            }
            await self.say({"jsonrpc": "2.0", "id": message["id"], "result": info})
        elif mode == "cut" or (message.get("params") or {}).get("name") == "cut":
            await self.cut_streams()
        elif mode != "silent":
            await self.say(
                request.answer(str(((message.get("params") or {}).get("arguments") or {}).get("text", "done")))
            )


class _Reader(asyncio.StreamReader):
    """A reader that tells when the client has closed its side, although nothing is read from it."""

    def __init__(self) -> None:
        super().__init__(limit=1 << 20)
        self.ended = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.ended.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.ended.set()


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, target, _ = first.split(" ")
    headers = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, target, headers, body, writer)


@asynccontextmanager
async def bad_http(port: int = 0, *, drip_seconds: float = 0.01) -> AsyncIterator[BadHttp]:
    """Run it in this loop, on a free port unless told."""
    bad = BadHttp(drip_seconds)
    server = await asyncio.get_running_loop().create_server(
        lambda: asyncio.StreamReaderProtocol(_Reader(), bad.on_connection), "127.0.0.1", port
    )
    bad.port = server.sockets[0].getsockname()[1]
    try:
        yield bad
    finally:
        server.close()
        await bad.close()


async def _serve_alone(port: int) -> None:
    async with bad_http(port) as server:
        sys.stdout.write(f"{server.port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve_alone(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
