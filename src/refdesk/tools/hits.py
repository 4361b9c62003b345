"""Deduplicates search hits and trims them to a token budget."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from refdesk.calls import TenantId
from refdesk.documents.tokens import CHARACTERS_PER_TOKEN, estimate_tokens
from refdesk.engines.base import DocumentInfo, Hit, PassageSearch, Search
from refdesk.tools.paging import DEFAULT_TOKENS, find_cut
from refdesk.tools.previews import MAX_CHARACTERS, format_path
from refdesk.validation import shorten

EXTRA_HITS = 5
"""Requested beyond the limit, to replace duplicates."""

DEFAULT_HITS = 10
MAX_DEFAULT_TOKENS = 4800
"""The default budget grows with the number of results, but stays below 20 kB."""

MIN_PASSAGE_BYTES = 160
"""Below this a passage says nothing; the last hits are dropped instead."""

SHOWN_METADATA_BYTES = 400
"""Size of a document's own metadata in each hit; enough for a dozen tags."""

DUPLICATE_SHARE = 0.85
"""Share of a passage, by length, that a better one must repeat for it to be a duplicate."""

_WORD = re.compile(r"\w+")
_CHUNK_NUMBER = re.compile(r"(.*#c)(\d{1,9})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TrimmedHits:
    """Hits trimmed to a budget, and how many were dropped."""

    hits: Sequence[Hit]
    omitted: int
    tokens: int
    """Estimated cost, metadata included."""


def get_default_tokens(limit: int) -> int:
    """Return the default token budget for so many results."""
    return min(max(DEFAULT_TOKENS, DEFAULT_TOKENS * limit // DEFAULT_HITS), MAX_DEFAULT_TOKENS)


async def search_distinct(engine: PassageSearch, tenant: TenantId, search: Search) -> list[Hit]:
    """Search without duplicates; a query without a word finds nothing, although a vector search would."""
    if not _WORD.search(search.query):
        return []
    hits = await engine.search(tenant, replace(search, limit=search.limit + EXTRA_HITS))
    return deduplicate(hits)[: search.limit]


def deduplicate(hits: Sequence[Hit]) -> list[Hit]:
    """Merge adjacent chunks of a section, and drop hits that repeat a better one."""
    unique: list[Hit] = []
    # Only within a collection: another version of a manual may repeat the same text.
    seen: dict[str, list[set[str]]] = {}
    for hit in _merge_adjacent(hits):
        sentences = _split_sentences(hit.text)
        length = sum(map(len, sentences))
        others = seen.setdefault(hit.document.collection, [])
        if not any(_is_duplicate(other, sentences, length) for other in others):
            unique.append(hit)
            others.append(sentences)
    return unique


def _split_sentences(text: str) -> set[str]:
    """Return the set of sentences, case-folded; a fast approximation."""
    stopped = text.casefold().replace("\n", ".").replace("!", ".").replace("?", ".")
    return {sentence.strip() for sentence in stopped.split(".")} - {""}


def _is_duplicate(better: set[str], sentences: set[str], length: int) -> bool:
    if better.isdisjoint(sentences):
        return False
    return sum(map(len, better & sentences)) >= DUPLICATE_SHARE * length


def _merge_adjacent(hits: Sequence[Hit]) -> list[Hit]:
    """Merge consecutive chunks of a section into one hit, at the rank of the best."""
    merged: list[Hit] = []
    ends: dict[tuple[str, str, int], int] = {}
    """Index in `merged` of the hit that is adjacent to a chunk of a section."""
    for hit in hits:
        number = _parse_chunk_number(hit.chunk_id)
        index = None if number is None else ends.get((hit.document.id, hit.section, number))
        if number is None or index is None:
            index = len(merged)
            merged.append(hit)
        else:
            merged[index] = _merge(merged[index], hit, number)
        if number is not None:
            ends[hit.document.id, hit.section, number - 1] = index
            ends[hit.document.id, hit.section, number + 1] = index
    return merged


def _merge(better: Hit, other: Hit, number: int) -> Hit:
    is_before = number < (_parse_chunk_number(better.chunk_id) or 0)
    parts = (other.text, better.text) if is_before else (better.text, other.text)
    return replace(better, text="\n\n".join(parts))


def _parse_chunk_number(chunk_id: str) -> int | None:
    match = _CHUNK_NUMBER.fullmatch(chunk_id)
    return int(match[2]) if match else None


def trim_hits(hits: Sequence[Hit], max_tokens: int) -> TrimmedHits:
    """Return as many hits as the budget allows, metadata included; the rest of it is shared among the texts."""
    room = max_tokens * CHARACTERS_PER_TOKEN
    frames = [measure_frame(hit) for hit in hits]
    count = 0
    for hit, frame in zip(hits, frames, strict=True):
        least = frame + min(_count_bytes(hit.text), MIN_PASSAGE_BYTES)
        if count and least > room:
            break
        room -= least
        count += 1
    trimmed = list(_trim_texts(hits[:count], max(room, 0)))
    size = sum(frames[:count]) + sum(_count_bytes(hit.text) for hit in trimmed)
    return TrimmedHits(trimmed, len(hits) - count, estimate_tokens(size))


def _trim_texts(hits: Sequence[Hit], extra: int) -> Iterator[Hit]:
    """Yield the hits with texts cut to the minimum plus an even share of the extra budget."""
    for position, hit in enumerate(hits):
        length = MIN_PASSAGE_BYTES + extra // (len(hits) - position)
        text = make_excerpt(hit.text, length)
        extra -= max(_count_bytes(text) - MIN_PASSAGE_BYTES, 0)
        yield replace(hit, text=text)


def make_excerpt(text: str, room: int) -> str:
    """Return the beginning of a text, about so many bytes long, cut at a natural boundary."""
    size = _count_bytes(text)
    if size <= room:
        return text
    return f"{text[: find_cut(text, room * len(text) // size)].rstrip()} […]"


def _count_bytes(text: str) -> int:
    """Return the UTF-8 size of a text, which predicts its tokens better than its characters in any script."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def measure_frame(hit: Hit) -> int:
    """Return the size of a hit without its text."""
    return len(orjson.dumps([hit.chunk_id, hit.document.id, build_hit_metadata(hit)])) + FRAME_BYTES


FRAME_BYTES = 60
"""A hit's field names, score and punctuation."""


def build_hit_metadata(hit: Hit) -> dict[str, Any]:
    """Return origin, version and age of a hit; unknown fields are omitted."""
    info = hit.document
    fields = {
        "source": get_source(info),
        "title": shorten(info.title, MAX_CHARACTERS),
        "section": shorten(hit.path[-1], MAX_CHARACTERS) if hit.path else None,
        "path": format_path(hit.path) if len(hit.path) > 1 else None,
        "page": hit.page,
        "anchor": hit.anchor or None,
        "anchors": above if len(above := [anchor for anchor in hit.anchors if anchor]) > 1 else None,
        "collection_id": info.collection,
        "version": info.version or None,
        "indexed_at": info.indexed_at.replace(tzinfo=None).isoformat(timespec="seconds") + "Z",
    }
    return {**trim_metadata(info.metadata), **{name: value for name, value in fields.items() if value is not None}}


def trim_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document's own metadata as far as it is short; built-in fields take precedence."""
    shown: dict[str, Any] = {}
    room = SHOWN_METADATA_BYTES
    for name, value in metadata.items():
        room -= len(orjson.dumps([name, value], default=str))
        if room < 0:
            break
        shown[name] = value
    return shown


def get_source(info: DocumentInfo) -> str:
    """Return the URL of a document, or its id; local paths are not disclosed."""
    return info.source if info.source.startswith(("http://", "https://")) else info.id


def format_provenance(info: DocumentInfo) -> str:
    """Format id, version if there is one, and age of a document."""
    version = f", version {info.version}" if info.version else ""
    return f"{info.id}{version}, indexed {info.indexed_at.date()}"
