"""Hybrid search over stores: candidates by words and by meaning, fused, looked at, and one of each section kept."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import log
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from refdesk.engines.embedded import ranking
from refdesk.engines.embedded.damage import IndexDamaged
from refdesk.engines.embedded.embedding.port import Embedder
from refdesk.engines.embedded.filters import Condition, compile_filter
from refdesk.engines.embedded.ranking import Candidate, Ranked
from refdesk.engines.embedded.rows import DOCUMENT_COLUMNS, document_info, named
from refdesk.engines.embedded.store import TenantStore
from refdesk.engines.port import Hit, Search
from refdesk.errors import DependencyError, EngineError

CANDIDATES = 200
"""By words, and by meaning: what is fused."""

LOOKED_AT = 60
"""Of the fused candidates: those whose text is read to rank them; with a limit above that, as many as are wanted."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A search, with what was made of it before any store is looked into."""

    search: Search
    condition: Condition | None
    vector: NDArray[np.float32] | None
    model: str
    """The one that made the vector; an index of another model's vectors is no use to it."""


class Searcher:
    """Searches stores; without an embedding model, by words alone."""

    def __init__(self, embedder: Embedder | None) -> None:
        self._embedder = embedder

    async def search(self, stores: Sequence[TenantStore], search: Search) -> list[Hit]:
        """The best passages of all the stores."""
        wanted = [store for store in stores if _is_wanted(store, search)]
        condition = compile_filter(search.filters) if search.filters else None
        if not wanted:
            return []
        model = self._embedder.name if self._embedder else ""
        asked = Asked(search, condition, await self._vector(search), model)
        return await wanted[0].run(partial(_find_in_all, wanted, asked))

    async def _vector(self, search: Search) -> NDArray[np.float32] | None:
        if self._embedder is None or search.mode == "fulltext":
            return None
        try:
            return await self._embedder.embed_query(search.query)
        except DependencyError:
            if search.mode == "semantic":
                raise
            return None  # a model that is away leaves the words


def _is_wanted(store: TenantStore, search: Search) -> bool:
    return not search.collections or any(entry.id in search.collections for entry in store.sets)


def _find_in_all(stores: Sequence[TenantStore], asked: Asked, database: sqlite3.Connection) -> list[Hit]:
    """Search several stores as if they were one; the connection is the first one's."""
    with ExitStack() as held:
        databases = [database, *(held.enter_context(store.reading()) for store in stores[1:])]
        pairs = enumerate(zip(stores, databases, strict=True))
        return _find([_Place(store, open, number, len(stores)) for number, (store, open) in pairs], asked)


