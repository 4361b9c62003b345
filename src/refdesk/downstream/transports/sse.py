"""HTTP with server-sent events, the transport of 2024-11-05: a stream for what the server says, POSTs for what we say.

The stream's first event names the address for the POSTs; one of another origin is not believed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import hdrs
from yarl import URL

from refdesk.config import McpServerConfig
from refdesk.downstream.transports.base import Inbox, Message
from refdesk.downstream.transports.events import Event, EventReader
from refdesk.downstream.transports.http import EVENTS, JSON, Endpoint, deliver_event, kind_of
from refdesk.errors import RefdeskError, ServerAway, ServerGone, ServerTalksNonsense

MAX_ADDRESS_BYTES = 8192
"""The longest address that the server may name for messages."""


@asynccontextmanager
async def open_sse(name: str, settings: McpServerConfig, inbox: Inbox) -> AsyncIterator[HttpWithEvents]:
    """The way to a server over its stream of events, which is open and has said where messages go."""
    async with Endpoint(name, settings) as endpoint:
        transport = HttpWithEvents(endpoint, inbox)
        try:
            await transport.open()
            yield transport
        finally:
            await transport.close()


class HttpWithEvents:
    """A `Transport`."""

    def __init__(self, endpoint: Endpoint, inbox: Inbox) -> None:
        self._endpoint = endpoint
        self._inbox = inbox
        self._is_open = False
        self._place: asyncio.Future[URL] = asyncio.get_running_loop().create_future()
        self._reading: asyncio.Task[None] | None = None
        endpoint.headers[hdrs.ACCEPT] = EVENTS
        endpoint.headers[hdrs.CONTENT_TYPE] = JSON

    async def open(self) -> None:
        """Open the stream and wait for the address that it names."""
        seconds = self._endpoint.connect_seconds
        try:
            async with asyncio.timeout(seconds):
                response = await self._endpoint.ask("GET")
                self._reading = asyncio.create_task(self._read(response), name=f"listen to {self._endpoint.name}")
                await self._place
        except (ServerGone, ServerTalksNonsense) as error:
            raise ServerAway(error.detail) from error
        except TimeoutError as error:
            raise ServerAway(
                f"The server {self._endpoint.name!r} did not say within {seconds:g} seconds where messages go"
            ) from error

    async def send(self, message: Message, headers: Mapping[str, str] | None = None) -> None:
        """POST a message; the answer to a request comes on the stream."""
        if not self._is_open:
            raise self._gone()
        response = await self._endpoint.post(message, headers, self._place.result())
        try:
            if response.status >= 300:
                self._take_refusal(response)
        except BaseException:
            response.close()
            raise
        self._endpoint.let_go(response)

    def speaks(self, version: str) -> None:
        """Nothing here depends on it."""

    async def close(self) -> None:
        """Give the stream up; the connections are closed by the endpoint."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,))
        self._lose(self._gone())

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        """Take all that comes; the end of it is the end of the connection."""
        error: RefdeskError = self._gone()
        try:
            self._must_be_stream(response)
            reader = EventReader(self._endpoint.max_bytes)
            while piece := await self._endpoint.next_piece(response):
                for event in reader.feed(piece):
                    self._take_event(event)
        except RefdeskError as broken:
            error = broken
        finally:
            response.close()
        if self._place.done():
            self._lose(error)
        else:
            self._place.set_exception(ServerAway(error.detail, retry_after=error.retry_after))

    def _must_be_stream(self, response: aiohttp.ClientResponse) -> None:
        if response.status >= 300:
            raise self._endpoint.refusal(response)
        if kind_of(response) != EVENTS:
            raise self._endpoint.nonsense("does not answer with a stream of events; is it of the type 'http'?")

    def _take_event(self, event: Event) -> None:
        if not event.is_whole:
            # It may have been an answer, and nobody can tell to whom.
            raise self._endpoint.too_large(self._endpoint.max_bytes)
        if event.kind != "endpoint":
            deliver_event(self._inbox, event, None)
        elif not self._place.done():
            self._place.set_result(self._address(event.data))
            self._is_open = True

    def _address(self, named: bytes) -> URL:
        """The address that the server names, when it is one of its own."""
        try:
            place = self._endpoint.url.join(URL(named[:MAX_ADDRESS_BYTES].decode()))
        except ValueError as error:
            raise self._endpoint.nonsense("names an address for messages that is none") from error
        if place.user is not None or place.origin() != self._endpoint.url.origin():
            raise self._endpoint.nonsense("names an address for messages that is not its own")
        return place

    def _take_refusal(self, response: aiohttp.ClientResponse) -> None:
        """A message that is refused concerns nothing else, unless it is because the server no longer knows us."""
        if response.status == 404:
            self._lose(self._gone())
            raise self._gone()
        raise self._endpoint.refusal(response)

    def _lose(self, error: RefdeskError) -> None:
        if self._is_open:
            self._is_open = False
            self._inbox.lost(error)

    def _gone(self) -> ServerGone:
        return ServerGone(f"The connection to the server {self._endpoint.name!r} is over")
