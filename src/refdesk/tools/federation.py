"""Federated search: other servers' documentation in `search_documentation`.

All sources are queried concurrently, each with its own timeout. Their results are cached and used as a fallback when
they fail. Sources that didn't respond are reported, and cost nothing but their own hits.

There is no standard for the results of search tools: they are structured, JSON in a text item, one text item per hit,
or one text with rules between the hits.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import orjson

from refdesk.cache.cache import Cache, Key
from refdesk.calls import Call, UserId, mark_partial_result
from refdesk.config.server_model import DocsSource
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.fleet import Fleet
from refdesk.downstream.fleet.sanitize import visible
from refdesk.engines.base import Hit
from refdesk.errors import RefdeskError, ServerLacks, ServerRefused
from refdesk.tools.input_requests import NO_CALLBACKS
from refdesk.tools.passages import get_source
from refdesk.tools.proxied import Reach
from refdesk.validation import shorten

RRF_K = 60
"""The constant of reciprocal rank fusion, at its usual value: there is no data to tune it on."""

FETCHED_AT = "refdesk/fetchedAt"


MAX_PASSAGE_CHARACTERS = 8000
"""Length of a passage: more than any answer has room for."""

MAX_TITLE_CHARACTERS = 200

MAX_HITS = 100

_LIST_FIELDS = ("results", "hits", "documents", "docs", "items", "passages", "matches", "snippets", "content", "data")
_TEXT_FIELDS = ("text", "content", "snippet", "passage", "body", "markdown", "description", "summary", "chunk")
_TITLE_FIELDS = ("title", "name", "heading", "section")
_URL_FIELDS = "url link href uri source_url sourceUrl contentUrl page_url source path id".split()
_VERSION_FIELDS = ("version", "doc_version", "docVersion")
"""Field names used by search tools, most specific first."""

# No line ends in these blanks: many empty lines would make matching quadratic.
_RULE = re.compile(r"^[ \t]*(?:-{5,}|={5,}|\*{5,})[ \t\r]*$", re.MULTILINE)
_FIELD = re.compile(r"^[ \t]*(TITLE|SOURCE|URL|LINK)[ \t]*:[ \t]*(\S.*)$", re.MULTILINE | re.IGNORECASE)
_HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*)$", re.MULTILINE)
_ADDRESS = re.compile(r"https?://[^\s<>\"'`)\]]+")
_TRACKING = re.compile(r"utm_\w+|fbclid|gclid|ref_src", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ForeignPassage:
    """A hit of another server, with the metadata it provides."""

    text: str
    title: str = ""
    url: str = ""
    version: str = ""
    server: str = ""
    fetched_at: str = ""


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


# Results of search tools


def parse_passages(result: Mapping[str, Any], limit: int) -> list[ForeignPassage]:
    """Return the hits in a tool's result, in its order."""
    for passages in (_parse_structured(result.get("structuredContent")), _parse_content(result.get("content"))):
        # Parse no more than needed.
        if found := list(islice((passage for passage in passages if passage.text), min(limit, MAX_HITS))):
            return found
    return []


def canonicalize_url(url: str) -> str:
    """Normalize a URL: host case, default port, fragment, tracking parameters, trailing slash."""
    try:
        parts = urlsplit(url.strip())
        if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
            return ""
        port = parts.port
    except ValueError:
        return ""
    is_usual = port is None or port == {"http": 80, "https": 443}[parts.scheme.lower()]
    host = parts.hostname if is_usual else f"{parts.hostname}:{port}"
    query = [(name, value) for name, value in parse_qsl(parts.query) if not _TRACKING.fullmatch(name)]
    # Most pages are served under both schemes.
    return urlunsplit(("https", host, parts.path.rstrip("/"), urlencode(query), ""))


