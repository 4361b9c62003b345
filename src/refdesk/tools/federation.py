"""Federated search: other servers' documentation in `search_documentation`.

All sources are queried concurrently, each with its own timeout. Their results are cached and used as a fallback when
they fail. Sources that didn't respond are reported, and cost nothing but their own hits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from refdesk.cache import Cache, Key
from refdesk.calls import Call, Caller, UserId
from refdesk.config.server_model import DocsSource
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.fleet import Fleet
from refdesk.engines.base import Hit
from refdesk.errors import RefdeskError, ServerLacks, ServerRefused
from refdesk.resilience.partial_results import mark_partial_result
from refdesk.tools.client_callbacks import NO_CALLBACKS
from refdesk.tools.foreign_hits import ForeignPassage, canonicalize_url, parse_passages
from refdesk.tools.hits import get_source
from refdesk.validation import shorten

Reach = Callable[[Caller, str, str, Collection[str]], bool]

RRF_K = 60
"""The constant of reciprocal rank fusion, at its usual value: there is no data to tune it on."""

FETCHED_AT = "refdesk/fetchedAt"


@dataclass(frozen=True, slots=True)
class SourceResult:
    server: str
    hits: Sequence[ForeignPassage] = ()
    failure: str = ""
    is_stale: bool = False


class Federation:
    """The servers that take part in `search_documentation`."""

    def __init__(self, fleet: Fleet, cache: Cache, seconds: float, reach: Reach) -> None:
        """`seconds` is the TTL of cached results; `reach` decides which servers a caller may use."""
        self._fleet = fleet
        self._cache = cache
        self._seconds = seconds
        self._reach = reach

    def list_sources(self, call: Call) -> list[str]:
        return [connection.name for connection, _ in self._list_open_servers(call)]

    async def search(self, query: str, call: Call, only: str | None = None) -> list[SourceResult]:
        """Query the sources, or the one named by `only`."""
        servers = [(server, docs) for server, docs in self._list_open_servers(call) if only in (None, server.name)]
        results = await asyncio.gather(*(self._query_source(server, docs, query, call) for server, docs in servers))
        if any(result.failure or result.is_stale for result in results):
            mark_partial_result()
        return results

    def _list_open_servers(self, call: Call) -> list[tuple[Connection, DocsSource]]:
        caller = call.caller
        return [
            (server, docs)
            for server in self._fleet.servers.values()
            if (docs := server.settings.docs) is not None
            and self._reach(caller, server.name, docs.tool, server.settings.tenants)
        ]

    async def _query_source(self, server: Connection, docs: DocsSource, query: str, call: Call) -> SourceResult:
        forwards = server.settings.forward_token
        user = call.caller.user if forwards else UserId("")
        parameters = (server.name, docs.tool, docs.argument, repr(sorted(docs.arguments.items())), query)
        key = Key(call.caller.tenant, user, "federated_search", parameters)
        try:
            cached = await self._cache.answer(
                key, self._seconds, lambda: self._call_search_tool(server, docs, query, call)
            )
        except RefdeskError as error:
            return SourceResult(server.name, failure=error.detail)
        passages = parse_passages(cached.answer, docs.max_results)
        fetched_at = str((cached.answer.get("_meta") or {}).get(FETCHED_AT, ""))
        hits = [
            replace(one, server=server.name, version=one.version or docs.version or "", fetched_at=fetched_at)
            for one in passages
        ]
        return SourceResult(server.name, hits, is_stale=cached.is_stale)

    async def _call_search_tool(self, server: Connection, docs: DocsSource, query: str, call: Call) -> dict[str, Any]:
        if f"{server.name}:{docs.tool}" in self._fleet.held_tools:
            raise ServerLacks(f"its tool {docs.tool} has changed; `refdesk servers approve {server.name}` approves it")
        params = {"name": docs.tool, "arguments": {**docs.arguments, docs.argument: query}}
        seconds = docs.timeout_seconds
        result = await server.request(
            "tools/call", params, callbacks=NO_CALLBACKS, token=call.credential, seconds=seconds
        )
        if result.get("isError") is True:
            text = " ".join(str(item.get("text", "")) for item in result.get("content") or () if isinstance(item, dict))
            raise ServerRefused(server.name, 0, shorten(text, 200) or "its search tool failed")
        fetched_at = datetime.now(UTC).isoformat(timespec="seconds")
        meta = result.get("_meta")
        return {**result, "_meta": {**(meta if isinstance(meta, dict) else {}), FETCHED_AT: fetched_at}}


def summarize_sources(sources: Sequence[SourceResult], *, with_own: bool) -> tuple[str, dict[str, Any]]:
    """Return a sentence on the sources for the model, and the same as metadata.

    `with_own` is whether our own documentation was searched as well. It counts as a source in the sentence.
    """
    answered = [source.server for source in sources if not source.failure]
    missing = {source.server: source.failure for source in sources if source.failure}
    stale = [source.server for source in sources if source.is_stale]
    note = f"{len(answered) + with_own} of {len(sources) + with_own} sources answered"
    if missing:
        note += f" ({'; '.join(f'{server}: {shorten(why, 120)}' for server, why in missing.items())})"
    if stale:
        note += f"; from an earlier answer: {', '.join(stale)}"
    return note, {"answered": answered, "missing": missing, "stale": stale}


def fuse_rankings(own: Sequence[Hit], sources: Sequence[SourceResult], limit: int) -> list[Hit | ForeignPassage]:
    """Merge all rankings by reciprocal rank fusion, without duplicate pages and texts."""
    rankings: list[Sequence[Hit | ForeignPassage]] = [own, *(source.hits for source in sources)]
    scores: dict[int, float] = {}
    by_identity: dict[str, Hit | ForeignPassage] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking):
            identities = _get_identities(hit)
            same = next((by_identity[identity] for identity in identities if identity in by_identity), hit)
            # Several passages of one page from the same source are kept: a source does not repeat itself.
            target = hit if _get_server(hit) == _get_server(same) else same
            scores[id(target)] = scores.get(id(target), 0.0) + 1 / (RRF_K + rank)
            for identity in identities:
                by_identity.setdefault(identity, target)
    hits_by_id = {id(hit): hit for ranking in rankings for hit in ranking if id(hit) in scores}
    return sorted(hits_by_id.values(), key=lambda hit: -scores[id(hit)])[:limit]


def _get_server(hit: Hit | ForeignPassage) -> str | None:
    return hit.server if isinstance(hit, ForeignPassage) else None


def _get_identities(hit: Hit | ForeignPassage) -> list[str]:
    """Return the keys that identify duplicates: the canonical URL and the text."""
    url = hit.url if isinstance(hit, ForeignPassage) else get_source(hit.document)
    words = " ".join(hit.text.casefold().split())
    return [identity for identity in (canonicalize_url(url), f"says {words}") if identity]
