"""What both ways over HTTP stand on: one client for one server, our own headers only, and what a refusal means.

Nothing that a server names is ever fetched: no redirect, no address out of a header, no cookie.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import aiohttp
import orjson
from aiohttp import hdrs
from multidict import CIMultiDict
from yarl import URL

from refdesk.config import McpServerConfig
from refdesk.config.types import mask_url
from refdesk.downstream.transports.base import Message, NotLetIn, TransportListener
from refdesk.downstream.transports.events import SseEvent
from refdesk.downstream.transports.messages import MAX_PARTS, PART_COUNT_THRESHOLD, encode_message
from refdesk.errors import RefdeskError, ServerAway, ServerGone, ServerRefused, ServerTalksNonsense
from refdesk.resilience.retries import retry_after_seconds
from refdesk.version import __version__

JSON = "application/json"
EVENTS = "text/event-stream"

KEEPALIVE_SECONDS = 4.0
"""Shorter than the five seconds after which uvicorn and Node close an idle connection: a request that meets such an end
on its way is lost, and a call may not be sent twice."""

READ_BUFFER_BYTES = 65_536
"""What is read ahead of an answer, and the most of it that is looked at in one go."""

LEFTOVER_SECONDS = 1.0
"""How long the rest of an answer may take that nobody waits for; with it the connection can be used again."""

LARGE_BYTES = 1_000_000
"""What is larger is sent piece by piece, so that others have their turn meanwhile."""

MAX_REFUSAL_BYTES = 65_536
"""What is read of the body of a refusal, which may be an error of JSON-RPC."""

NOT_RESENT = ("tools/call",)
"""What may change something each time that the server gets it."""

INVALID_REQUEST = -32600
"""JSON-RPC's, for what a server refuses without one of its own."""

_OTHER_TRANSPORT = (404, 405)
_FAILURES = (aiohttp.ClientError, OSError, RuntimeError)  # the last is what aiohttp says when it is closed meanwhile


class Endpoint:
    """One server's address, the connections to it, and what goes along with every request."""

    def __init__(self, name: str, settings: McpServerConfig) -> None:
        self.name = name
        self.max_bytes = settings.max_message_bytes
        self.connect_seconds = settings.connect_timeout_seconds
        self.url, headers = _resolve_post_url(name, settings)
        self._loop = asyncio.get_running_loop()
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

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for response in (*self._reading, *self._leftover):
            response.close()  # which tells its reader; closing the client alone does not
        await self._client.close()

    @property
    def headers(self) -> CIMultiDict[str]:
        """What every request carries; may be added to."""
        return self._client.headers

    async def post(
        self, message: Message, headers: Mapping[str, str] | None, url: URL | None = None
    ) -> aiohttp.ClientResponse:
        """Send a message. One that changes nothing is sent again when the connection, idle so far, was just closed."""
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
        """Send a request. The head of its answer has come, the rest is to be read, and closed or let go."""
        data = body if body is None or len(body) < LARGE_BYTES else io.BytesIO(body)
        try:
            return await self._client.request(
                method, url or self.url, headers=headers, data=data, allow_redirects=False
            )
        except _FAILURES as error:
            raise self._map_exception(error) from error

    async def read_chunk(self, response: aiohttp.ClientResponse) -> bytes:
        """What has come of the body since; nothing at its end."""
        self._reading.add(response)
        try:
            return await response.content.readany()
        except _FAILURES as error:
            raise self._map_exception(error) from error
        finally:
            self._reading.discard(response)

    async def read(self, response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
        """The whole body, or an error when there is more of it than may be."""
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
        """Nobody wants the rest; when it ends soon, its connection is used again."""
        if not response.closed:
            self._leftover.add(response)
            self._loop.call_later(LEFTOVER_SECONDS, self._close_leftover, response)

    def _close_leftover(self, response: aiohttp.ClientResponse) -> None:
        self._leftover.discard(response)
        response.close()

    def build_status_error(self, response: aiohttp.ClientResponse) -> RefdeskError:
        """What an answer means that is no success."""
        status = response.status
        if status in (401, 403):
            if not self._used_own_credential(response):
                # What one caller may not says nothing of the server, which is there for all others.
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
                f"The server {self.name!r} wants to be asked elsewhere ({status} to {place!r}), which is not followed: "
                f"set its `url` to the right address"
            )
        if status == 429 or status >= 500:
            wait = retry_after_seconds(response.headers.get(hdrs.RETRY_AFTER))
            return ServerAway(f"The server {self.name!r} cannot answer at this time (HTTP {status})", retry_after=wait)
        hint = "; a server of the older kind needs the type 'sse'" if status in _OTHER_TRANSPORT else ""
        return ServerRefused(self.name, INVALID_REQUEST, f"HTTP {status} of the server {self.name!r}{hint}")

    def _used_own_credential(self, response: aiohttp.ClientResponse) -> bool:
        """Whether what was asked for was asked with the credential that is set, and not with a caller's."""
        sent = response.request_info.headers.get(hdrs.AUTHORIZATION)
        return sent == self.headers.get(hdrs.AUTHORIZATION)

    async def read_jsonrpc_error(self, response: aiohttp.ClientResponse) -> Message | None:
        """The error of JSON-RPC in the body of a refusal, if there is one."""
        if get_media_type(response) != JSON:
            return None
        try:
            message = parse_json(await self.read(response, min(self.max_bytes, MAX_REFUSAL_BYTES)))
        except (orjson.JSONDecodeError, ServerTalksNonsense):
            return None
        error = message.get("error") if isinstance(message, dict) else None
        return error if isinstance(error, dict) else None

    def build_protocol_error(self, what: str) -> ServerTalksNonsense:
        """The error for an answer that is none."""
        return ServerTalksNonsense(f"The server {self.name!r} {what}")

    def build_size_error(self, max_bytes: int) -> ServerTalksNonsense:
        """The error for an answer that is larger than one may be."""
        return self.build_protocol_error(f"sent a message of more than {max_bytes} bytes")

    def _map_exception(self, error: Exception) -> RefdeskError:
        """What an error of the connection means; its own words may hold the address, and are left out."""
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return ServerAway(
                f"The server {self.name!r} did not take a connection within {self.connect_seconds:g} seconds"
            )
        if isinstance(error, aiohttp.ClientConnectorError):
            return ServerAway(f"The server {self.name!r} cannot be connected to: {_describe_connect_error(error)}")
        if isinstance(error, aiohttp.ClientResponseError):
            return self.build_protocol_error("sent what is no HTTP")
        if isinstance(error, aiohttp.ClientPayloadError):
            return ServerGone(f"The answer of the server {self.name!r} broke off or was no HTTP")
        return ServerGone(f"The connection to the server {self.name!r} ended before its answer")


