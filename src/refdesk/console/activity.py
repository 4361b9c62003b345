"""What the charts show: a sample of the metrics now and then, kept for half an hour."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Any

from refdesk.calls import Call, Caller
from refdesk.console.params import Metrics as MetricsParams
from refdesk.console.servers import Servers
from refdesk.engines.base import Engine
from refdesk.errors import DependencyError
from refdesk.telemetry.history import INTERVAL_SECONDS, Calls, History, Sample

LOOKING_SECONDS = 60.0
"""How long after it was asked for metrics a page is taken to be there still, and documents are counted for it."""

ToolShown = Callable[[Caller, str], bool]
"""Whether a tool is there for a caller."""


class Activity:
    """Takes samples, and tells of them."""

    def __init__(
        self,
        history: History,
        engine: Engine,
        servers: Servers,
        shows_tool: ToolShown,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._history = history
        self._engine = engine
        self._servers = servers
        self._shows_tool = shows_tool
        self._now = now
        self._asked_at = 0.0
        self._listeners: list[Callable[[], None]] = []
        self.watchers: Callable[[], int] = lambda: 0
        """How many look at the console now."""

    async def run(self) -> None:
        """Take a sample every few seconds, until this is cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            await self.take()

    async def take(self) -> None:
        """One more sample. Documents are counted only while somebody looks: that is a question to the engine."""
        self._history.take(self._now(), await self._queue() if self._is_looked_at() else None)
        for listener in self._listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Be told of every sample."""
        self._listeners.append(listener)

    async def metrics(self, call: Call) -> dict[str, Any]:
        """The samples that a page has not got yet, and how each tool did in all of them."""
        asked, caller = MetricsParams.of(call), call.caller
        self._asked_at = self._now()
        servers = self._servers.names(caller)
        tools = {name: calls for name, calls in self._history.tools().items() if self._shows_tool(caller, name)}
        return {
            "interval_seconds": INTERVAL_SECONDS,
            "samples": [_sample_wire(sample, servers) for sample in self._history.since(asked.since)],
            "tools": [_tool_wire(name, calls) for name, calls in sorted(tools.items(), key=_by_calls)],
        }

    def last(self, caller: Caller) -> dict[str, Any] | None:
        """The newest sample, as a caller may see it."""
        sample = self._history.last
        return _sample_wire(sample, self._servers.names(caller)) if sample is not None else None

    def _is_looked_at(self) -> bool:
        return self.watchers() > 0 or self._now() - self._asked_at < LOOKING_SECONDS

    async def _queue(self) -> int | None:
        try:
            return sum((await self._engine.waiting()).values())
        except DependencyError:
            return None  # which readiness tells


def _sample_wire(sample: Sample, servers: Collection[str]) -> dict[str, Any]:
    """A sample without the breakers of servers that are not among these."""
    breakers = {name: state for name, state in sample.breakers.items() if _is_shown(name, servers)}
    return {**sample.wire(), "breakers": breakers}


def _is_shown(breaker: str, servers: Collection[str]) -> bool:
    kind, _, server = breaker.partition(" ")
    return kind != "downstream" or server in servers


def _by_calls(item: tuple[str, Calls]) -> tuple[int, str]:
    return -item[1].calls, item[0]


def _tool_wire(name: str, calls: Calls) -> dict[str, Any]:
    return {
        "name": name,
        "calls": calls.calls,
        "errors": calls.errors,
        "p50_ms": calls.milliseconds(0.5),
        "p95_ms": calls.milliseconds(0.95),
    }
