"""The tools of one server as they were when it was last asked, for as long as that may be believed."""

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
    """Asked for once for everybody; asked for again when they are too old, or the server says that they changed."""

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
        """The server has others now: it is asked before they are used again."""
        self._generation += 1
        self._expires_at = 0.0

    def clear(self) -> None:
        """Nothing is known any more, not even for a server that cannot be asked."""
        self.invalidate()
        self._tools = None

    async def all(self) -> Mapping[str, Definition]:
        """By name. What was known stays when the server cannot be asked."""
        if self._tools is not None and self._now() < self._expires_at:
            return self._tools
        async with self._lock:
            if self._tools is not None and self._now() < self._expires_at:
                return self._tools  # somebody else has asked meanwhile
            return await self._refresh()

    async def find(self, name: str) -> Definition | None:
        """One of them; one that is not known may be new, and the server is asked once more."""
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
