"""Metric samples for the console's charts, and its event feed: change notifications with the current state.

A slow reader gets no backlog: only the kinds of pending events are kept, so it may miss intermediate states but never
the final one. Without subscriptions, the engine isn't queried.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from refdesk.calls import CONSOLE, Call, Caller, TenantId
from refdesk.console.document_methods import list_shared_ids, serialize_status
from refdesk.console.params import MetricsParams
from refdesk.console.server_methods import Rights, Servers
from refdesk.engines.base import IN_PROGRESS, SHARED, DocumentStatus, Engine, Listing
from refdesk.errors import DependencyError, Overloaded, RateLimited
from refdesk.support.lru import BoundedDict
from refdesk.telemetry.metric_history import INTERVAL_SECONDS, History, Sample

MAX_STREAMS_PER_CALLER = 16
"""Streams per caller, one per browser tab. Without API keys, everyone is the same caller."""

MAX_STREAMS = 128

MIN_INTERVAL_SECONDS = 0.25
"""Minimum time between two batches of events on a stream."""

PROGRESS_INTERVAL_SECONDS = 0.5
"""Polling interval while documents are being ingested: the engine doesn't announce progress."""

MAX_WAIT_SECONDS = 1.0
"""Longest wait before a stream's key is checked again, and the server states, which are in memory."""

RECENT_LIMIT = 50
UNFINISHED_LIMIT = 200
"""Documents per poll: the most recently changed, and those being ingested."""

MAX_REMEMBERED = 1000
"""Documents whose last state is remembered per stream. A forgotten one may be sent again unchanged."""

VIEWER_TTL_SECONDS = 60.0
"""How long a page counts as open after its last metrics call. Documents are counted only while one is."""

Event = tuple[str, Mapping[str, Any]]