def _parse_structured(value: object, depth: int = 0) -> Iterator[ForeignPassage]:
    """Yield the first list of objects with a text, within a few levels."""
    if depth > 3:
        return
    if isinstance(value, list):
        for entry in value[:MAX_HITS]:
            if isinstance(entry, str):
                yield _parse_text(entry)
            elif isinstance(entry, Mapping) and (passage := _parse_object(entry)) is not None:
                yield passage
    elif isinstance(value, Mapping):
        for name in _LIST_FIELDS:
            found = list(_parse_structured(value.get(name), depth + 1))
            if found:
                yield from found
                return
        if (passage := _parse_object(value)) is not None:
            yield passage


def _parse_object(value: Mapping[str, Any]) -> ForeignPassage | None:
    metadata = value.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    text = _find_text(_TEXT_FIELDS, value)
    if not text:
        return None
    title, version = _find_text(_TITLE_FIELDS, value, metadata), _find_text(_VERSION_FIELDS, value, metadata)
    return _build_passage(text, title, _find_text(_URL_FIELDS, value, metadata), version)


def _parse_content(content: object) -> Iterator[ForeignPassage]:
    for item in content[:MAX_HITS] if isinstance(content, list) else ():
        if not isinstance(item, Mapping):
            continue
        kind, resource = item.get("type"), item.get("resource")
        if kind == "text" and isinstance(item.get("text"), str):
            yield from _parse_text_item(item)
        elif kind == "resource" and isinstance(resource, Mapping) and isinstance(resource.get("text"), str):
            yield _build_passage(resource["text"], _find_text(_TITLE_FIELDS, resource), _find_text(("uri",), resource))
        elif kind == "resource_link":
            text = _find_text(("description", "title", "name"), item)
            yield _build_passage(text, _find_text(_TITLE_FIELDS, item), _find_text(("uri",), item))


def _parse_text_item(item: Mapping[str, Any]) -> Iterator[ForeignPassage]:
    text: str = item["text"]
    if text.lstrip()[:1] in ("{", "["):
        try:
            found = list(_parse_structured(orjson.loads(text)))
        except orjson.JSONDecodeError:
            found = []
        if found:
            yield from found
            return
    meta = item.get("_meta")
    metadata = meta.get("metadata") if isinstance(meta, Mapping) else None
    parts = [part for part in _RULE.split(text, maxsplit=MAX_HITS) if part.strip()]
    for part in parts:
        yield _parse_text(part, metadata if isinstance(metadata, Mapping) and len(parts) == 1 else {})


def _parse_text(text: str, metadata: Mapping[str, Any] | None = None) -> ForeignPassage:
    """Parse a plain-text hit: metadata lines, or a heading and a URL."""
    metadata = metadata or {}
    fields = {name.upper(): value.strip() for name, value in reversed(_FIELD.findall(text[:MAX_PASSAGE_CHARACTERS]))}
    heading = _HEADING.search(text[:MAX_PASSAGE_CHARACTERS])
    address = _ADDRESS.search(text[:MAX_PASSAGE_CHARACTERS])
    title = fields.get("TITLE") or _find_text(_TITLE_FIELDS, metadata) or (heading[1] if heading else "")
    source = fields.get("SOURCE") or fields.get("URL") or fields.get("LINK") or _find_text(_URL_FIELDS, metadata)
    return _build_passage(
        text, title, source or (address[0].rstrip(".,;:") if address else ""), _find_text(_VERSION_FIELDS, metadata)
    )


def _build_passage(text: str, title: str, url: str, version: str = "") -> ForeignPassage:
    return ForeignPassage(
        visible(text[:MAX_PASSAGE_CHARACTERS])[0].strip(),
        shorten(_clean_line(title), MAX_TITLE_CHARACTERS) if title else "",
        _clean_line(url)[:2000],
        _clean_line(version)[:100],
    )


def _clean_line(text: str) -> str:
    return " ".join(visible(text[:4000])[0].split())


def _find_text(names: Iterable[str], *values: Mapping[str, Any]) -> str:
    """Return the first of these fields that is a non-empty string."""
    for value in values:
        for name in names:
            member = value.get(name)
            if isinstance(member, str) and member.strip():
                return member
            if isinstance(member, (int, float)) and not isinstance(member, bool) and name in _VERSION_FIELDS:
                return str(member)
    return ""
