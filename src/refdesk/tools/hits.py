"""Deduplicates search hits and describes where they are from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from refdesk.calls import TenantId
from refdesk.engines.base import DocumentInfo, Hit, PassageSearch, Search
from refdesk.tools.paging import MAX_CHARACTERS, find_cut, format_path
from refdesk.validation import shorten

EXTRA_HITS = 5
"""Requested beyond the limit, to replace duplicates."""

SHOWN_METADATA_BYTES = 400
"""Size of a document's own metadata in each hit; enough for a dozen tags."""

DUPLICATE_SHARE = 0.85
"""Share of a passage, by length, that a better one must repeat for it to be a duplicate."""

_WORD = re.compile(r"\w")
_CHUNK_NUMBER = re.compile(r".*#c(\d{1,9})", re.DOTALL)


async def search_distinct(engine: PassageSearch, tenant: TenantId, search: Search) -> list[Hit]:
    """Search without duplicates; a query without a word finds nothing, although a vector search would."""
    if not has_word(search.query):
        return []
    hits = await engine.search(tenant, replace(search, limit=search.limit + EXTRA_HITS))
    return drop_duplicates(merge_adjacent(hits))[: search.limit]


def has_word(query: str) -> bool:
    """Whether a query has anything to search for."""
    return _WORD.search(query) is not None


def drop_duplicates(hits: Sequence[Hit]) -> list[Hit]:
    """Drop hits that repeat a better one."""
    unique: list[Hit] = []
    # Only within a collection: another version of a manual may repeat the same text.
    seen: dict[str, list[set[str]]] = {}
    for hit in hits:
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


def merge_adjacent(hits: Sequence[Hit]) -> list[Hit]:
    """Merge consecutive chunks of a section into one hit, at the rank of the best."""
    merged: list[Hit] = []
    ends: dict[tuple[str, str, int], int] = {}
    """Index in `merged` of the hit that is adjacent to a chunk of a section."""
    for hit in hits:
        number = parse_chunk_number(hit.chunk_id)
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
    is_before = number < (parse_chunk_number(better.chunk_id) or 0)
    parts = (other.text, better.text) if is_before else (better.text, other.text)
    return replace(better, text="\n\n".join(parts))


def parse_chunk_number(chunk_id: str) -> int | None:
    """Return the position of a chunk from its id."""
    match = _CHUNK_NUMBER.fullmatch(chunk_id)
    return int(match[1]) if match else None


def make_excerpt(text: str, room: int) -> str:
    """Return the beginning of a text, about so many bytes long, cut at a natural boundary."""
    size = _count_bytes(text)
    if size <= room:
        return text
    return f"{text[: find_cut(text, room * len(text) // size)].rstrip()} […]"


def _count_bytes(text: str) -> int:
    """Return the UTF-8 size of a text, which predicts its tokens better than its characters in any script."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def build_hit_metadata(hit: Hit) -> dict[str, Any]:
    """Return place, version and age of a hit; fields that are unknown or repeat its id are omitted."""
    info = hit.document
    has_path = len(hit.path) > 1
    anchors = [anchor for anchor in hit.anchors if anchor]
    fields = {
        "source": source if (source := get_source(info)) != info.id else None,
        "title": shorten(info.title, MAX_CHARACTERS),
        "section": shorten(hit.path[-1], MAX_CHARACTERS) if hit.path and not has_path else None,
        "path": format_path(hit.path) if has_path else None,
        "page": hit.page,
        "anchor": hit.anchor or None,
        "anchors": anchors if len(anchors) > 1 else None,
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


def format_provenance(info: DocumentInfo, id: str = "") -> str:
    """Format id, version if there is one, and age of a document, or of one of its chunks by its id."""
    version = f", version {info.version}" if info.version else ""
    return f"{id or info.id}{version}, indexed {info.indexed_at.date()}"