def parse_json(body: bytes) -> Any:
    """What the JSON says; what has more parts than are taken is treated as none."""
    if len(body) > PART_COUNT_THRESHOLD and body.count(b"[") + body.count(b"{") > MAX_PARTS:
        raise orjson.JSONDecodeError("more parts than are taken", "", 0)
    return orjson.loads(body)


def deliver(listener: TransportListener, content: Any, id: str | None) -> bool:
    """Hand over a message, or several at once; whether the answer to the request of that id was among them."""
    is_answered = False
    for message in content if isinstance(content, list) else (content,):
        if isinstance(message, dict):
            listener.on_message(message, id)
            is_answered |= id is not None and message.get("id") == id and "method" not in message
        else:
            listener.on_garbage("JSON that is no message")
    return is_answered


def deliver_event(listener: TransportListener, event: SseEvent, id: str | None) -> bool:
    """The same for what an event holds."""
    if not event.is_whole:
        listener.on_garbage("an event that is too large")
    elif event.kind == "message" and event.data:
        try:
            return deliver(listener, parse_json(event.data), id)
        except orjson.JSONDecodeError:
            listener.on_garbage("an event that is no JSON")
    return False


def get_media_type(response: aiohttp.ClientResponse) -> str:
    """The media type of an answer, without its parameters."""
    kind = response.headers.get(hdrs.CONTENT_TYPE, "")
    return kind if kind == JSON else kind.partition(";")[0].strip().lower()


def _describe_connect_error(error: aiohttp.ClientConnectorError) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted"
    if isinstance(error, aiohttp.ClientSSLError):
        return "TLS could not be agreed on"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name is not known"
    return "nothing answers at its address"


def _resolve_post_url(name: str, settings: McpServerConfig) -> tuple[URL, CIMultiDict[str]]:
    """Where a server is, and the headers that every request to it has; a login in the address becomes one of them."""
    try:
        url = URL(settings.url.get_secret_value() if settings.url else "")
    except ValueError as error:
        raise ServerAway(f"The url of the server {name!r} is none") from error
    if url.scheme not in ("http", "https") or not url.raw_host:
        raise ServerAway(f"The url of the server {name!r} is no http address")
    headers = CIMultiDict({hdrs.USER_AGENT: f"refdesk/{__version__}", hdrs.ACCEPT_ENCODING: "gzip, deflate"})
    if url.user is not None:
        headers[hdrs.AUTHORIZATION] = aiohttp.encode_basic_auth(url.user, url.password or "")
    for header, value in settings.headers.items():
        headers[header] = value.get_secret_value()
    return url.with_user(None), headers
