"""Samples metrics for the console's charts. Half an hour of samples is kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Any

from refdesk.calls import Call, Caller
from refdesk.console.params import MetricsParams
from refdesk.console.server_methods import Servers
from refdesk.engines.base import EngineAdmin
from refdesk.errors import DependencyError
from refdesk.telemetry.metric_history import INTERVAL_SECONDS, History, Sample

VIEWER_TTL_SECONDS = 60.0
"""How long a page counts as open after its last metrics call. Documents are counted only while one is."""

IsToolVisible = Callable[[Caller, str], bool]
"""Whether a tool is available to a caller."""


class Activity:
    """Takes metric samples and serves them to the console."""

    def __init__(
        self,
        history: History,
        engine: EngineAdmin,
        servers: Servers,
        is_tool_visible: IsToolVisible,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._history = history
        self._engine = engine
        self._servers = servers
        self._shows_tool = is_tool_visible
        self._now = now
        self._asked_at = 0.0
        self._listeners: list[Callable[[], None]] = []
        self.count_viewers: Callable[[], int] = lambda: 0
        """Returns the number of open feed subscriptions."""

    async def run(self) -> None:
        """Take a sample at every interval, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            await self.sample()

    async def sample(self) -> None:
        """Take one sample. Documents are counted only while someone is viewing, as that queries the engine."""
        has_viewers = self.count_viewers() > 0 or self._now() - self._asked_at < VIEWER_TTL_SECONDS
        self._history.take(self._now(), await self._count_waiting() if has_viewers else None)
        for listener in self._listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def metrics(self, call: Call) -> dict[str, Any]:
        """Return the samples since the page's last call, and statistics by tool over all samples."""
        params, caller = MetricsParams.of(call), call.caller
        self._asked_at = self._now()
        servers = self._servers.list_names(caller)
        tools = [(name, calls) for name, calls in self._history.tools().items() if self._shows_tool(caller, name)]
        tools.sort(key=lambda item: (-item[1].calls, item[0]))
        return {
            "interval_seconds": INTERVAL_SECONDS,
            "samples": [_serialize_sample(sample, servers) for sample in self._history.since(params.since)],
            "tools": [
                {
                    "name": name,
                    "calls": calls.calls,
                    "errors": calls.errors,
                    "p50_ms": calls.milliseconds(0.5),
                    "p95_ms": calls.milliseconds(0.95),
                }
                for name, calls in tools
            ],
        }

    def latest(self, caller: Caller) -> dict[str, Any] | None:
        """Return the newest sample, limited to what the caller may see."""
        sample = self._history.last
        return _serialize_sample(sample, self._servers.list_names(caller)) if sample is not None else None

    async def _count_waiting(self) -> int | None:
        try:
            return sum((await self._engine.waiting()).values())
        except DependencyError:
            return None  # reported by /ready


def _serialize_sample(sample: Sample, servers: Collection[str]) -> dict[str, Any]:
    """Serialize a sample without the breakers of other servers."""
    breakers = {}
    for name, state in sample.breakers.items():
        kind, _, server = name.partition(" ")
        if kind != "downstream" or server in servers:
            breakers[name] = state
    return {**sample.wire(), "breakers": breakers}
