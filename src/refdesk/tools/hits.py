"""What a search found, made fit for a model's window: nothing twice, each passage as long as there is room for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from refdesk.calls import TenantId
from refdesk.engines.base import DocumentInfo, Engine, Hit, Search
from refdesk.tools.outline import MAX_CHARACTERS, brief_path
from refdesk.tools.paging import CHARACTERS_PER_TOKEN, DEFAULT_TOKENS, cut_before
from refdesk.validation import shortened

SPARE_HITS = 5
"""Asked for beyond what is wanted, in place of those that turn out to be the same again."""

USUAL_HITS = 10
MOST_DEFAULT_TOKENS = 4800
"""Whoever wants more results than usual is given more room, but without asking for it never over 20 kB."""

LEAST_PASSAGE = 160
"""Characters of a passage below which it says nothing; rather are the last hits left out."""

OWN_METADATA_BYTES = 400
"""Of what was given with a document that is shown with each of its hits; enough for a dozen tags."""

SAID_ALREADY = 0.85
"""Of a passage, by its length: when a better one has so much of it in the same sentences, it adds nothing."""

_WORD = re.compile(r"\w+")
_CHUNK_NUMBER = re.compile(r"(.*#c)(\d{1,9})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Fitted:
    """The hits that fit into a budget, their texts cut to it, and how many did not."""

    hits: Sequence[Hit]
    omitted: int
    tokens: int
    """About what they cost, with what stands around their texts."""


def default_tokens(limit: int) -> int:
    """The room that an answer with so many results has when none is asked for."""
    return min(max(DEFAULT_TOKENS, DEFAULT_TOKENS * limit // USUAL_HITS), MOST_DEFAULT_TOKENS)


async def found(engine: Engine, tenant: TenantId, search: Search) -> list[Hit]:
    """The best passages, each said once; a query without a word finds nothing, though it is near to something."""
    if not _WORD.search(search.query):
        return []
    hits = await engine.search(tenant, replace(search, limit=search.limit + SPARE_HITS))
    return distinct(hits)[: search.limit]


def distinct(hits: Sequence[Hit]) -> list[Hit]:
    """The hits with neighbours of one section joined, and without those that say again what a better one says."""
    kept: list[Hit] = []
    # Only within a collection: the same words in the manual of another version are not the same.
    said: dict[str, list[set[str]]] = {}
    for hit in _joined(hits):
        sentences = _sentences(hit.text)
        length = sum(map(len, sentences))
        others = said.setdefault(hit.document.collection, [])
        if not any(_says(other, sentences, length) for other in others):
            kept.append(hit)
            others.append(sentences)
    return kept


def _sentences(text: str) -> set[str]:
    """Everything between full stops and line ends, without regard to case; roughly, and fast."""
    stopped = text.casefold().replace("\n", ".").replace("!", ".").replace("?", ".")
    return {sentence.strip() for sentence in stopped.split(".")} - {""}


def _says(better: set[str], sentences: set[str], length: int) -> bool:
    if better.isdisjoint(sentences):
        return False
    return sum(map(len, better & sentences)) >= SAID_ALREADY * length


def _joined(hits: Sequence[Hit]) -> list[Hit]:
    """Chunks of one section that follow one another as one hit, in the place of the best of them."""
    joined: list[Hit] = []
    ends: dict[tuple[str, str, int], int] = {}
    """Where in `joined` the hit is that ends before, or begins after, a chunk of a document's section."""
    for hit in hits:
        number = _chunk_number(hit.chunk_id)
        place = None if number is None else ends.get((hit.document.id, hit.section, number))
        if number is None or place is None:
            place = len(joined)
            joined.append(hit)
        else:
            joined[place] = _together(joined[place], hit, number)
        if number is not None:
            ends[hit.document.id, hit.section, number - 1] = place
            ends[hit.document.id, hit.section, number + 1] = place
    return joined


