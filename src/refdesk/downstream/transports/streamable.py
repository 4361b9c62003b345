"""Streamable HTTP transport: every message is a POST, answered with JSON or an event stream.

Versions with a handshake also have a session and a stream for notifications outside of calls. Newer versions have
neither. Requests are sent and their responses received in the caller's task, without a queue.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import orjson
from multidict import istr

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.jsonrpc import VERSION_HEADER, Message, NotTaken, TransportListener
from refdesk.downstream.transports.events import SseParser
from refdesk.downstream.transports.http import EVENTS, JSON, HttpTransport, get_media_type, parse_json
from refdesk.errors import RefdeskError, ServerAway, ServerGone, ServerRefused
from refdesk.support.tasks import cancel_all

logger = logging.getLogger(__name__)

SESSION_HEADER = istr("mcp-session-id")
LAST_EVENT_HEADER = istr("last-event-id")

FIRST_WITHOUT_SESSIONS = "2026-07-28"
"""First version without sessions. Its only streams are those of requests, and closing one cancels the request."""

NON_ANSWER_STATUSES = (401, 403, 429)
"""Statuses about credentials or rate limits, never the response to the request itself."""

DELETE_SECONDS = 2.0
"""Timeout for deleting the session on the server."""

MAX_RESUMES = 5
"""Consecutive attempts to resume a response stream without receiving anything new."""

FIRST_PAUSE_SECONDS = 0.5
"""Delay before a stream is reopened, unless the server sets one. Doubles with each attempt."""

SHORTEST_PAUSE_SECONDS = 0.01
LONGEST_PAUSE_SECONDS = 30.0
"""Limits for the delay, whatever the server sets."""


class StreamableHttpTransport(HttpTransport):
    """Streamable HTTP `Transport`. Nothing is sent before the first message."""

    def __init__(
        self,
        name: str,
        settings: McpServerConfig,
        listener: TransportListener,
        *,
        delete_seconds: float = DELETE_SECONDS,
    ) -> None:
        super().__init__(name, settings, listener, f"{JSON}, {EVENTS}")
        self._delete_seconds = delete_seconds
        self._has_session = False
        self._version = ""
        self._listening: asyncio.Task[None] | None = None

    async def send(self, message: Message, headers: Mapping[str, str] | None = None) -> None:
        """POST a message. For a request, the response has been received when this returns."""
        method = message.get("method")
        self._raise_if_closed()
        if method == "notifications/cancelled" and self._version >= FIRST_WITHOUT_SESSIONS:
            return  # closing the stream cancelled it
        response = await self.post(message, headers)
        try:
            if response.status >= 300:
                await self._handle_refusal(response, message)
            elif method is not None and "id" in message:
                await self._handle_response(response, message)
        except BaseException:
            response.close()
            raise
        self.release(response)
        if method == "notifications/initialized" and "" < self._version < FIRST_WITHOUT_SESSIONS:
            self._listening = asyncio.create_task(self._listen_forever(), name=f"listen to {self.name}")

    def set_protocol_version(self, version: str) -> None:
        """Send the version with every request."""
        self._version = version
        self.headers[VERSION_HEADER] = version

    async def close(self) -> None:
        """Delete the session on the server, and close all connections."""
        try:
            if self._listening is not None:
                await cancel_all([self._listening])
            if self._has_session and self._error is None:
                async with asyncio.timeout(self._delete_seconds):
                    response = await self.request("DELETE")
                    response.close()
        except (RefdeskError, TimeoutError) as error:
            self._log("downstream.no_farewell", error)
        finally:
            self._close_with(self._build_closed_error())
            await super().close()

    # Responses

    async def _handle_response(self, response: aiohttp.ClientResponse, request: Message) -> None:
        id = request["id"]
        session_id = response.headers.get(SESSION_HEADER) if request["method"] == "initialize" else None
        if session_id:
            if not (session_id.isascii() and session_id.isprintable()):
                raise self.build_protocol_error("returned a session ID that is not valid in a header")
            self._has_session = True
            self.headers[SESSION_HEADER] = session_id
        kind = get_media_type(response)
        if kind == EVENTS:
            await self._handle_stream(response, id)
        elif kind == JSON:
            body = await self.read(response, self.max_bytes)
            try:
                content = parse_json(body)
            except orjson.JSONDecodeError as error:
                raise self.build_protocol_error("sent an invalid JSON response") from error
            if not self.deliver(content, id):
                raise self.build_protocol_error("gave no answer to what was asked")
        else:
            raise self.build_protocol_error(f"answered a request with HTTP {response.status} and no JSON")

    async def _handle_refusal(self, response: aiohttp.ClientResponse, message: Message) -> None:
        """Deliver an error response that answers the request, or raise it. A 404 ends the session."""
        status = response.status
        if status == 404 and self._has_session:
            ending = self._build_closed_error()
            self._close_with(ending)
            raise NotTaken(ending.detail)
        if 400 <= status < 500 and status not in NON_ANSWER_STATUSES and "method" in message and "id" in message:
            error = await self.read_jsonrpc_error(response)
            if error is not None:
                self._listener.on_message({"jsonrpc": "2.0", "id": message["id"], "error": error}, message["id"])
                return
        raise self.build_status_error(response)

    # Streams

    async def _handle_stream(self, response: aiohttp.ClientResponse, id: str) -> None:
        """Read a response stream until the response arrives, and resume it if it breaks off."""
        reader = SseParser(self.max_bytes)
        error: RefdeskError = ServerGone(f"The server {self.name!r} ended its answer before the end")
        try:
            if await self._read_stream(response, reader, id):
                return
        except ServerGone as broken:
            error = broken
        if not (self._has_session and reader.last_id and await self._resume(reader, id)):
            raise error

    async def _resume(self, reader: SseParser, id: str) -> bool:
        """Resume a response stream after its last event. Return whether the response arrived."""
        tries = 0
        while tries < MAX_RESUMES and self._error is None:
            await asyncio.sleep(_reconnect_delay(reader, tries))
            tries += 1
            reader = reader.resume()
            last_id = reader.last_id
            try:
                async with self._open_stream(last_id) as response:
                    if await self._read_stream(response, reader, id):
                        return True
            except ServerRefused:
                return False
            except (ServerGone, ServerAway) as error:
                self._log("downstream.not_resumed", error)
            if reader.last_id != last_id:
                tries = 0
        return False

    async def _listen_forever(self) -> None:
        """Read the stream for notifications outside of calls, once the handshake is complete."""
        reader = SseParser(self.max_bytes)
        tries = 0
        while self._error is None:
            try:
                async with self._open_stream(reader.last_id) as response:
                    tries = 0
                    await self._read_stream(response, reader, None)
            except ServerRefused:
                return  # the server has no notification stream
            except RefdeskError as error:
                self._log("downstream.not_listening", error)
            await asyncio.sleep(_reconnect_delay(reader, tries))
            tries += 1
            reader = reader.resume()

    @asynccontextmanager
    async def _open_stream(self, last_id: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a GET stream, starting after the given event."""
        response = await self.request("GET", None, {LAST_EVENT_HEADER: last_id} if last_id else None)
        try:
            status = response.status
            if status in (404, 429) or status >= 500:
                await self._handle_refusal(response, {})
            if status >= 300 or get_media_type(response) != EVENTS:
                raise ServerRefused(self.name, -32600, f"HTTP {status} and no stream of events")
            yield response
        finally:
            response.close()

    async def _read_stream(self, response: aiohttp.ClientResponse, reader: SseParser, id: str | None) -> bool:
        """Deliver the events of a stream. Return whether it contained the response to the given request."""
        while chunk := await self.read_chunk(response):
            is_answered = False
            for event in reader.feed(chunk):
                if id is not None and not event.is_whole:
                    raise self.build_size_error(self.max_bytes)
                is_answered |= self.deliver_event(event, id)
            if is_answered:
                return True
        return False

    def _build_closed_error(self) -> ServerGone:
        return ServerGone(f"The session with the server {self.name!r} has ended")

    def _log(self, event: str, error: Exception) -> None:
        logger.debug(event, extra={"fields": {"server": self.name, "why": str(error) or "too slow"}})


def _reconnect_delay(reader: SseParser, tries: int) -> float:
    """Return the delay before a stream is reopened: the server's, or ours with jitter, doubled with each attempt."""
    if reader.retry is None:
        first = FIRST_PAUSE_SECONDS * random.uniform(0.5, 1)  # jitter: not all at once
    else:
        first = max(SHORTEST_PAUSE_SECONDS, reader.retry)
    return min(LONGEST_PAUSE_SECONDS, first * 2.0 ** min(tries, 12))
