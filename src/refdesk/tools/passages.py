"""Passages: search hits grown to whole answers within a token budget (small-to-big retrieval).

Chunks are small, so that a search finds the exact place. What answers a question is often more: the rest of the
definition, the caveat in the next paragraph, the table below its lead-in. The best hits are extended by the chunks
around them before weaker hits get any room, and places of the same page are merged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise
from typing import Any

import orjson

from refdesk.calls import TenantId
from refdesk.documents.tokens import CHARACTERS_PER_TOKEN, estimate_tokens
from refdesk.engines import analyzer
from refdesk.engines.base import CollectionInfo, DocumentInfo, Engine, Hit, Passage, PassageSearch, Search
from refdesk.engines.storage.records import parse_chunk_number
from refdesk.tools.document_lookup import rewrite_links
from refdesk.tools.paging import MAX_CHARACTERS, find_cut, format_path
from refdesk.validation import nearest_name, shorten

SEARCH_TOKENS = 1000
"""Default budget of a search: a few whole passages."""

USUAL_HITS, MAX_SEARCH_TOKENS = 10, 4800
"""Results up to which that suffices. For more, the budget grows in proportion, but stays below 20 kB."""

CONTEXT_CHUNKS = 4
"""Chunks requested around each hit, and with them the most that it grows in either direction."""

MIN_HITS = 15
"""Hits requested in any case, as several can make one passage."""

MIN_VALUE = 0.33
"""Value, relative to the best hit, below which a chunk isn't shown unless a caller asks for a larger budget."""

NEXT_SAME, NEXT_CHILD, NEXT_OTHER = 0.75, 0.7, 0.45
"""Value of the following chunk relative to the one before it: in the same section, in a subsection, in another."""

PREVIOUS_SAME = 0.75
"""Value of the preceding chunk in the same section. A passage never begins in another one than its hit."""

GAP_FACTOR, MAX_GAP = 0.75, 2
"""Value of chunks between two hits of a page relative to the weaker one, and how many of them there may be."""

COVERAGE_WEIGHT = 0.5
"""How much the share of query terms in a neighbouring chunk changes its value."""

SCORE_POWER = 2.5
"""Exponent of the scores. Scores of neighbouring ranks are close, but the best hit is worth much more than the next."""

MAX_PASSAGE_CHARACTERS = 2600
"""Length up to which a hit grows and takes in other places of its page: two thirds of the default budget, so that one
hit never takes all of it."""

MIN_ROOM = 160
"""Characters below which nothing useful fits."""

FRAME_CHARACTERS = 60
"""Characters of a shown passage besides its headings, its id and its text."""

TWIN_SHARE = 0.5
"""Share of a passage's three-word sequences that the other form of its page must have for it to be a duplicate."""

EXTRA_HITS = 5
"""Requested beyond the limit, to replace duplicates."""

SHOWN_METADATA_BYTES = 400
"""Size of a document's own metadata in each hit; enough for a dozen tags."""

DUPLICATE_SHARE = 0.85
"""Share of a passage, by length, that a better one must repeat for it to be a duplicate."""

_NAME = re.compile(r"--[a-z][\w-]+|[A-Za-z]\w*_\w+|[a-z]+[A-Z]\w+")
_PLAIN_WORD = re.compile(r"[^\W_]+")
_WORD = re.compile(r"\w")

_Place = tuple[str, int]
"""Document id and number of a chunk."""


@dataclass(frozen=True, slots=True)
class GrownHit:
    """A hit whose text includes neighbouring chunks, and then other places of its page."""

    hit: Hit
    continues_at: str | None = None
    """Id of the next chunk, if it belongs to the same section."""


@dataclass(frozen=True, slots=True)
class Passages:
    """Passages within a budget, best first."""

    hits: Sequence[GrownHit] = ()
    omitted: int = 0
    """Number of hits that were left out."""
    tokens: int = 0
    absent: Mapping[str, str] = field(default_factory=dict)
    """Identifiers of the query that occur nowhere, each with the most similar one in the hits or an empty string."""
    is_confident: bool = False
    """Whether the passages probably contain an answer."""

    def format_doubts(self, scope: str) -> str:
        """Return a sentence on what is probably not in the documents, or an empty string."""
        if self.absent:
            nearest = ", ".join(f"`{name}`" for name in self.absent.values() if name)
            names = ", ".join(f"`{name}`" for name in self.absent)
            verb = "does" if len(self.absent) == 1 else "do"
            return f"{names} {verb} not occur in {scope}" + (f"; nearest: {nearest}" if nearest else "")
        return "" if self.is_confident or not self.hits else f"Low confidence: {scope} may not answer this"


