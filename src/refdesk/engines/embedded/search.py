"""Hybrid search over stores: lexical and semantic candidates, fused, reranked, one per section."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import isnan, log
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from refdesk.calls import mark_partial_result
from refdesk.engines import analyzer, ranking
from refdesk.engines.base import Hit, Passage, Search
from refdesk.engines.embedded.embedding import Embedder
from refdesk.engines.embedded.fulltext import IndexDamaged
from refdesk.engines.embedded.tenant_store import TenantStore
from refdesk.engines.ranking import ChunkCandidate, RankedChunk
from refdesk.engines.storage.filters import Condition, compile_filter
from refdesk.engines.storage.records import INFO_COLUMNS, build_document_info
from refdesk.errors import DependencyError, EngineError

LEXICAL_CANDIDATES, SEMANTIC_CANDIDATES = 60, 40
"""Lexical and semantic candidates. Twice as many hardly change the results on the development sets."""

BASE_LIMIT = 15
"""Number of results these candidate counts are for. They grow in proportion for more results."""

ESTIMATED_CANDIDATES = 20
"""Semantic candidates whose text is read to estimate their lexical score."""

RERANKED = 40
"""Candidates whose text is read for reranking; twice the limit if that is more, as only one per section is returned."""

SHARED_MIN_SHARE = 0.7
"""Shared documents are only searched further if their best lexical score reaches this share of the tenant's own. For
most questions about the tenant's documents they have no answer."""

NEIGHBOUR_WEIGHT = 0.4
"""Weight of the neighbouring chunks in the similarity of a chunk of continuous text.

An abstract or a letter has no sections: each of its chunks is part of one thought. In a manual, the next chunk is
often about another option, so only text directly below a document's title counts as continuous.
"""

