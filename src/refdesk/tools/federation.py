"""Other servers' documentation in the answers of `search_documentation`.

Every source is asked at the same time, each under a deadline of its own; what it said lately is kept, and given on when
it fails. Who did not answer is told, and costs the answer nothing but what that source would have added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from refdesk.cache import Cache, Key
from refdesk.calls import Call, Caller, UserId
from refdesk.config.servers import DocsSource
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.fleet import Fleet
from refdesk.engines.base import Hit
from refdesk.errors import RefdeskError, ServerLacks, ServerRefused
from refdesk.resilience.partial_results import fell_short
from refdesk.tools.client_callbacks import SILENCE
from refdesk.tools.foreign_hits import Passage, canonical, passages
from refdesk.tools.hits import source_of
from refdesk.validation import shortened

Reach = Callable[[Caller, str, str, Collection[str]], bool]

RANK_SHARE = 60
"""Of reciprocal rank fusion: how little the first places differ. The usual value, and no better one is known for
sources that nobody has compared."""

FETCHED_AT = "refdesk/fetchedAt"


@dataclass(frozen=True, slots=True)
class ForeignHit:
    """A passage of another server, with where it is from and since when."""

    server: str
    passage: Passage
    version: str
    fetched_at: str


@dataclass(frozen=True, slots=True)
class Consulted:
    """What became of one source."""

    server: str
    hits: Sequence[ForeignHit] = ()
    failure: str = ""
    is_stale: bool = False


@dataclass(frozen=True, slots=True)
class Federated:
    """What all sources said."""

    sources: Sequence[Consulted] = field(default=())
    with_own: bool = True
    """Whether our own documentation was searched as well."""

    @property
    def answered(self) -> list[str]:
        """Those that did, if only by what they had said before."""
        return [source.server for source in self.sources if not source.failure]

    @property
    def missing(self) -> dict[str, str]:
        """Those that did not, with the reason."""
        return {source.server: source.failure for source in self.sources if source.failure}

    @property
    def stale(self) -> list[str]:
        """Those that did not this time, and had said something before."""
        return [source.server for source in self.sources if source.is_stale]

    def note(self) -> str:
        """One sentence for the model; our own documentation is a source that answered, where it was asked."""
        own = int(self.with_own)
        said = f"{len(self.answered) + own} of {len(self.sources) + own} sources answered"
        missing = "; ".join(f"{server}: {shortened(why, 120)}" for server, why in self.missing.items())
        stale = f"; from an earlier answer: {', '.join(self.stale)}" if self.stale else ""
        return f"{said}{f' ({missing})' if missing else ''}{stale}"

    def meta(self) -> dict[str, Any]:
        """The same for programs."""
        return {"answered": self.answered, "missing": self.missing, "stale": self.stale}


class Federation:
    """The servers that take part in `search_documentation`."""

    def __init__(self, fleet: Fleet, cache: Cache, seconds: float, reach: Reach) -> None:
        """`seconds` is how long what a source said is kept; `reach` says which servers are open to a caller."""
        self._fleet = fleet
        self._cache = cache
        self._seconds = seconds
        self._reach = reach

    def sources(self, call: Call) -> list[str]:
        """The names of those that this caller may ask."""
        return [connection.name for connection, _ in self._open_to(call)]

    async def ask(self, query: str, call: Call, only: str | None = None) -> Federated:
        """What they say, each within its own time; `only` asks no other."""
        open_to = [(server, docs) for server, docs in self._open_to(call) if only in (None, server.name)]
        asked = await asyncio.gather(*(self._consulted(server, docs, query, call) for server, docs in open_to))
        if any(source.failure or source.is_stale for source in asked):
            fell_short()
        return Federated(asked, with_own=only is None)

    def _open_to(self, call: Call) -> list[tuple[Connection, DocsSource]]:
        caller = call.caller
        return [
            (server, docs)
            for server in self._fleet.servers.values()
            if (docs := server.settings.docs) is not None
            and self._reach(caller, server.name, docs.tool, server.settings.tenants)
        ]

    async def _consulted(self, server: Connection, docs: DocsSource, query: str, call: Call) -> Consulted:
        forwards = server.settings.forward_token
        user = call.caller.user if forwards else UserId("")
        asked = (server.name, docs.tool, docs.argument, repr(sorted(docs.arguments.items())), query)
        key = Key(call.caller.tenant, user, "federated_search", asked)
        try:
            given = await self._cache.answer(key, self._seconds, lambda: self._searched(server, docs, query, call))
        except RefdeskError as error:
            return Consulted(server.name, failure=error.detail)
        found = passages(given.answer, docs.max_results)
        fetched_at = str((given.answer.get("_meta") or {}).get(FETCHED_AT, ""))
        hits = [ForeignHit(server.name, one, one.version or docs.version or "", fetched_at) for one in found]
        return Consulted(server.name, hits, is_stale=given.is_stale)

    async def _searched(self, server: Connection, docs: DocsSource, query: str, call: Call) -> dict[str, Any]:
        if f"{server.name}:{docs.tool}" in self._fleet.held:
            raise ServerLacks(f"its tool {docs.tool} has changed and waits for `refdesk servers approve {server.name}`")
        params = {"name": docs.tool, "arguments": {**docs.arguments, docs.argument: query}}
        seconds = docs.timeout_seconds
        result = await server.request("tools/call", params, voice=SILENCE, token=call.credential, seconds=seconds)
        if result.get("isError") is True:
            said = " ".join(str(item.get("text", "")) for item in result.get("content") or () if isinstance(item, dict))
            raise ServerRefused(server.name, 0, shortened(said, 200) or "its search tool failed")
        fetched_at = datetime.now(UTC).isoformat(timespec="seconds")
        meta = result.get("_meta")
        return {**result, "_meta": {**(meta if isinstance(meta, dict) else {}), FETCHED_AT: fetched_at}}


def fused(own: Sequence[Hit], federated: Federated, limit: int) -> list[Hit | ForeignHit]:
    """The best of all sources by their ranks; what is on the same page, or says the same, is there once."""
    rankings: list[Sequence[Hit | ForeignHit]] = [own, *(source.hits for source in federated.sources)]
    scores: dict[int, float] = {}
    kept: dict[str, Hit | ForeignHit] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking):
            places = _places(hit)
            same = next((kept[place] for place in places if place in kept), hit)
            # Several passages of one page are several, where one source gives them; it would not say a thing twice.
            target = hit if _source(hit) == _source(same) else same
            scores[id(target)] = scores.get(id(target), 0.0) + 1 / (RANK_SHARE + rank)
            for place in places:
                kept.setdefault(place, target)
    every = {id(hit): hit for ranking in rankings for hit in ranking if id(hit) in scores}
    return sorted(every.values(), key=lambda hit: -scores[id(hit)])[:limit]


def _source(hit: Hit | ForeignHit) -> str | None:
    return hit.server if isinstance(hit, ForeignHit) else None


def _places(hit: Hit | ForeignHit) -> list[str]:
    """What it is known by: the address of its page, and its words."""
    if isinstance(hit, Hit):
        url, text = source_of(hit.document), hit.text
    else:
        url, text = hit.passage.url, hit.passage.text
    words = " ".join(text.casefold().split())
    return [place for place in (canonical(url), f"says {words}") if place]
