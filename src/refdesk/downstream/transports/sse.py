"""HTTP+SSE transport of 2024-11-05: an event stream from the server, POSTs to it.

The first event names the URL for the POSTs. A URL of another origin is rejected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import hdrs
from yarl import URL

from refdesk.config import McpServerConfig
from refdesk.downstream.jsonrpc import Message, TransportListener
from refdesk.downstream.transports.events import SseEvent, SseParser
from refdesk.downstream.transports.http import EVENTS, JSON, Endpoint, deliver_event, get_media_type
from refdesk.errors import RefdeskError, ServerAway, ServerGone, ServerTalksNonsense

MAX_ADDRESS_BYTES = 8192
"""Maximum length of the URL that the server names for messages."""


@asynccontextmanager
async def open_sse(name: str, settings: McpServerConfig, listener: TransportListener) -> AsyncIterator[SseTransport]:
    """Open the event stream, and wait until the server has named the URL for messages."""
    async with Endpoint(name, settings) as endpoint:
        transport = SseTransport(endpoint, listener)
        try:
            await transport.open()
            yield transport
        finally:
            await transport.close()


class SseTransport:
    """HTTP+SSE `Transport`."""

    def __init__(self, endpoint: Endpoint, listener: TransportListener) -> None:
        self._endpoint = endpoint
        self._listener = listener
        self._is_open = False
        self._post_url: asyncio.Future[URL] = asyncio.get_running_loop().create_future()
        self._reader: asyncio.Task[None] | None = None
        endpoint.headers[hdrs.ACCEPT] = EVENTS
        endpoint.headers[hdrs.CONTENT_TYPE] = JSON

    async def open(self) -> None:
        """Open the stream and wait for the URL that it names."""
        seconds = self._endpoint.connect_seconds
        try:
            async with asyncio.timeout(seconds):
                response = await self._endpoint.request("GET")
                self._reader = asyncio.create_task(self._read(response), name=f"listen to {self._endpoint.name}")
                await self._post_url
        except (ServerGone, ServerTalksNonsense) as error:
            raise ServerAway(error.detail) from error
        except TimeoutError as error:
            raise ServerAway(
                f"The server {self._endpoint.name!r} did not name a URL for messages within {seconds:g} seconds"
            ) from error

    async def send(self, message: Message, headers: Mapping[str, str] | None = None) -> None:
        """POST a message. The response to a request arrives on the stream."""
        if not self._is_open:
            raise self._build_closed_error()
        response = await self._endpoint.post(message, headers, self._post_url.result())
        try:
            if response.status == 404:
                # The session is unknown. Any other status concerns this message alone.
                self._close_with(self._build_closed_error())
                raise self._build_closed_error()
            if response.status >= 300:
                raise self._endpoint.build_status_error(response)
        except BaseException:
            response.close()
            raise
        self._endpoint.release(response)

    def set_protocol_version(self, version: str) -> None:
        """Do nothing: the transport doesn't depend on the version."""

    async def close(self) -> None:
        """Close the stream. The endpoint closes the connections."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait((self._reader,))
        self._close_with(self._build_closed_error())

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        """Handle the events of the stream. Its end closes the connection."""
        error: RefdeskError = self._build_closed_error()
        try:
            if response.status >= 300:
                raise self._endpoint.build_status_error(response)
            if get_media_type(response) != EVENTS:
                what = "does not answer with a stream of events; is it of the type 'http'?"
                raise self._endpoint.build_protocol_error(what)
            reader = SseParser(self._endpoint.max_bytes)
            while chunk := await self._endpoint.read_chunk(response):
                for event in reader.feed(chunk):
                    self._handle_event(event)
        except RefdeskError as broken:
            error = broken
        finally:
            response.close()
        if self._post_url.done():
            self._close_with(error)
        else:
            self._post_url.set_exception(ServerAway(error.detail, retry_after=error.retry_after))

    def _handle_event(self, event: SseEvent) -> None:
        if not event.is_whole:
            # It may have been a response, and its request is unknown.
            raise self._endpoint.build_size_error(self._endpoint.max_bytes)
        if event.kind != "endpoint":
            deliver_event(self._listener, event, None)
        elif not self._post_url.done():
            self._post_url.set_result(self._resolve_post_url(event.data))
            self._is_open = True

    def _resolve_post_url(self, named: bytes) -> URL:
        """Return the URL that the server names, if it has the same origin."""
        try:
            place = self._endpoint.url.join(URL(named[:MAX_ADDRESS_BYTES].decode()))
        except ValueError as error:
            raise self._endpoint.build_protocol_error("names an invalid URL for messages") from error
        if place.user is not None or place.origin() != self._endpoint.url.origin():
            raise self._endpoint.build_protocol_error("names a URL for messages on another origin")
        return place

    def _close_with(self, error: RefdeskError) -> None:
        if self._is_open:
            self._is_open = False
            self._listener.on_close(error)

    def _build_closed_error(self) -> ServerGone:
        return ServerGone(f"The connection to the server {self._endpoint.name!r} has ended")
