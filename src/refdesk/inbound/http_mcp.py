"""The HTTP endpoint of MCP: requests by POST, a session's notifications by GET, its end by DELETE."""

from __future__ import annotations

import asyncio
from typing import Final

from refdesk.config import ServerConfig
from refdesk.errors import InvalidRequest, Overloaded, TransportError
from refdesk.inbound.asgi import (
    CLOSE,
    JSON,
    RETRY_SOON,
    DisconnectMonitor,
    Headers,
    Receive,
    RequestCancelled,
    RequestContext,
    Send,
    respond,
)
from refdesk.inbound.envelope import RpcMessage, RpcNotification, RpcRequest, RpcResponse, encode_error
from refdesk.inbound.mcp.dispatch import STREAMING_METHODS, McpDispatcher
from refdesk.inbound.mcp.revisions import (
    HANDSHAKE_REVISIONS,
    MODERN_HEADER,
    MODERN_REVISION,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from refdesk.inbound.mcp.sessions import HttpSession, SessionTable
from refdesk.inbound.mcp.streams import STREAM_HEADERS, EventStream, ResponseChannel
from refdesk.inbound.uvicorn_protocol import Sender

_HANDSHAKE_HEADERS: Final = frozenset(revision.encode() for revision in HANDSHAKE_REVISIONS)
_NOT_FOUND = TransportError("Session not found")


class McpEndpoint:
    """Serves `/mcp` from a dispatcher, and holds its sessions."""

    def __init__(self, dispatcher: McpDispatcher, settings: ServerConfig, monitor: DisconnectMonitor) -> None:
        self._dispatcher = dispatcher
        self._monitor = monitor
        # A session lives in one process. With several workers the next request might reach another one.
        self._sessions_on = not settings.stateless and settings.workers == 1
        self._sessions = SessionTable(settings.max_sessions, settings.session_idle_seconds, dispatcher.close_session)
        self._is_draining = False

    def drain(self) -> None:
        """End long-lived streams."""
        self._is_draining = True
        self._sessions.end_streams()
        self._dispatcher.close()

    def close(self) -> None:
        """End all sessions."""
        self._dispatcher.close()
        self._sessions.close_all()

    async def post(
        self, message: RpcMessage, context: RequestContext, receive: Receive, send: Send, headers: Headers
    ) -> None:
        """Answer a message. Raises ProtocolError if it isn't one for this endpoint."""
        version, session_id = headers.get(b"mcp-protocol-version"), headers.get(b"mcp-session-id")
        if version is not None and version not in _HANDSHAKE_HEADERS and version.strip() not in _HANDSHAKE_HEADERS:
            await self._post_modern(message, context, receive, send, headers)
            return
        session = None
        if session_id is not None:
            session = self._sessions.find(session_id, context.caller)
            if session is None:
                await respond(send, 404, encode_error(None, _NOT_FOUND), JSON)
                return
        if isinstance(message, RpcRequest):
            accepts_stream = b"text/event-stream" in headers.get(b"accept", b"")
            if message.method == "initialize" and session is None and accepts_stream and self._sessions_on:
                await self._open_session(message, context, send)
            else:
                channel = None
                if accepts_stream and message.method in STREAMING_METHODS:
                    channel = ResponseChannel(send, STREAM_HEADERS if session is None else _build_headers(session))
                await self._answer(message, context, channel, session, receive, send)
        elif session is not None:
            self._dispatcher.take(message, session)
            await respond(send, 202, b"")
        elif isinstance(message, RpcNotification):
            await respond(send, 202, b"")
        else:
            raise InvalidRequest("A response belongs to a session; send its Mcp-Session-Id")

    async def get(self, context: RequestContext, receive: Receive, send: Send, headers: Headers) -> None:
        """Send the notifications of a session until its client leaves, or the session or the server ends."""
        session = self._sessions.find(headers[b"mcp-session-id"], context.caller)
        last_event_id = headers.get(b"last-event-id")
        if session is None:
            await respond(send, 404, encode_error(None, _NOT_FOUND), JSON)
        elif not _accepts(headers, b"text/event-stream"):
            error = TransportError("Not Acceptable: Client must accept text/event-stream")
            await respond(send, 406, encode_error(None, error), JSON)
        elif session.stream is not None and last_event_id is None:
            error = TransportError("Conflict: Only one SSE stream is allowed per session")
            await respond(send, 409, encode_error(None, error), JSON)
        else:
            stream = EventStream(send, _build_headers(session))
            session.attach(stream, last_event_id)
            if self._is_draining:
                stream.finish()
            try:
                with self._monitor.watch(receive):
                    await stream.wait()
            finally:
                session.detach(stream)
                stream.abandon()
                self._sessions.touch(session)

    async def delete(self, context: RequestContext, send: Send, headers: Headers) -> None:
        """End a session."""
        session = self._sessions.find(headers[b"mcp-session-id"], context.caller)
        if session is None:
            await respond(send, 404, encode_error(None, _NOT_FOUND), JSON)
        else:
            self._sessions.close(session)
            await respond(send, 200, b"", JSON)

    async def _post_modern(
        self, message: RpcMessage, context: RequestContext, receive: Receive, send: Send, headers: Headers
    ) -> None:
        if not (_accepts(headers, b"application/json") and _accepts(headers, b"text/event-stream")):
            error = TransportError("Not Acceptable: Client must accept both application/json and text/event-stream")
            await respond(send, 406, encode_error(None, error), JSON)
        elif isinstance(message, RpcRequest):
            channel = ResponseChannel(send) if message.method in STREAMING_METHODS else None
            await self._answer(message, context, channel, None, receive, send, headers)
        elif isinstance(message, RpcResponse):
            raise InvalidRequest("A client of this revision sends requests and notifications only")
        elif (version := headers[b"mcp-protocol-version"].strip()) != MODERN_HEADER:
            data = {"supported": [MODERN_REVISION], "requested": version.decode("latin-1")}
            raise TransportError("Unsupported protocol version", code=UNSUPPORTED_PROTOCOL_VERSION, data=data)
        else:
            # A client cancels a request by leaving, so there is no notification to act on.
            await respond(send, 202, b"")

    async def _open_session(self, request: RpcRequest, context: RequestContext, send: Send) -> None:
        try:
            session = self._sessions.create(context.caller)
        except Overloaded as error:
            await respond(send, 503, encode_error(request.id, error), JSON, RETRY_SOON)
            return
        answer = await self._dispatcher.answer(request, context, session=session)
        if session.revision is None:
            await respond(send, 200, answer, JSON)
        else:
            self._sessions.add(session)
            await respond(send, 200, answer, JSON, (b"mcp-session-id", session.id.encode()))

    async def _answer(
        self,
        request: RpcRequest,
        context: RequestContext,
        channel: ResponseChannel | None,
        session: HttpSession | None,
        receive: Receive,
        send: Send,
        headers: Headers | None = None,
    ) -> None:
        """Answer with a JSON body, or with the final event of a stream that the call has opened.

        A request with `headers` is one of the stateless revision.
        """
        status = 200
        try:
            with self._monitor.watch(receive) as watcher:
                if channel is not None:
                    channel.on_open = watcher.start
                if headers is not None:
                    status, answer = await self._dispatcher.answer_modern(request, context, channel, headers)
                elif session is None:
                    answer = await self._dispatcher.answer(request, context, channel)
                else:
                    session.begin(request.id, watcher)
                    try:
                        answer = await self._dispatcher.answer(request, context, channel, session)
                    finally:
                        session.finish(request.id, watcher)
                        self._sessions.touch(session)
            stream = None if channel is None else channel.take_stream()
            if stream is not None:
                await stream.end(answer)
            elif not (status == 200 and isinstance(send, Sender) and send.send_json(answer)):
                await respond(send, status, answer, JSON)
        except RequestCancelled:
            await _finish(channel, send, 202, b"")
        except asyncio.CancelledError:
            if not self._is_draining:
                raise
            # The grace period is over, but the connection stays open long enough to respond.
            stopping = Overloaded("The server is stopping; ask again in a moment", retry_after=1.0)
            encoded = encode_error(request.id, stopping)
            await _finish(channel, send, 503, encoded, JSON, CLOSE, RETRY_SOON)
        finally:
            if channel is not None:
                channel.close()


async def _finish(
    channel: ResponseChannel | None, send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]
) -> None:
    """Respond to a call that was stopped. If its stream is open, the status has been sent already."""
    stream = None if channel is None else channel.take_stream()
    if stream is None:
        await respond(send, status, body, *headers)
    else:
        await stream.end(body or None)


def _build_headers(session: HttpSession) -> tuple[tuple[bytes, bytes], ...]:
    return (*STREAM_HEADERS, (b"mcp-session-id", session.id.encode()))


def _accepts(headers: Headers, media_type: bytes) -> bool:
    """Return whether a client accepts a media type, by name or by a wildcard."""
    accept = headers.get(b"accept", b"")
    if media_type in accept:
        return True
    wildcards = b"*/*", media_type.partition(b"/")[0] + b"/*"
    return any(item.partition(b";")[0].strip() in wildcards for item in accept.lower().split(b","))