@dataclass(frozen=True, slots=True)
class _Place:
    """A store among those that are searched together; its keys are told apart from the others'."""

    store: TenantStore
    database: sqlite3.Connection
    number: int
    count: int

    def apart(self, key: int) -> int:
        return key * self.count + self.number

    def own(self, keys: Sequence[int]) -> list[int]:
        return [key // self.count for key in keys if key % self.count == self.number]


@dataclass(frozen=True, slots=True)
class _Scores:
    """What is known of the candidates before they are looked at, by their keys."""

    lexical: Mapping[int, float]
    semantic: Mapping[int, float]
    fused: Mapping[int, float]


def _find(places: Sequence[_Place], asked: Asked) -> list[Hit]:
    search = asked.search
    lexical: list[tuple[int, float]] = []
    semantic: list[tuple[int, float]] = []
    most = max(place.store.fulltext.count for place in places)
    for place in places:
        by_words, by_meaning = _candidates(place, asked)
        lexical += _as_among(most, place, by_words)
        semantic += [(place.apart(key), score) for key, score in by_meaning]
    fused = dict(ranking.fuse(lexical, semantic, **_weight(search))[: max(LOOKED_AT, 2 * search.limit)])
    scores = _Scores(dict(lexical), dict(semantic), fused)
    candidates = [candidate for place in places for candidate in _looked_at(place, scores)]
    ranked = ranking.rank(search.query, candidates, search.limit, **_weight(search))
    hits = {key: hit for place in places for key, hit in _hits(place, ranked)}
    return [hits[found.key] for found in ranked if found.key in hits]


def _as_among(most: int, place: _Place, found: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Scores as they might be in a store of as many entries as the largest has.

    A word is worth the more, the rarer it is, and in a store of one document no word is rare: its scores would lose
    against those of any larger store.
    """
    factor = log(most + 2) / log(place.store.fulltext.count + 2)
    return [(place.apart(key), score * factor) for key, score in found]


def _weight(search: Search) -> dict[str, float]:
    return {} if search.semantic_weight is None else {"weight": 1 - search.semantic_weight}


def _candidates(place: _Place, asked: Asked) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """What a store's indexes give, by words and by meaning."""
    store, search = place.store, asked.search
    where = _where(place, asked)
    try:
        store.fulltext.refresh()
        lexical = [] if search.mode == "semantic" else store.fulltext.search(search.query, CANDIDATES, **where)
        store.vectors.refresh()
        if asked.vector is None or store.vectors.model != asked.model:
            return lexical, []
        found = store.vectors.search(asked.vector, CANDIDATES, **where)
        keys = dict.fromkeys(key for key, _ in (*found, *lexical))
        return lexical, list(store.vectors.nearness(asked.vector, list(keys)).items())
    except IndexDamaged as error:
        raise EngineError(f"the index is damaged ({error}); `refdesk reindex` makes it anew") from error


def _where(place: _Place, asked: Asked) -> dict[str, Any]:
    """The collections and documents that may be found; None stands for all."""
    collections = documents = None
    if asked.search.collections:
        marks = ", ".join("?" * len(asked.search.collections))
        rows = place.database.execute(f"SELECT key FROM collections WHERE id IN ({marks})", asked.search.collections)
        collections = [row[0] for row in rows]
    if asked.condition is not None:
        documents = place.store.filtered.documents(place.database, asked.condition)
    return {"collections": collections, "documents": documents}


def _looked_at(place: _Place, scores: _Scores) -> Iterator[Candidate]:
    """A store's candidates with their texts; one that is gone meanwhile is none."""
    keys = place.own(list(scores.fused))
    rows = place.database.execute(
        "SELECT k.key, k.document, k.section, k.path, d.title, k.text, d.version "
        f"FROM chunks k JOIN documents d ON d.key = k.document WHERE k.key IN ({', '.join('?' * len(keys))})",
        keys,
    )
    for own, document, section, path, title, text, version in rows:
        key = place.apart(own)
        lexical, semantic = scores.lexical.get(key), scores.semantic.get(key)
        headings = tuple(orjson.loads(path))
        yield Candidate(
            key, lexical, semantic, place.apart(document), section, headings, title, text, version, scores.fused[key]
        )


def _hits(place: _Place, ranked: Sequence[Ranked]) -> Iterator[tuple[int, Hit]]:
    found = {one.key: one.score for one in ranked}
    keys = place.own(list(found))
    rows = place.database.execute(
        f"SELECT {DOCUMENT_COLUMNS}, k.key AS chunk, k.ordinal, k.section, k.path, k.anchors, k.page, k.text "
        "FROM chunks k JOIN documents d ON d.key = k.document JOIN collections c ON c.key = d.collection "
        f"WHERE k.key IN ({', '.join('?' * len(keys))})",
        keys,
    )
    for row in named(rows):
        key = place.apart(row["chunk"])
        yield key, _hit(row, found[key])


def _hit(row: Mapping[str, Any], score: float) -> Hit:
    anchors = tuple(orjson.loads(row["anchors"]))
    return Hit(
        document=document_info(row),
        chunk_id=f"{row['id']}#c{row['ordinal']}",
        section=row["section"],
        path=tuple(orjson.loads(row["path"])),
        page=row["page"],
        text=row["text"],
        score=round(score, 4),
        anchor=anchors[-1] if anchors else "",
        anchors=tuple(anchor for anchor in anchors if anchor),
    )
