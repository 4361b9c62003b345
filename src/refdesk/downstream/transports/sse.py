"""HTTP+SSE transport of 2024-11-05: an event stream from the server, POSTs to it.

The first event names the URL for the POSTs. A URL of another origin is rejected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp
from yarl import URL

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.jsonrpc import Message, TransportListener
from refdesk.downstream.transports.events import SseEvent, SseParser
from refdesk.downstream.transports.http import EVENTS, HttpTransport, get_media_type
from refdesk.errors import RefdeskError, ServerAway, ServerConnectTimeout, ServerGone, ServerTalksNonsense
from refdesk.support.tasks import cancel_all

MAX_ADDRESS_BYTES = 8192
"""Maximum length of the URL that the server names for messages."""


class SseTransport(HttpTransport):
    """HTTP+SSE `Transport`."""

    def __init__(self, name: str, settings: McpServerConfig, listener: TransportListener) -> None:
        super().__init__(name, settings, listener, EVENTS)
        self._post_url: asyncio.Future[URL] = asyncio.get_running_loop().create_future()
        self._reader: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the event stream, and wait until the server has named the URL for messages."""
        seconds = self.connect_seconds
        try:
            async with asyncio.timeout(seconds):
                response = await self.request("GET")
                self._reader = asyncio.create_task(self._read(response), name=f"listen to {self.name}")
                await self._post_url
        except (ServerGone, ServerTalksNonsense) as error:
            raise ServerAway(error.detail) from error
        except ServerAway:
            raise
        except TimeoutError as error:
            raise ServerConnectTimeout(
                f"The server {self.name!r} did not name a URL for messages within {seconds:g} seconds"
            ) from error

    async def send(self, message: Message, headers: Mapping[str, str] | None = None) -> None:
        """POST a message. The response to a request arrives on the stream."""
        self._raise_if_closed()
        response = await self.post(message, headers, self._post_url.result())
        try:
            if response.status == 404:
                # The session is unknown. Any other status concerns this message alone.
                self._close_with(self._build_closed_error())
                self._raise_if_closed()
            if response.status >= 300:
                raise self.build_status_error(response)
        except BaseException:
            response.close()
            raise
        self.release(response)

    async def close(self) -> None:
        """Close the stream and all connections."""
        try:
            if self._reader is not None:
                await cancel_all([self._reader])
        finally:
            self._close_with(self._build_closed_error())
            await super().close()

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        """Handle the events of the stream. Its end closes the connection."""
        error: RefdeskError = self._build_closed_error()
        try:
            if response.status >= 300:
                raise self.build_status_error(response)
            if get_media_type(response) != EVENTS:
                what = "does not answer with a stream of events; is it of the type 'http'?"
                raise self.build_protocol_error(what)
            reader = SseParser(self.max_bytes)
            while chunk := await self.read_chunk(response):
                for event in reader.feed(chunk):
                    self._handle_event(event)
        except RefdeskError as broken:
            error = broken
        finally:
            response.close()
        if self._post_url.done():
            self._close_with(error)
        else:
            kind = ServerConnectTimeout if isinstance(error, ServerConnectTimeout) else ServerAway
            self._post_url.set_exception(kind(error.detail, retry_after=error.retry_after))

    def _handle_event(self, event: SseEvent) -> None:
        if not event.is_whole:
            # It may have been a response, and its request is unknown.
            raise self.build_size_error(self.max_bytes)
        if event.kind != "endpoint":
            self.deliver_event(event, None)
        elif not self._post_url.done():
            self._post_url.set_result(self._resolve_post_url(event.data))

    def _resolve_post_url(self, named: bytes) -> URL:
        """Return the URL that the server names, if it has the same origin."""
        try:
            place = self.url.join(URL(named[:MAX_ADDRESS_BYTES].decode()))
        except ValueError as error:
            raise self.build_protocol_error("names an invalid URL for messages") from error
        if place.user is not None or place.origin() != self.url.origin():
            raise self.build_protocol_error("names a URL for messages on another origin")
        return place

    def _build_closed_error(self) -> ServerGone:
        return ServerGone(f"The connection to the server {self.name!r} has ended")
