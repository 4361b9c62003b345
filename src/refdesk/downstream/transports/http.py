"""Base of the Streamable HTTP and SSE transports.

It never follows anything that a server names: no redirects, no URLs from headers, no cookies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import aiohttp
import orjson
from aiohttp import hdrs
from multidict import CIMultiDict
from yarl import URL

from refdesk.config.server_model import McpServerConfig
from refdesk.config.types import mask_url
from refdesk.downstream.jsonrpc import (
    MAX_PARTS,
    PART_COUNT_THRESHOLD,
    Message,
    NotLetIn,
    Transport,
    TransportListener,
    encode_message,
)
from refdesk.downstream.transports.events import SseEvent
from refdesk.errors import (
    RefdeskError,
    ServerAway,
    ServerConnectTimeout,
    ServerGone,
    ServerRefused,
    ServerTalksNonsense,
)
from refdesk.resilience.dependency import parse_retry_after
from refdesk.resilience.http_client import KEEPALIVE_SECONDS, wrap_body
from refdesk.version import __version__

JSON = "application/json"
EVENTS = "text/event-stream"

READ_BUFFER_BYTES = 65_536
"""Read-ahead per response, and the most that is processed in one step."""

LEFTOVER_SECONDS = 1.0
"""Time to receive the unread rest of a response, so that its connection can be reused."""

MAX_REFUSAL_BYTES = 65_536
"""Bytes read from the body of an error response, which may contain a JSON-RPC error."""

NOT_RESENT = ("tools/call",)
"""Methods that may have side effects and are never sent twice."""

INVALID_REQUEST = -32600
"""JSON-RPC code for error responses without a code of their own."""

_OTHER_TRANSPORT = (404, 405)
_FAILURES = (aiohttp.ClientError, OSError, RuntimeError)  # aiohttp raises RuntimeError when closed


class HttpTransport(Transport):
    """HTTP client for one server: its URL, connections and default headers."""

    def __init__(self, name: str, settings: McpServerConfig, listener: TransportListener, accept: str) -> None:
        super().__init__(name, listener)
        self.max_bytes = settings.max_message_bytes
        self.connect_seconds = settings.connect_timeout_seconds
        self.url, headers = parse_url_and_headers(name, settings)
        self._reading: set[aiohttp.ClientResponse] = set()
        self._leftover: set[aiohttp.ClientResponse] = set()
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            timeout=aiohttp.ClientTimeout(connect=self.connect_seconds),
            trust_env=False,
            read_bufsize=READ_BUFFER_BYTES,
        )
        self.headers = self._client.headers
        """Headers of every request."""
        self.headers[hdrs.ACCEPT] = accept
        self.headers[hdrs.CONTENT_TYPE] = JSON

    async def close(self) -> None:
        """Close all connections."""
        for response in (*self._reading, *self._leftover):
            response.close()  # wakes its reader; closing the client alone doesn't
        await self._client.close()

    async def post(
        self, message: Message, headers: Mapping[str, str] | None, url: URL | None = None
    ) -> aiohttp.ClientResponse:
        """Send a message. One without side effects is sent again if the server had just closed the idle connection."""
        body = encode_message(self.name, message)
        try:
            return await self.request("POST", body, headers, url)
        except ServerGone:
            if message.get("method") in NOT_RESENT:
                raise
        return await self.request("POST", body, headers, url)

    async def request(
        self, method: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, url: URL | None = None
    ) -> aiohttp.ClientResponse:
        """Send a request and return the response once its headers have arrived.

        The caller reads the body, and closes or releases the response.
        """
        data = wrap_body(body)
        try:
            return await self._client.request(
                method, url or self.url, headers=headers, data=data, allow_redirects=False
            )
        except _FAILURES as error:
            raise self._map_exception(error) from error

    async def read_chunk(self, response: aiohttp.ClientResponse) -> bytes:
        """Return the next available part of the body, or nothing at its end."""
        self._reading.add(response)
        try:
            return await response.content.readany()
        except _FAILURES as error:
            raise self._map_exception(error) from error
        finally:
            self._reading.discard(response)

    async def read(self, response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
        """Return the whole body. Raises an error if it exceeds the limit."""
        if (response.content_length or 0) > max_bytes:
            raise self.build_size_error(max_bytes)
        chunks: list[bytes] = []
        size = 0
        while not response.content.at_eof():
            chunks.append(await self.read_chunk(response))
            size += len(chunks[-1])
            if size > max_bytes:
                raise self.build_size_error(max_bytes)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def release(self, response: aiohttp.ClientResponse) -> None:
        """Discard the rest of a response, and reuse its connection if the rest arrives soon."""
        if not response.closed:
            self._leftover.add(response)
            asyncio.get_running_loop().call_later(LEFTOVER_SECONDS, self._close_leftover, response)

    def _close_leftover(self, response: aiohttp.ClientResponse) -> None:
        self._leftover.discard(response)
        response.close()

    def deliver(self, content: Any, id: str | None) -> bool:
        """Deliver a message or batch. Return whether it contained the response to the given request."""
        is_answered = False
        for message in content if isinstance(content, list) else (content,):
            if isinstance(message, dict):
                self._listener.on_message(message, id)
                is_answered |= id is not None and message.get("id") == id and "method" not in message
            else:
                self._listener.on_garbage("JSON that is no message")
        return is_answered

    def deliver_event(self, event: SseEvent, id: str | None) -> bool:
        """Deliver the messages of an SSE event. Return whether they contained the response to the given request."""
        if not event.is_whole:
            self._listener.on_garbage("an event that is too large")
        elif event.kind == "message" and event.data:
            try:
                return self.deliver(parse_json(event.data), id)
            except orjson.JSONDecodeError:
                self._listener.on_garbage("an event that is no JSON")
        return False

    def build_status_error(self, response: aiohttp.ClientResponse) -> RefdeskError:
        """Return the error for an unsuccessful HTTP status."""
        status = response.status
        if status in (401, 403):
            sent = response.request_info.headers.get(hdrs.AUTHORIZATION)
            if sent != self.headers.get(hdrs.AUTHORIZATION):
                # Only this caller was rejected: the server is available for all others.
                said = f"The server {self.name!r} refused the credentials of this caller ({status})"
                return ServerRefused(self.name, INVALID_REQUEST, said)
            kind = NotLetIn if status == 401 else ServerAway
            return kind(
                f"The server {self.name!r} refused the credentials ({status}): "
                f"set what it wants in `headers` of its settings, such as Authorization"
            )
        if 300 <= status < 400:
            place = mask_url(response.headers.get(hdrs.LOCATION, ""))[:200]
            return ServerAway(
                f"The server {self.name!r} redirects to {place!r} (HTTP {status}), which is not followed. "
                f"Set its `url` to the right address."
            )
        if status == 429 or status >= 500:
            wait = parse_retry_after(response.headers.get(hdrs.RETRY_AFTER))
            return ServerAway(f"The server {self.name!r} is unavailable (HTTP {status})", retry_after=wait)
        hint = "; a server of the older kind needs the type 'sse'" if status in _OTHER_TRANSPORT else ""
        return ServerRefused(self.name, INVALID_REQUEST, f"HTTP {status} of the server {self.name!r}{hint}")

    async def read_jsonrpc_error(self, response: aiohttp.ClientResponse) -> Message | None:
        """Return the JSON-RPC error in the body of an error response, if there is one."""
        if get_media_type(response) != JSON:
            return None
        try:
            message = parse_json(await self.read(response, min(self.max_bytes, MAX_REFUSAL_BYTES)))
        except (orjson.JSONDecodeError, ServerTalksNonsense):
            return None
        error = message.get("error") if isinstance(message, dict) else None
        return error if isinstance(error, dict) else None

    def build_protocol_error(self, what: str) -> ServerTalksNonsense:
        """Return the error for an invalid response."""
        return ServerTalksNonsense(f"The server {self.name!r} {what}")

    def build_size_error(self, max_bytes: int) -> ServerTalksNonsense:
        """Return the error for a response that exceeds the size limit."""
        return self.build_protocol_error(f"sent a message of more than {max_bytes} bytes")

    def _map_exception(self, error: Exception) -> RefdeskError:
        """Map a connection error. Its own text may contain the URL and is left out."""
        match error:
            case aiohttp.ConnectionTimeoutError():
                limit = f"{self.connect_seconds:g} seconds"
                return ServerConnectTimeout(f"The server {self.name!r} did not accept a connection within {limit}")
            case aiohttp.ClientResponseError():
                return self.build_protocol_error("sent an invalid HTTP response")
            case aiohttp.ClientPayloadError():
                return ServerGone(f"The answer of the server {self.name!r} was cut off or is not valid HTTP")
            case aiohttp.ClientConnectorCertificateError():
                why = "its certificate is not trusted"
            case aiohttp.ClientSSLError():
                why = "the TLS handshake failed"
            case aiohttp.ClientConnectorDNSError():
                why = "its host name can't be resolved"
            case aiohttp.ClientConnectorError():
                why = "no server is listening at its address"
            case _:
                return ServerGone(f"The connection to the server {self.name!r} ended before its answer")
        return ServerAway(f"The server {self.name!r} cannot be connected to: {why}")


def parse_json(body: bytes) -> Any:
    """Parse JSON. Documents with too many objects and lists are rejected as invalid."""
    if len(body) > PART_COUNT_THRESHOLD and body.count(b"[") + body.count(b"{") > MAX_PARTS:
        raise orjson.JSONDecodeError("more parts than are taken", "", 0)
    return orjson.loads(body)


def get_media_type(response: aiohttp.ClientResponse) -> str:
    """Return the media type of a response, without parameters."""
    kind = response.headers.get(hdrs.CONTENT_TYPE, "")
    return kind if kind == JSON else kind.partition(";")[0].strip().lower()


def parse_url_and_headers(
    name: str, settings: McpServerConfig, schemes: Collection[str] = ("http", "https")
) -> tuple[URL, CIMultiDict[str]]:
    """Return the URL of a server and its default headers. Credentials in the URL become a header."""
    try:
        url = URL(settings.url.get_secret_value() if settings.url else "")
    except ValueError as error:
        raise ServerAway(f"The url of the server {name!r} is invalid") from error
    if url.scheme not in schemes or not url.raw_host:
        raise ServerAway(f"The url of the server {name!r} is not an HTTP URL")
    headers = CIMultiDict({hdrs.USER_AGENT: f"refdesk/{__version__}", hdrs.ACCEPT_ENCODING: "gzip, deflate"})
    if url.user is not None:
        headers[hdrs.AUTHORIZATION] = aiohttp.encode_basic_auth(url.user, url.password or "")
    for header, value in settings.headers.items():
        headers[header] = value.get_secret_value()
    return url.with_user(None), headers