@dataclass(eq=False)
class Feed:
    """Takes metric samples, and serves them and change events to the open pages of the console."""

    engine: Engine
    servers: Servers
    rights: Rights
    history: History
    is_tool_visible: Callable[[Caller, str], bool]
    screen: Callable[[Any], Any]
    """Masks blocked words in the data of an event."""
    _asked_at: float = field(default=0.0, init=False)
    _subscriptions: set[FeedSubscription] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.engine.listen(self._notify_documents)

    # Metrics

    async def run(self) -> None:
        """Take a sample at every interval, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            await self.sample()

    async def sample(self) -> None:
        """Take one sample. Documents are counted only while someone is viewing, as that queries the engine."""
        waiting = None
        if self._subscriptions or time.time() - self._asked_at < VIEWER_TTL_SECONDS:
            with suppress(DependencyError):  # reported by /ready
                waiting = sum((await self.engine.waiting()).values())
        self.history.take(time.time(), waiting)
        for subscription in self._subscriptions:
            subscription.notify("metrics")

    async def metrics(self, call: Call) -> dict[str, Any]:
        """Return the samples since the page's last call, and statistics by tool over all samples."""
        params, caller = MetricsParams.of(call), call.caller
        self._asked_at = time.time()
        servers = self.servers.list_names(caller)
        tools = [(name, calls) for name, calls in self.history.tools().items() if self.is_tool_visible(caller, name)]
        tools.sort(key=lambda item: (-item[1].calls, item[0]))
        return {
            "interval_seconds": INTERVAL_SECONDS,
            "samples": [_serialize_sample(sample, servers) for sample in self.history.since(params.since)],
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

    def get_latest_sample(self, caller: Caller) -> dict[str, Any] | None:
        """Return the newest sample, limited to what the caller may see."""
        sample = self.history.last
        return _serialize_sample(sample, self.servers.list_names(caller)) if sample is not None else None

    # Change events

    @contextmanager
    def open_feed_subscription(self, caller: Caller) -> Iterator[FeedSubscription]:
        """Subscribe a caller to change events for the duration of the block."""
        callers = [subscription.caller for subscription in self._subscriptions]
        if len(self._subscriptions) >= MAX_STREAMS:
            raise Overloaded("Too many open console pages. Try again in 5 s.", retry_after=5.0)
        same = [other for other in callers if (other.tenant, other.user) == (caller.tenant, caller.user)]
        if len(same) >= MAX_STREAMS_PER_CALLER:
            raise RateLimited(
                f"At most {MAX_STREAMS_PER_CALLER} console pages per caller receive live updates.", retry_after=5.0
            )
        subscription = FeedSubscription(caller, self)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def drain(self) -> None:
        for subscription in self._subscriptions:
            subscription.end()

    def _notify_documents(self, tenant: TenantId) -> None:
        for subscription in self._subscriptions:
            if tenant in (subscription.caller.tenant, SHARED):
                subscription.notify("documents")


def _serialize_sample(sample: Sample, servers: Collection[str]) -> dict[str, Any]:
    """Serialize a sample without the breakers of other servers."""
    breakers = {}
    for name, state in sample.breakers.items():
        kind, _, server = name.partition(" ")
        if kind != "downstream" or server in servers:
            breakers[name] = state
    return {**sample.wire(), "breakers": breakers}


class FeedSubscription:
    """One caller's subscription, with the kinds of pending events."""

    def __init__(self, caller: Caller, feed: Feed) -> None:
        self.caller = caller
        self._feed = feed
        self._sees_documents = feed.rights.may(caller, f"{CONSOLE}documents")
        self._sees_servers = feed.rights.may(caller, f"{CONSOLE}servers")
        self._tracker = DocumentTracker(feed.engine, caller.tenant)
        self._sent_servers: Any = None
        self._pending_kinds = {"documents", "metrics"}
        self._wakeup = asyncio.Event()
        self._wakeup.set()
        self._is_ended = False
        self._sent_at = 0.0

    def notify(self, kind: str) -> None:
        self._pending_kinds.add(kind)
        self._wakeup.set()

    def end(self) -> None:
        self._is_ended = True
        self._wakeup.set()

    async def next(self) -> Sequence[Event] | None:
        """Return the events since the last call; empty after a quiet period, None at the end."""
        await self._pause()
        if self._is_ended:
            return None
        kinds, self._pending_kinds = self._pending_kinds, set()
        self._wakeup.clear()
        events = await self._poll_documents(kinds)
        states = self._feed.servers.list_states(self.caller) if self._sees_servers else None
        if states != self._sent_servers:
            self._sent_servers = states
            events.append(("servers", {"servers": states}))
        sample = self._feed.get_latest_sample(self.caller) if "metrics" in kinds else None
        self._sent_at = time.monotonic()
        return [*events, ("metrics", {"sample": sample})] if sample else events

    async def _pause(self) -> None:
        """Wait for a notification or a timeout, respecting the minimum interval."""
        seconds = PROGRESS_INTERVAL_SECONDS if self._sees_documents and self._tracker.unfinished else MAX_WAIT_SECONDS
        with suppress(TimeoutError):  # then progress and server states are polled
            async with asyncio.timeout(seconds):
                await self._wakeup.wait()
        wait = self._sent_at + MIN_INTERVAL_SECONDS - time.monotonic()
        if wait > 0 and not self._is_ended:
            await asyncio.sleep(wait)

    async def _poll_documents(self, kinds: set[str]) -> list[Event]:
        if not self._sees_documents:
            return []
        try:
            changed = await (self._tracker.poll() if "documents" in kinds else self._tracker.poll_progress())
        except DependencyError:
            return []  # the page's own request reports the error
        events: list[Event] = [("documents", self._feed.screen(changed))] if changed else []
        return [*events, ("collections", {})] if self._tracker.poll_collections() else events


class DocumentTracker:
    """Tracks which of a tenant's documents changed since the last poll."""

    def __init__(self, engine: Engine, tenant: TenantId) -> None:
        self._engine = engine
        self._tenant = tenant
        self._sent: BoundedDict[str, dict[str, Any]] = BoundedDict(MAX_REMEMBERED)
        self.unfinished: tuple[str, ...] = ()
        """Documents that were being ingested at the last poll."""
        self._counts = (-1, -1)
        self._collection_state = self._get_collection_state()

    async def poll(self) -> dict[str, Any] | None:
        """Return all changes since the last poll, or None."""
        unfinished, queue = await self._engine.documents(
            self._tenant, Listing(statuses=IN_PROGRESS, limit=UNFINISHED_LIMIT, newest_first=True)
        )
        recent, total = await self._engine.documents(self._tenant, Listing(limit=RECENT_LIMIT, newest_first=True))
        is_first_poll = self._counts == (-1, -1)
        seen = {status.id: status for status in (*recent, *unfinished)}
        missing = [id for id in self.unfinished if id not in seen]
        finished = await self._engine.wait(self._tenant, missing, seconds=0) if missing else []
        self.unfinished = tuple(status.id for status in unfinished)
        changed = self._record_changes([*seen.values(), *finished])
        if is_first_poll:
            changed = [entry for entry in changed if entry["status"] in IN_PROGRESS]
        counts, self._counts = self._counts, (queue, total)
        if not changed and counts == self._counts:
            return None
        return {"documents": changed, "queue": queue, "total": total}

    async def poll_progress(self) -> dict[str, Any] | None:
        """Return changes of the documents being ingested. A finished one triggers a full poll."""
        if not self.unfinished:
            return None
        statuses = await self._engine.wait(self._tenant, self.unfinished, seconds=0)
        if len(statuses) < len(self.unfinished) or any(status.status not in IN_PROGRESS for status in statuses):
            return await self.poll()
        changed = self._record_changes(statuses)
        queue, total = self._counts
        return {"documents": changed, "queue": queue, "total": total} if changed else None

    def poll_collections(self) -> bool:
        """Return whether collections or their counts changed since the last call. Reads memory only."""
        before, self._collection_state = self._collection_state, self._get_collection_state()
        return before != self._collection_state

    def _get_collection_state(self) -> list[tuple[str, ...]]:
        infos = self._engine.cached_collections(self._tenant)
        return [(info.id, info.name, info.description, info.version, str(info.documents)) for info in infos]

    def _record_changes(self, statuses: Sequence[DocumentStatus]) -> list[dict[str, Any]]:
        shared = list_shared_ids(self._engine, self._tenant)
        changed = []
        for status in statuses:
            entry = serialize_status(status, shared)
            if self._sent.get(status.id) != entry:
                changed.append(entry)
            self._sent[status.id] = entry
        return changed