def _together(better: Hit, other: Hit, number: int) -> Hit:
    is_before = number < (_chunk_number(better.chunk_id) or 0)
    parts = (other.text, better.text) if is_before else (better.text, other.text)
    return replace(better, text="\n\n".join(parts))


def _chunk_number(chunk_id: str) -> int | None:
    match = _CHUNK_NUMBER.fullmatch(chunk_id)
    return int(match[2]) if match else None


def fitted(hits: Sequence[Hit], max_tokens: int) -> Fitted:
    """As many hits as the budget holds with what stands around their texts; what is left is shared among the texts."""
    room = max_tokens * CHARACTERS_PER_TOKEN
    frames = [frame_bytes(hit) for hit in hits]
    shown = 0
    for hit, frame in zip(hits, frames, strict=True):
        least = frame + min(_size(hit.text), LEAST_PASSAGE)
        if shown and least > room:
            break
        room -= least
        shown += 1
    cut = list(_cut(hits[:shown], max(room, 0)))
    size = sum(frames[:shown]) + sum(_size(hit.text) for hit in cut)
    return Fitted(cut, len(hits) - shown, size // CHARACTERS_PER_TOKEN)


def _cut(hits: Sequence[Hit], spare: int) -> Iterator[Hit]:
    """The hits with texts cut to what they have of the room: the least each, and an even share of what is spare."""
    for position, hit in enumerate(hits):
        length = LEAST_PASSAGE + spare // (len(hits) - position)
        text = excerpt(hit.text, length)
        spare -= max(_size(text) - LEAST_PASSAGE, 0)
        yield replace(hit, text=text)


def excerpt(text: str, room: int) -> str:
    """The beginning of a text that has about so many bytes, cut where a reader would stop."""
    size = _size(text)
    if size <= room:
        return text
    return f"{text[: cut_before(text, room * len(text) // size)].rstrip()} […]"


def _size(text: str) -> int:
    """The bytes of a text: what it costs a model, in whatever script it is, is nearer to them than to its letters."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def frame_bytes(hit: Hit) -> int:
    """What a hit takes without its text."""
    return len(orjson.dumps([hit.chunk_id, hit.document.id, hit_metadata(hit)])) + FRAME_BYTES


FRAME_BYTES = 60
"""The names of a hit's members, its score, and the marks between them."""


def hit_metadata(hit: Hit) -> dict[str, Any]:
    """Where a hit is from, of which version and since when; what is not known is left out."""
    info = hit.document
    known = {
        "source": source_of(info),
        "title": shortened(info.title, MAX_CHARACTERS),
        "section": shortened(hit.path[-1], MAX_CHARACTERS) if hit.path else None,
        "path": brief_path(hit.path) if len(hit.path) > 1 else None,
        "page": hit.page,
        "anchor": hit.anchor or None,
        "anchors": above if len(above := [anchor for anchor in hit.anchors if anchor]) > 1 else None,
        "collection_id": info.collection,
        "version": info.version,
        "indexed_at": info.indexed_at.replace(tzinfo=None).isoformat(timespec="seconds") + "Z",
    }
    return {**own_metadata(info.metadata), **{name: value for name, value in known.items() if value is not None}}


def own_metadata(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given with a document, as far as it is short; it never takes the place of what the desk says."""
    shown: dict[str, Any] = {}
    room = OWN_METADATA_BYTES
    for name, value in given.items():
        room -= len(orjson.dumps([name, value], default=str))
        if room < 0:
            break
        shown[name] = value
    return shown


def source_of(info: DocumentInfo) -> str:
    """The web address that a document came from, or its id; paths of this machine are nobody else's business."""
    return info.source if info.source.startswith(("http://", "https://")) else info.id


def provenance(info: DocumentInfo) -> str:
    """Source, version and age of a document, in a line of text."""
    return f"{info.id}, version {info.version}, indexed {info.indexed_at.date()}"