Keys = NDArray[np.int64]
Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PreparedSearch:
    """Search with its compiled filter and query vector."""

    search: Search
    condition: Condition | None
    vector: NDArray[np.float32] | None = None
    model: str = ""
    """Model of the vector. Indexes of other models can't be searched with it."""

    def scale(self, base: int) -> int:
        """Scale a candidate count to the search's limit."""
        return -(-base * max(self.search.limit, BASE_LIMIT) // BASE_LIMIT)

    @property
    def lexical_weight(self) -> float:
        """Weight of the lexical score."""
        if (given := self.search.semantic_weight) is not None:
            return 1 - given
        if not self.is_english:
            return ranking.LEXICAL_WEIGHT
        if analyzer.build_definition_pattern(self.search.query) is not None:
            return ranking.DEFINITION_LEXICAL_WEIGHT
        is_question = analyzer.is_question(self.search.query)
        return ranking.QUESTION_LEXICAL_WEIGHT if is_question else ranking.STATEMENT_LEXICAL_WEIGHT

    @property
    def is_english(self) -> bool:
        """Whether the query is in English, which the included embedding model knows."""
        return analyzer.is_english(self.search.query)


class HybridSearcher:
    """Searches stores. Without an embedding model, the search is lexical only."""

    def __init__(self, embedder: Embedder | None) -> None:
        self._embedder = embedder

    async def search(self, stores: Sequence[TenantStore], search: Search) -> list[Hit]:
        """Return the best passages of all stores."""
        in_scope = [
            store
            for store in stores
            if not search.collections or any(entry.id in search.collections for entry in store.collections)
        ]
        condition = compile_filter(search.filters) if search.filters else None
        if not in_scope:
            return []
        prepared = PreparedSearch(search, condition)
        embedder = None if search.mode == "fulltext" else self._embedder
        if embedder is not None:
            prepared = replace(prepared, model=embedder.name)
            if (embed := embedder.embed_query_sync) is not None:
                # One thread for both: switching threads takes longer than some parts of a search.
                return await in_scope[0].search(
                    lambda database: _search_stores(in_scope, replace(prepared, vector=embed(search.query)), database)
                )
            prepared = replace(prepared, vector=await _embed_query(embedder, search))
        return await in_scope[0].search(partial(_search_stores, in_scope, prepared))

    async def find_absent(self, stores: Sequence[TenantStore], query: str, collections: Sequence[str]) -> list[str]:
        """Return the identifiers of a query that occur in none of the collections."""
        absent = analyzer.find_identifiers(query)
        for store in stores:
            if absent:
                absent = await store.search(partial(_drop_present, store, absent, collections))
        return list(absent)


def _drop_present(
    store: TenantStore, identifiers: Mapping[str, str], collections: Sequence[str], database: sqlite3.Connection
) -> dict[str, str]:
    keys = _find_collection_keys(database, collections)
    store.fulltext.refresh()
    return {name: term for name, term in identifiers.items() if not store.fulltext.has_term(term, keys)}


def _find_collection_keys(database: sqlite3.Connection, ids: Sequence[str]) -> list[int] | None:
    """Return the keys of collections. None means all."""
    if not ids:
        return None
    marks = ", ".join("?" * len(ids))
    return [row[0] for row in database.execute(f"SELECT key FROM collections WHERE id IN ({marks})", ids)]


async def _embed_query(embedder: Embedder, search: Search) -> NDArray[np.float32] | None:
    try:
        return await embedder.embed_query(search.query)
    except DependencyError:
        if search.mode == "semantic":
            raise
        mark_partial_result()
        return None  # fall back to lexical search


def _search_stores(stores: Sequence[TenantStore], prepared: PreparedSearch, database: sqlite3.Connection) -> list[Hit]:
    """Search several stores as if they were one. `database` is the first store's connection."""
    with ExitStack() as stack:
        databases = [database, *(stack.enter_context(store.reading()) for store in stores[1:])]
        max_count = max(store.fulltext.count for store in stores)
        numbered = enumerate(zip(stores, databases, strict=True))
        shards = [_Shard(store, opened, number, len(stores), max_count) for number, (store, opened) in numbered]
        return _search_shards(shards, prepared)


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Candidate keys with their scores. NaN means that an index has no score."""

    keys: Keys
    lexical: Scores
    semantic: Scores

    @classmethod
    def concatenate(cls, parts: Sequence[_Candidates]) -> _Candidates:
        if len(parts) < 2:
            return parts[0] if parts else cls(*_EMPTY, _EMPTY[1])
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))

    def take(self, places: NDArray[np.intp]) -> _Candidates:
        return _Candidates(self.keys[places], self.lexical[places], self.semantic[places])

    def blend(self, shards: Sequence[_Shard], prepared: PreparedSearch, chunks: Mapping[int, _ChunkRow]) -> Scores:
        """Return the similarities of the candidates, blended with those of their neighbours in continuous text."""
        similarities = dict[int, float]()
        for shard in shards:
            own = [chunk for chunk in chunks.values() if chunk.key % shard.count == shard.number]
            similarities |= shard.compute_neighbour_similarities(prepared, own)
        neighbours = np.array([similarities.get(key, np.nan) for key in self.keys.tolist()])
        blended = self.semantic + NEIGHBOUR_WEIGHT * (neighbours - self.semantic)
        return np.where(np.isnan(blended), self.semantic, blended)


@dataclass(frozen=True, slots=True)
class _Shard:
    """Store in a search over several. Its keys are mapped to keys that are unique among the stores."""

    store: TenantStore
    database: sqlite3.Connection
    number: int
    count: int
    max_count: int
    """Number of entries in the largest store."""

    def to_global(self, keys: Any) -> Any:
        return keys * self.count + self.number

    def to_local(self, keys: Keys) -> Keys:
        own: Keys = keys[keys % self.count == self.number] // self.count
        return own

    def find_candidates(self, prepared: PreparedSearch, min_score: float) -> _Candidates:
        """Return the lexical and semantic candidates, or none if no lexical score reaches `min_score`."""
        where = self._build_filter(prepared)
        try:
            lexical_keys, lexical = self._search_lexical(prepared, where)
            if lexical.max(initial=0.0) < min_score:
                return _Candidates(*_EMPTY, _EMPTY[1])
            semantic_keys, cosines = self._search_semantic(prepared, where)
            if prepared.vector is None or not len(semantic_keys):
                return _Candidates(self.to_global(lexical_keys), lexical, np.full(len(lexical_keys), np.nan))
            similarity = self.store.vectors.compute_cosines(prepared.vector, lexical_keys)
        except IndexDamaged as error:
            raise EngineError(f"the index is damaged ({error}); run `refdesk reindex` to rebuild it") from error
        known = set(lexical_keys.tolist())
        new = [place for place, key in enumerate(semantic_keys.tolist()) if key not in known]
        new_keys, new_lexical = self.to_global(semantic_keys[new]), np.full(len(new), np.nan)
        if len(lexical_keys) == prepared.scale(LEXICAL_CANDIDATES):
            # A short query occurs in many more chunks than were returned. Their scores are at most the lowest of these.
            shares = self._estimate_coverages(prepared, new_keys[:ESTIMATED_CANDIDATES])
            new_lexical[: len(shares)] = lexical.min() * np.square(shares)
        return _Candidates(
            np.concatenate([self.to_global(lexical_keys), new_keys]),
            np.concatenate([lexical, new_lexical]),
            np.concatenate([similarity, cosines[new]], dtype=np.float64),
        )

    def _estimate_coverages(self, prepared: PreparedSearch, keys: Keys) -> Scores:
        """Return the share of the query terms in each chunk. NaN for chunks deleted meanwhile."""
        candidates = {chunk.key: chunk.to_candidate(0.0, 0.0) for chunk in self.read_chunks(keys)}
        shares = ranking.compute_coverages(prepared.search.query, list(candidates.values()))
        found = dict(zip(candidates, shares, strict=True))
        return np.array([found.get(key, np.nan) for key in keys.tolist()])

    def _search_lexical(self, prepared: PreparedSearch, where: Mapping[str, Any]) -> tuple[Keys, Scores]:
        """Search the full-text index, with scores scaled to the size of the largest store.

        Rare terms score higher, and in a store of one document no term is rare: its scores would always lose against
        those of a larger store.
        """
        index = self.store.fulltext
        index.refresh()
        if prepared.search.mode == "semantic":
            return _EMPTY
        keys, scores = index.search(prepared.search.query, prepared.scale(LEXICAL_CANDIDATES), **where)
        return keys, scores * self._size_factor

    @property
    def _size_factor(self) -> float:
        return log(self.max_count + 2) / log(self.store.fulltext.count + 2)

    def compute_highest_score(self, query: str) -> float:
        """Return the highest possible lexical score."""
        return self.store.fulltext.compute_highest_score(query) * self._size_factor

    def _search_semantic(self, prepared: PreparedSearch, where: Mapping[str, Any]) -> tuple[Keys, NDArray[np.float32]]:
        index = self.store.vectors
        index.refresh()
        if prepared.vector is None or not self.is_embedded_by(prepared):
            return _EMPTY
        return index.search(prepared.vector, prepared.scale(SEMANTIC_CANDIDATES), **where)

    def is_embedded_by(self, prepared: PreparedSearch) -> bool:
        """Whether the store's vectors are from the same model as the query vector."""
        return self.store.vectors.model == prepared.model

    def _build_filter(self, prepared: PreparedSearch) -> dict[str, Any]:
        """Return the keys of the allowed collections and documents. None means all."""
        documents = None
        if prepared.condition is not None:
            documents = self.store.find_documents(self.database, prepared.condition)
        collections = _find_collection_keys(self.database, prepared.search.collections)
        return {"collections": collections, "documents": documents}

    def read_chunks(self, keys: Keys) -> Iterator[_ChunkRow]:
        """Yield the rows of chunks. Chunks deleted meanwhile are omitted."""
        own = self.to_local(keys).tolist()
        rows = self.database.execute(
            "SELECT k.key * ? + ?, k.document * ? + ?, k.section, k.path, k.text, k.ordinal, k.anchors, k.page, "
            f"{INFO_COLUMNS} FROM chunks k JOIN documents d ON d.key = k.document "
            f"JOIN collections c ON c.key = d.collection WHERE k.key IN ({', '.join('?' * len(own))})",
            (self.count, self.number, self.count, self.number, *own),
        )
        for key, document, section, path, text, ordinal, anchors, page, *info in rows:
            yield _ChunkRow(key, document, section, path, text, ordinal, anchors, page, info)

    def compute_neighbour_similarities(self, prepared: PreparedSearch, chunks: Sequence[_ChunkRow]) -> dict[int, float]:
        """Return the mean cosine of the chunks before and after each chunk of continuous text."""
        if prepared.vector is None or not self.is_embedded_by(prepared):
            return {}
        continuous = {(chunk.document // self.count, chunk.ordinal): chunk for chunk in chunks if chunk.is_continuous}
        if not continuous:
            return {}
        places = {(document, ordinal + step) for document, ordinal in continuous for step in (-1, 1)}
        rows = list(self._read_places("document, ordinal, section, key", places))
        cosines = self.store.vectors.compute_cosines(prepared.vector, np.array([row[-1] for row in rows], np.int64))
        found: dict[int, list[float]] = {}
        for (document, ordinal, section, _), cosine in zip(rows, cosines.tolist(), strict=True):
            for step in (-1, 1):
                chunk = continuous.get((document, ordinal + step))
                if chunk is not None and chunk.section == section:
                    found.setdefault(chunk.key, []).append(cosine)
        return {key: fmean(values) for key, values in found.items()}

    def read_context(self, chunks: Sequence[_ChunkRow], count: int) -> Iterator[tuple[tuple[int, int], Passage]]:
        """Yield the chunks around some others, by document key and position."""
        places = {
            (chunk.document // self.count, ordinal): chunk.info[0]
            for chunk in chunks
            for ordinal in range(chunk.ordinal - count, chunk.ordinal + count + 1)
        }
        rows = self._read_places("document, ordinal, section, path, page, text", places)
        for document, ordinal, section, path, page, text in rows:
            id = f"{places[document, ordinal]}#c{ordinal}"
            key = document * self.count + self.number, ordinal
            yield key, Passage(id, section, tuple(orjson.loads(path)), page, text)

    def _read_places(self, columns: str, places: Collection[tuple[int, int]]) -> Iterator[tuple[Any, ...]]:
        """Read the chunks at some positions in their documents.

        A join that looks each of them up: for `(document, ordinal) IN (VALUES …)`, SQLite scans the whole table.
        """
        return self.database.execute(
            f"WITH places (document, ordinal) AS (VALUES {', '.join(['(?, ?)'] * len(places))}) "
            f"SELECT {columns} FROM places CROSS JOIN chunks USING (document, ordinal)",
            [value for place in places for value in place],
        )


_EMPTY: tuple[Any, Any] = np.empty(0, np.int64), np.empty(0)


class _ChunkRow(NamedTuple):
    """Row of a chunk, with keys that are unique among the stores."""

    key: int
    document: int
    section: str
    path: str
    text: str
    ordinal: int
    anchors: str
    page: int | None
    info: Sequence[Any]
    """Arguments of `build_document_info` for its document."""

    @property
    def is_continuous(self) -> bool:
        """Whether it is directly below the document's title, in no section with a heading of its own."""
        _, _, title, *_ = self.info
        return len(analyzer.build_heading_path(title, orjson.loads(self.path))) <= 1

    def to_candidate(self, fused: float, similarity: float) -> ChunkCandidate:
        _, _, title, version, *_ = self.info
        return ChunkCandidate(
            self.key,
            fused,
            None if isnan(similarity) else similarity,
            self.document,
            self.section,
            tuple(orjson.loads(self.path)),
            title,
            self.text,
            version,
            self.ordinal,
        )

    def to_hit(self, ranked: RankedChunk) -> Hit:
        document = build_document_info(*self.info)
        anchors = tuple(orjson.loads(self.anchors))
        return Hit(
            document=document,
            chunk_id=f"{document.id}#c{self.ordinal}",
            section=self.section,
            path=tuple(orjson.loads(self.path)),
            page=self.page,
            text=self.text,
            score=round(ranked.score, 4),
            base_score=round(ranked.base_score, 4),
            anchor=anchors[-1] if anchors else "",
            anchors=tuple(anchor for anchor in anchors if anchor),
        )


def _search_shards(shards: Sequence[_Shard], prepared: PreparedSearch) -> list[Hit]:
    search = prepared.search
    shards, found = _collect_candidates(shards, prepared)
    scores = [shard.compute_highest_score(search.query) for shard in shards] if prepared.is_english else []
    highest = max(scores, default=0.0) or None
    fuse = partial(ranking.fuse, weight=prepared.lexical_weight, highest=highest)
    fused = fuse(found.lexical, found.semantic)
    found = found.take(ranking.select_top(found.keys, fused, max(RERANKED, 2 * search.limit)))
    chunks = {chunk.key: chunk for shard in shards for chunk in shard.read_chunks(found.keys)}
    blended = found.blend(shards, prepared, chunks)
    fused = fuse(found.lexical, blended)
    scored = zip(found.keys.tolist(), fused.tolist(), found.semantic.tolist(), strict=True)
    candidates = [chunks[key].to_candidate(score, similarity) for key, score, similarity in scored if key in chunks]
    best = [(chunks[one.key], one) for one in ranking.rank(search.query, candidates, search.limit)]
    if not search.context:
        return [chunk.to_hit(ranked) for chunk, ranked in best]
    return list(_add_context(shards, best, search.context))


def _add_context(shards: Sequence[_Shard], best: Sequence[tuple[_ChunkRow, RankedChunk]], count: int) -> Iterator[Hit]:
    around = dict[tuple[int, int], Passage]()
    for shard in shards:
        if own := [chunk for chunk, _ in best if chunk.key % shard.count == shard.number]:
            around |= shard.read_context(own, count)
    for chunk, ranked in best:
        places = ((chunk.document, ordinal) for ordinal in range(chunk.ordinal - count, chunk.ordinal + count + 1))
        yield replace(chunk.to_hit(ranked), context=tuple(around[place] for place in places if place in around))


def _collect_candidates(shards: Sequence[_Shard], prepared: PreparedSearch) -> tuple[list[_Shard], _Candidates]:
    """Return the shards that have candidates, and all candidates."""
    parts, best_score = list[tuple[_Shard, _Candidates]](), 0.0
    for shard in shards:
        part = shard.find_candidates(prepared, SHARED_MIN_SHARE * best_score if shard.store.is_shared else 0.0)
        best_score = max(best_score, np.fmax.reduce(part.lexical, initial=0.0))
        if len(part.keys):
            parts.append((shard, part))
    return [shard for shard, _ in parts], _Candidates.concatenate([part for _, part in parts])
