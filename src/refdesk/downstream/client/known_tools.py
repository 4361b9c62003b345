"""Cache of one server's tool definitions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from refdesk.errors import DependencyError

logger = logging.getLogger(__name__)

Definition = Mapping[str, Any]


class ToolCache:
    """Tool definitions with a time to live. Concurrent refreshes are coalesced."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[Sequence[Definition]]],
        ttl_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._ttl = ttl_seconds
        self._now = now
        self._tools: Mapping[str, Definition] | None = None
        self._expires_at = 0.0
        self._generation = 0
        self._lock = asyncio.Lock()

    def invalidate(self) -> None:
        """Expire the cache: the tools are fetched before they are used again."""
        self._generation += 1
        self._expires_at = 0.0

    def clear(self) -> None:
        """Clear the cache, so that no stale tools are returned even if the server is unavailable."""
        self.invalidate()
        self._tools = None

    async def all(self) -> Mapping[str, Definition]:
        """Return the tools by name. Stale ones are returned if the server is unavailable."""
        if self._tools is not None and self._now() < self._expires_at:
            return self._tools
        async with self._lock:
            if self._tools is not None and self._now() < self._expires_at:
                return self._tools  # refreshed by another caller
            return await self._refresh()

    async def find(self, name: str) -> Definition | None:
        """Return one tool. An unknown name causes one refresh, because the tool may be new."""
        known = self._tools
        tools = await self.all()
        if name not in tools and tools is known:
            self.invalidate()
            tools = await self.all()
        return tools.get(name)

    async def _refresh(self) -> Mapping[str, Definition]:
        generation = self._generation
        try:
            tools = {tool["name"]: tool for tool in await self._fetch()}
        except DependencyError as error:
            if self._tools is None:
                raise
            logger.warning("client.tools_are_old", extra={"fields": {"why": error.detail[:200]}})
            return self._tools
        self._tools = tools
        if generation == self._generation:
            self._expires_at = self._now() + self._ttl
        return tools
