"""The network doors of the talkative server: Streamable HTTP, the older SSE and WebSocket, on one port."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from uuid import uuid4

from aiohttp import WSMsgType, web

from tests.downstream.servers.talkative_brain import LEGACY, MODERN, Client, Message, World, converse, encode

JSON = "application/json"
EVENTS = "text/event-stream"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""Newest revision: whose parameter has to be repeated in the header Mcp-Name."""


async def serve_network(world: World, port: int) -> None:
    """Until ended; the port is printed once it is open."""
    doors = Doors(world)
    app = web.Application(client_max_size=2**28)
    app.add_routes(
        [
            web.post("/mcp", doors.post),
            web.get("/mcp", doors.get),
            web.delete("/mcp", doors.delete),
            web.get("/sse", doors.sse),
            web.post("/messages", doors.messages),
            web.get("/ws", doors.websocket),
        ]
    )
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


class Refusal(Exception):
    """Answered with an HTTP status and an error of the protocol."""

    def __init__(self, status: int, code: int, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.error = {"code": code, "message": words}


class Events:
    """A stream of events, begun with the first of them; to nobody once the other side has hung up."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response: web.StreamResponse | None = None

    async def begin(self) -> web.StreamResponse:
        """Send the headers."""
        if self.response is None:
            self.response = web.StreamResponse(headers={"content-type": EVENTS, "cache-control": "no-store"})
            await self.response.prepare(self._request)
        return self.response

    async def say(self, message: Message | str | bytes) -> None:
        """An event with a message."""
        data = encode(message)
        await self.send("message", data if isinstance(data, bytes) else data.encode())

    async def send(self, event: str, data: bytes) -> None:
        """Any event."""
        response = await self.begin()
        transport = self._request.transport
        if transport is not None and not transport.is_closing():
            await response.write(b"event: %s\r\ndata: %s\r\n\r\n" % (event.encode(), data))


class Session:
    """A session of Streamable HTTP: what belongs to no call goes to the stream for it, or waits for there to be one."""

    def __init__(self, world: World) -> None:
        self.client = Client(world, self._say)
        self._streams: list[Events] = []
        self._waiting: list[Message | str | bytes] = []

    async def listen(self, stream: Events) -> None:
        """Say what belongs to no call on this stream, until the client hangs up."""
        await stream.begin()
        self._streams.append(stream)
        waiting, self._waiting = self._waiting, []
        try:
            for message in waiting:
                await stream.say(message)
            await asyncio.Event().wait()
        finally:
            self._streams.remove(stream)

    async def _say(self, message: Message | str | bytes) -> None:
        if not self._streams:
            self._waiting.append(message)
        for stream in self._streams[-1:]:
            await stream.say(message)


class Doors:
    """The handlers of all routes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sessions: dict[str, Session] = {}
        self._connections: dict[str, tuple[Client, asyncio.Queue[str]]] = {}
        self._working: set[asyncio.Future[Message | None]] = set()

    async def post(self, request: web.Request) -> web.StreamResponse:
        """A message to Streamable HTTP."""
        try:
            message = _parse_message(await request.read())
            if _get_version(message) is not None:
                if not self._world.speaks_modern:
                    raise Refusal(400, -32600, "Unsupported protocol version")
                _check_newest(message, request.headers)
                return await self._answer_newest(message, request)
            if message.get("method") == "initialize":
                return await self._greet(message, request)
            return await self._answer(self._session(request), message, request)
        except Refusal as refusal:
            body = {"jsonrpc": "2.0", "id": None, "error": refusal.error}
            return web.json_response(body, status=refusal.status)

    async def get(self, request: web.Request) -> web.StreamResponse:
        """The stream of what belongs to no call."""
        try:
            session = self._session(request)
        except Refusal as refusal:
            return web.Response(status=refusal.status)
        stream = Events(request)
        await session.listen(stream)
        return await stream.begin()

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """The end of a session."""
        session = self._sessions.pop(request.headers.get("mcp-session-id", ""), None)
        if session is None:
            return web.Response(status=404)
        await session.client.close()
        return web.Response(status=204)

    async def sse(self, request: web.Request) -> web.StreamResponse:
        """The stream of the older transport."""
        stream, id = Events(request), uuid4().hex
        messages: asyncio.Queue[str] = asyncio.Queue()
        client = Client(self._world, stream.say)
        self._connections[id] = (client, messages)
        await stream.send("endpoint", f"/messages?session={id}".encode())
        try:
            await converse(client, _iter_queue(messages), _headers(request))
        finally:
            del self._connections[id]
            await client.close()
        return await stream.begin()

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """A message to the older transport."""
        connection = self._connections.get(request.query.get("session", ""))
        if connection is None:
            return web.Response(status=404)
        connection[1].put_nowait(await request.text())
        return web.Response(status=202, text="Accepted")

    async def websocket(self, request: web.Request) -> web.StreamResponse:
        """A connection over WebSocket."""
        socket = web.WebSocketResponse(protocols=("mcp",), max_msg_size=2**28, autoping=True)
        await socket.prepare(request)

        async def say(message: Message | str | bytes) -> None:
            data = encode(message)
            if not socket.closed:
                await (socket.send_bytes(data) if isinstance(data, bytes) else socket.send_str(data))

        client = Client(self._world, say)
        try:
            await converse(client, _texts(socket), _headers(request))
        finally:
            await client.close()
        return socket

    def _session(self, request: web.Request) -> Session:
        version = request.headers.get("mcp-protocol-version")
        if version is not None and version not in LEGACY:
            raise Refusal(400, -32600, "Unsupported protocol version")
        id = request.headers.get("mcp-session-id")
        if id is None:
            raise Refusal(400, -32600, "Missing session id")
        if id not in self._sessions:
            raise Refusal(404, -32600, "Unknown session")
        return self._sessions[id]

    async def _greet(self, message: Message, request: web.Request) -> web.StreamResponse:
        session = Session(self._world)
        answer = await session.client.take(message, session.client.say, _headers(request))
        if answer is None or "error" in answer:
            await session.client.close()
            return web.json_response(answer, status=400)
        id = uuid4().hex
        self._sessions[id] = session
        return web.json_response(answer, headers={"mcp-session-id": id})

    async def _answer(self, session: Session, message: Message, request: web.Request) -> web.StreamResponse:
        """A client of these revisions that hangs up has not called anything off."""
        stream = Events(request)
        work = asyncio.ensure_future(session.client.take(message, stream.say, _headers(request)))
        self._working.add(work)
        work.add_done_callback(self._working.discard)
        return await _reply(stream, await asyncio.shield(work), is_request="id" in message and "method" in message)

    async def _answer_newest(self, message: Message, request: web.Request) -> web.StreamResponse:
        """A client of this revision calls off what it asked for by hanging up.

        The ids of its requests are its own, so that they are told apart here.
        """
        id = message.get("id")
        stream = Events(request)
        client = Client(self._world, _nowhere)
        try:
            answer = await client.take(message, stream.say, _headers(request))
        finally:
            await client.close()
        return await _reply(stream, answer, is_request=id is not None, status=_status(answer))


async def _reply(stream: Events, answer: Message | None, *, is_request: bool, status: int = 200) -> web.StreamResponse:
    """As JSON, unless something was said before it."""
    if stream.response is None and answer is not None:
        return web.json_response(answer, status=status)
    if stream.response is None and not is_request:
        return web.Response(status=202)
    if answer is not None:
        await stream.say(answer)
    return await stream.begin()


def _status(answer: Message | None) -> int:
    """Newest revision: errors about the request itself are told by the status too."""
    error = (answer or {}).get("error", {})
    return {-32022: 400, -32601: 404}.get(error.get("code", 0), 200)


def _parse_message(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except ValueError:
        raise Refusal(400, -32700, "Parse error") from None
    if not isinstance(message, dict):
        raise Refusal(400, -32600, "Not a message")
    return message


def _get_version(message: Message) -> str | None:
    params = message.get("params") or {}
    version = (params.get("_meta") or {}).get(VERSION_KEY)
    return version if isinstance(version, str) else None


def _check_newest(message: Message, headers: Mapping[str, str]) -> None:
    """The headers say the same as the message."""
    method, params = str(message.get("method")), message["params"]
    expected = {"mcp-protocol-version": _get_version(message), "mcp-method": method}
    if method in NAMED_BY:
        expected["mcp-name"] = params.get(NAMED_BY[method])
    for name, value in expected.items():
        if headers.get(name) != value:
            raise Refusal(400, -32020, f"The header {name} does not agree with the message")
    accept = headers.get("accept", "")
    if JSON not in accept or EVENTS not in accept:
        raise Refusal(406, -32600, "Not acceptable")
    capabilities = params["_meta"].get("io.modelcontextprotocol/clientCapabilities")
    if _get_version(message) in MODERN and not isinstance(capabilities, dict):
        raise Refusal(400, -32602, "The request does not say what the client can")


def _headers(request: web.Request) -> dict[str, str]:
    return {name.lower(): value for name, value in request.headers.items()}


async def _nowhere(message: Message | str | bytes) -> None:
    """In the newest revision nobody is spoken to but in answers."""


async def _iter_queue(messages: asyncio.Queue[str]) -> AsyncIterator[str]:
    while True:
        yield await messages.get()


async def _texts(socket: web.WebSocketResponse) -> AsyncIterator[str]:
    async for frame in socket:
        if frame.type == WSMsgType.TEXT:
            yield frame.data