async def search_passages(engine: Engine, tenant: TenantId, search: Search, max_tokens: int | None) -> Passages:
    """Search for passages. A query without a word finds nothing, although a semantic search would.

    Without `max_tokens`, hits that are much weaker than the best one are left out.
    """
    if not has_word(search.query):
        return Passages()
    wider = replace(search, limit=max(search.limit + EXTRA_HITS, MIN_HITS), context=CONTEXT_CHUNKS)
    found = drop_twins(drop_duplicates(await engine.search(tenant, wider)))
    absent = await engine.find_absent(tenant, search.query, search.collections)
    if not found:
        return Passages(absent=dict.fromkeys(absent, ""))
    min_value = 0.0
    if max_tokens is None:
        max_tokens = min(SEARCH_TOKENS * max(search.limit, USUAL_HITS) // USUAL_HITS, MAX_SEARCH_TOKENS)
        min_value = MIN_VALUE
    is_confident = not absent and found[0].score >= engine.traits.min_confidence
    names = {name for hit in found for name in _NAME.findall(hit.text)} if absent else set[str]()
    return replace(
        grow_passages(search.query, found, search.limit, max_tokens, min_value),
        absent={name: nearest_name(name, sorted(names)) or "" for name in absent},
        is_confident=is_confident,
    )


def format_pending(collections: Sequence[CollectionInfo], searched: Sequence[str]) -> str:
    """Return a sentence on documents that are still being indexed, or an empty string. No names means all."""
    counts = [info for info in collections if info.pending and (not searched or info.id in searched)]
    return ", ".join(
        f"{info.pending} of {info.documents} documents of {info.id} are still being indexed" for info in counts
    )


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
        number = parse_chunk_number(hit.chunk_id, hit.document.id)
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
    is_before = number < (parse_chunk_number(better.chunk_id, better.document.id) or 0)
    parts = (other.text, better.text) if is_before else (better.text, other.text)
    return replace(better, text="\n\n".join(parts))


def drop_twins(hits: Sequence[Hit]) -> list[Hit]:
    """Drop hits whose text a better hit has from another form of the same page (`git-stash.txt`, `git-stash.html`).

    The form with the higher score takes the place of the better hit if it's only behind because its page has others.
    """
    kept: list[Hit] = []
    shingles: dict[int, set[tuple[str, ...]]] = {}
    for hit in hits:
        name, own = _get_page_name(hit), set[tuple[str, ...]]()
        for index, better in enumerate(kept):
            if better.document.id == hit.document.id or _get_page_name(better) != name:
                continue
            if index not in shingles:
                shingles[index] = _build_shingles(" ".join(chunk.text for chunk in better.context) or better.text)
            own = own or _build_shingles(hit.text)
            if len(own & shingles[index]) > TWIN_SHARE * len(own):
                if hit.base_score > better.base_score:
                    kept[index] = replace(hit, score=better.score)
                    shingles.pop(index)
                break
        else:
            kept.append(hit)
    return kept


def _get_page_name(hit: Hit) -> tuple[str, str]:
    return hit.document.collection, hit.document.id.rpartition("/")[2].partition(".")[0]


def _build_shingles(text: str) -> set[tuple[str, ...]]:
    words = _PLAIN_WORD.findall(text.casefold())
    return set(zip(words, words[1:], words[2:], strict=False))


def grow_passages(query: str, hits: Sequence[Hit], limit: int, max_tokens: int, min_value: float = 0.0) -> Passages:
    """Return up to `limit` passages of the hits with as many neighbouring chunks as the budget allows.

    If none fits, the first one is cut.
    Chunks below `min_value`, relative to the best hit, are left out even if there is room.
    """
    room = max_tokens * CHARACTERS_PER_TOKEN
    selection = _Selection(query, hits, limit, room, min_value)
    grown = selection.merge()
    if len(grown) == 1:
        hit = grown[0].hit
        text = make_excerpt(hit.text, max(room - measure_frame(hit), MIN_ROOM))
        grown = [replace(grown[0], hit=replace(hit, text=text))]
    omitted = sum(_get_place(hit.document.id, hit.chunk_id) not in selection.shown for hit in hits[:limit])
    size = sum(len(one.hit.text) + measure_frame(one.hit) for one in grown)
    return Passages(grown, omitted, estimate_tokens(size))


def measure_frame(hit: Hit | Passage) -> int:
    """Return the characters that are shown of a passage besides its text."""
    return sum(map(len, hit.path)) + 3 * len(hit.path) + len(hit.chunk_id) + FRAME_CHARACTERS


class _Selection:
    """Greedy selection of chunks: the most valuable one that fits comes next."""

    def __init__(self, query: str, hits: Sequence[Hit], limit: int, room: int, min_value: float) -> None:
        self._hits = hits
        self._limit = limit
        self._min_value = min_value
        self._terms = {term: 1.0 for term in analyzer.weigh_query_terms(query) if not analyzer.is_stop_word(term)}
        self._chunks: dict[_Place, Passage] = {}
        for hit in hits:
            own = Passage(hit.chunk_id, hit.section, hit.path, hit.page, hit.text)
            for chunk in (*hit.context, own):
                self._chunks[_get_place(hit.document.id, chunk.chunk_id)] = chunk
        self._room = room
        self._grown: Counter[int] = Counter()
        self._pages: Counter[str] = Counter()
        """Characters shown of each document."""
        self.shown: dict[_Place, int] = {}
        """Selected chunks with the rank of the hit they belong to."""
        self._select()

    def _select(self) -> None:
        scores = [hit.base_score or hit.score for hit in self._hits]
        best = max(scores, default=0.0) or 1.0
        heap = [
            (-((score / best) ** SCORE_POWER), rank, _get_place(hit.document.id, hit.chunk_id), 0)
            for rank, (hit, score) in enumerate(zip(self._hits, scores, strict=True))
        ]
        heap += self._find_gaps(heap)
        heapify(heap)
        while heap:
            negative, rank, place, direction = heappop(heap)
            value = -negative
            if value < self._min_value or self._room < MIN_ROOM:
                return
            if place not in self.shown and not self._add(place, rank):
                continue
            for step in (1, -1) if direction == 0 else (direction,):
                neighbour = place[0], place[1] + step
                if neighbour in self._chunks and neighbour not in self.shown:
                    factor = self._compare(self._chunks[place], self._chunks[neighbour], step)
                    if factor:
                        heappush(heap, (-value * factor, rank, neighbour, step))

    def _find_gaps(self, hits: Iterable[tuple[float, int, _Place, int]]) -> list[tuple[float, int, _Place, int]]:
        """Return the chunks between hits that are near each other on a page, with the lower value of the two."""
        found = []
        by_place = sorted(hits, key=lambda hit: hit[2])
        for (value, rank, (document, start), _), (other_value, other_rank, (other, end), _) in pairwise(by_place):
            if document == other and end - start <= MAX_GAP + 1:
                worst, best = max(value, other_value), min(rank, other_rank)
                found += [(GAP_FACTOR * worst, best, (document, number), 0) for number in range(start + 1, end)]
        return [gap for gap in found if gap[2] in self._chunks]

    def _add(self, place: _Place, rank: int) -> bool:
        """Select a chunk if it fits. The first one always does. Links that an agent can't open are dropped."""
        document, number = place
        chunk = self._chunks[place]
        chunk = replace(chunk, text=rewrite_links(chunk.text, document, ()))
        is_adjacent = (document, number - 1) in self.shown or (document, number + 1) in self.shown
        size = len(chunk.text) + (2 if is_adjacent else self._measure_frame(document, chunk))
        if self.shown and (size > self._room or self._grown[rank] + size > MAX_PASSAGE_CHARACTERS):
            return False
        if not is_adjacent and self._count_passages(document, size) > self._limit:
            return False
        self._grown[rank] += size
        self._pages[document] += size
        self._chunks[place] = chunk
        self.shown[place] = rank
        self._room -= size
        return True

    def _measure_frame(self, document: str, chunk: Passage) -> int:
        """Return the characters shown besides the text of a chunk that continues no other."""
        is_further_place = 0 < self._pages[document] <= MAX_PASSAGE_CHARACTERS - len(chunk.text)
        return len(_format_lead(chunk)) + 4 if is_further_place else measure_frame(chunk)

    def _count_passages(self, document: str, size: int) -> int:
        """Return the number of passages with another chunk of a document."""
        sizes = self._pages + Counter({document: size})
        return sum(-(-characters // MAX_PASSAGE_CHARACTERS) for characters in sizes.values())

    def _compare(self, chunk: Passage, neighbour: Passage, step: int) -> float:
        """Return the value of a neighbouring chunk relative to a chunk."""
        if neighbour.section == chunk.section:
            factor = NEXT_SAME if step > 0 else PREVIOUS_SAME
        elif step > 0:
            factor = NEXT_CHILD if neighbour.path[: len(chunk.path)] == chunk.path else NEXT_OTHER
        else:
            return 0.0
        if not self._terms:
            return factor
        found = analyzer.match_terms("\n".join((*neighbour.path[-1:], neighbour.text)), self._terms)
        return factor * (1 + COVERAGE_WEIGHT * (len(found) / len(self._terms) - 0.5))

    def merge(self) -> list[GrownHit]:
        """Return the selected chunks as hits. Places of a page share one as far as they fit, the best one first."""
        runs: list[list[_Place]] = []
        for place in sorted(self.shown):
            if runs and self._continues(runs[-1][-1], place):
                runs[-1].append(place)
            else:
                runs.append([place])
        passages: list[list[list[_Place]]] = []
        last: dict[str, list[list[_Place]]] = {}
        """Last passage of each document."""
        for run in sorted(runs, key=self._get_rank):
            document = run[0][0]
            if document not in last or self._measure([*last[document], run]) > MAX_PASSAGE_CHARACTERS:
                last[document] = []
                passages.append(last[document])
            last[document].append(run)
        return [self._build(passage) for passage in passages[: self._limit]]

    def _measure(self, runs: Iterable[Sequence[_Place]]) -> int:
        return sum(len(self._chunks[place].text) for run in runs for place in run)

    def _get_rank(self, run: Sequence[_Place]) -> int:
        return min(self.shown[place] for place in run)

    def _continues(self, before: _Place, place: _Place) -> bool:
        """Whether a chunk continues the one before it. A better hit in another section begins a passage of its own."""
        if before != (place[0], place[1] - 1):
            return False
        is_same = self._chunks[before].section == self._chunks[place].section
        return is_same or self.shown[before] <= self.shown[place]

    def _build(self, runs: Sequence[Sequence[_Place]]) -> GrownHit:
        """Build the hit of some places of a page. Each but the first begins with its heading and id."""
        best, *others = [[self._chunks[place] for place in run] for run in runs]
        document, number = runs[0][-1]
        following = self._chunks.get((document, number + 1))
        texts = [*_join_texts(best), *chain.from_iterable((_format_lead(run[0]), *_join_texts(run)) for run in others)]
        hit, shown = self._hits[self._get_rank(runs[0])], set(chain.from_iterable(runs))
        merged = (other.anchors for other in self._hits if _get_place(other.document.id, other.chunk_id) in shown)
        anchors = tuple(dict.fromkeys((*hit.anchors, *chain.from_iterable(merged))))
        grown = replace(hit, path=best[0].path, text="\n\n".join(texts), anchors=anchors, context=())
        has_more = following is not None and following.section == best[-1].section
        return GrownHit(grown, following.chunk_id if following and has_more else None)


def _format_lead(chunk: Passage) -> str:
    """Return the heading of another place on a page, with an id that opens it."""
    return " ".join(("#### […]", *chunk.path[-1:], f"({chunk.chunk_id})"))


def _join_texts(chunks: Sequence[Passage]) -> Iterator[str]:
    """Yield the texts, with a heading where a section begins within the passage."""
    above = chunks[0].path
    for chunk in chunks:
        if chunk.path != above and chunk.path:
            yield f"#### {chunk.path[-1]}"
        above = chunk.path
        yield chunk.text


def _get_place(document_id: str, chunk_id: str) -> _Place:
    return document_id, parse_chunk_number(chunk_id, document_id) or 0


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
        "title": shorten(info.title, MAX_CHARACTERS) if info.title not in hit.path else None,
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
