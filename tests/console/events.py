"""A stream of the console's events, read as a browser does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from tests.waiting import PATIENCE_SECONDS


class Events:
    """What a stream has told so far."""

    def __init__(self) -> None:
        self.received: list[tuple[str, Any]] = []
        self.is_over = False
        self._news = asyncio.Event()

    async def read(self, response: httpx2.Response) -> None:
        """Take in whatever comes, until the stream ends."""
        name = ""
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                self.received.append((name, json.loads(line.removeprefix("data: "))))
                self._news.set()
        self.is_over = True
        self._news.set()

    def of(self, name: str) -> list[Any]:
        """What was told under a name."""
        return [data for received, data in self.received if received == name]

    def documents(self) -> list[dict[str, Any]]:
        """Every document that was told of, as often as it was."""
        return [document for event in self.of("documents") for document in event["documents"]]

    async def until(self, holds: Any) -> None:
        """Wait until something holds of what was told, or the stream is over."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds(self):
                assert not self.is_over, self.received
                self._news.clear()
                await self._news.wait()

    async def wait_for_end(self) -> None:
        """Wait until the stream is over."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.is_over:
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def listening(http: httpx2.AsyncClient, **headers: str) -> AsyncIterator[Events]:
    """A stream that is open, and read in the background."""
    events = Events()
    async with http.stream("GET", "/api/console/events", headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"] == "text/event-stream"
        reading = asyncio.create_task(events.read(response))
        try:
            yield events
        finally:
            reading.cancel()
            await asyncio.wait({reading})
