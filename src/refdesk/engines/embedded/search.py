"""Hybrid search over stores: candidates by words and by meaning, fused, looked at, and one of each section kept."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import isnan, log
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from refdesk.engines.base import Hit, Search
from refdesk.engines.embedded import ranking
from refdesk.engines.embedded.damage import IndexDamaged
from refdesk.engines.embedded.embedding.base import Embedder
from refdesk.engines.embedded.embedding.local import LocalEmbedder
from refdesk.engines.embedded.ranking import Candidate
from refdesk.engines.embedded.tenant_store import TenantStore
from refdesk.engines.storage.filters import Condition, compile_filter
from refdesk.engines.storage.rows import INFO_COLUMNS, document_info
from refdesk.errors import DependencyError, EngineError
from refdesk.resilience.partial_results import fell_short

WORDED, NEAR = 60, 40
"""Candidates by words and by meaning; twice as many hardly change the results on the development sets."""

SURROUNDED = 40
"""Of the fused candidates: those for which the chunks beside them are looked at as well."""

SURROUNDINGS = 0.4
"""How much of a chunk's nearness is that of the chunks beside it in its document: an answer seldom stands alone."""

USUAL_LIMIT = 15
"""For so many results these are enough; for more, there are more of each in proportion."""

LOOKED_AT = 20
"""Of those: the ones whose text is read to rank them; twice as many as are wanted where these are more, as of several
in one section only one is kept."""

SHARED_LEAST = 0.7
"""What comes with Refdesk is looked into further only where its words speak for it, at least this much as those of the
tenant's own documents: to most questions about these it has nothing to say."""

Keys = NDArray[np.int64]
Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Asked:
    """A search, with what was made of it before any store is looked into."""

    search: Search
    condition: Condition | None
    vector: NDArray[np.float32] | None = None
    model: str = ""
    """The one that made the vector; an index of another model's vectors is no use to it."""

    def enough(self, usual: int) -> int:
        """How many candidates are to be had, where so many are usual."""
        return -(-usual * max(self.search.limit, USUAL_LIMIT) // USUAL_LIMIT)

    @property
    def weight(self) -> float:
        """What words count in it."""
        given = self.search.semantic_weight
        return ranking.LEXICAL_WEIGHT if given is None else 1 - given


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
        embedder = None if search.mode == "fulltext" else self._embedder
        if embedder is None:
            return await wanted[0].search(partial(_find_in_all, wanted, Asked(search, condition)))
        if isinstance(embedder, LocalEmbedder):
            return await wanted[0].search(partial(_embed_and_find, wanted, Asked(search, condition), embedder))
        asked = Asked(search, condition, await _vector(embedder, search), embedder.name)
        return await wanted[0].search(partial(_find_in_all, wanted, asked))


async def _vector(embedder: Embedder, search: Search) -> NDArray[np.float32] | None:
    try:
        return await embedder.embed_query(search.query)
    except DependencyError:
        if search.mode == "semantic":
            raise
        fell_short()
        return None  # a model that is away leaves the words


def _embed_and_find(
    stores: Sequence[TenantStore], asked: Asked, embedder: LocalEmbedder, database: sqlite3.Connection
) -> list[Hit]:
    """All of it in one thread: to change threads takes longer than some parts of a search."""
    vector = embedder.embed_query_now(asked.search.query)
    return _find_in_all(stores, replace(asked, vector=vector, model=embedder.name), database)


def _is_wanted(store: TenantStore, search: Search) -> bool:
    return not search.collections or any(entry.id in search.collections for entry in store.sets)


def _find_in_all(stores: Sequence[TenantStore], asked: Asked, database: sqlite3.Connection) -> list[Hit]:
    """Search several stores as if they were one; the connection is the first one's."""
    with ExitStack() as held:
        databases = [database, *(held.enter_context(store.reading()) for store in stores[1:])]
        most = max(store.fulltext.count for store in stores)
        numbered = enumerate(zip(stores, databases, strict=True))
        places = [_Place(store, opened, number, len(stores), most) for number, (store, opened) in numbered]
        return _find(places, asked)


@dataclass(frozen=True, slots=True)
class _Found:
    """Candidates, before they are looked at; NaN where an index says nothing of one."""

    keys: Keys
    lexical: Scores
    semantic: Scores

    @classmethod
    def joined(cls, parts: Sequence[_Found]) -> _Found:
        if len(parts) < 2:
            return parts[0] if parts else cls(*_NOTHING, _NOTHING[1])
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))

    def only(self, places: NDArray[np.intp]) -> _Found:
        return _Found(self.keys[places], self.lexical[places], self.semantic[places])

    def best(self, asked: Asked, count: int) -> tuple[_Found, Scores]:
        """The best of them and what they are worth, the best first."""
        fused = ranking.fuse(self.lexical, self.semantic, weight=asked.weight)
        places = ranking.best_of(self.keys, fused, count)
        return self.only(places), fused[places]


@dataclass(frozen=True, slots=True)
class _Place:
    """A store among those that are searched together; its keys are told apart from the others'."""

    store: TenantStore
    database: sqlite3.Connection
    number: int
    count: int
    most: int
    """The entries of the largest store."""

    def apart(self, keys: Any) -> Any:
        return keys * self.count + self.number

    def are_own(self, keys: Keys) -> NDArray[np.bool_]:
        own: NDArray[np.bool_] = keys % self.count == self.number
        return own

    def own(self, keys: Keys) -> Keys:
        return keys[self.are_own(keys)] // self.count

    def found(self, asked: Asked, least: float) -> _Found:
        """What the indexes give, by words and by meaning; nothing, when words do not score the least that they must."""
        where = self._where(asked)
        try:
            worded, lexical = self._by_words(asked, where)
            if lexical.max(initial=0.0) < least:
                return _Found(*_NOTHING, _NOTHING[1])
            near, cosines = self._by_meaning(asked, where)
            if asked.vector is None or not len(near):
                return _Found(self.apart(worded), lexical, np.full(len(worded), np.nan))
            nearness = self.store.vectors.cosines(asked.vector, worded)
        except IndexDamaged as error:
            raise EngineError(f"the index is damaged ({error}); `refdesk reindex` makes it anew") from error
        known = set(worded.tolist())
        new = [place for place, key in enumerate(near.tolist()) if key not in known]
        return _Found(
            self.apart(np.concatenate([worded, near[new]])),
            np.concatenate([lexical, np.full(len(new), np.nan)]),
            np.concatenate([nearness, cosines[new]], dtype=np.float64),
        )

    def _by_words(self, asked: Asked, where: Mapping[str, Any]) -> tuple[Keys, Scores]:
        """Scores are as they might be in a store of as many entries as the largest has.

        A word is worth the more, the rarer it is, and in a store of one document no word is rare: its scores would
        lose against those of any larger store.
        """
        index = self.store.fulltext
        index.refresh()
        if asked.search.mode == "semantic":
            return _NOTHING
        keys, scores = index.search(asked.search.query, asked.enough(WORDED), **where)
        return keys, scores * (log(self.most + 2) / log(index.count + 2))

    def _by_meaning(self, asked: Asked, where: Mapping[str, Any]) -> tuple[Keys, NDArray[np.float32]]:
        index = self.store.vectors
        index.refresh()
        if asked.vector is None or not self.knows(asked):
            return _NOTHING
        return index.search(asked.vector, asked.enough(NEAR), **where)

    def knows(self, asked: Asked) -> bool:
        """Whether what is here was embedded by the model that embedded the query."""
        return self.store.vectors.model == asked.model

    def _where(self, asked: Asked) -> dict[str, Any]:
        """The collections and documents that may be found; None stands for all."""
        collections = documents = None
        if asked.search.collections:
            marks = ", ".join("?" * len(asked.search.collections))
            rows = self.database.execute(f"SELECT key FROM collections WHERE id IN ({marks})", asked.search.collections)
            collections = [row[0] for row in rows]
        if asked.condition is not None:
            documents = self.store.filtered.documents(self.database, asked.condition)
        return {"collections": collections, "documents": documents}

    def surround(self, found: _Found, vector: NDArray[np.float32]) -> None:
        """Mix into the nearness of its candidates that of the chunks beside them."""
        own = np.flatnonzero(self.are_own(found.keys))
        if not len(own):
            return
        near, around = found.semantic[own], self.store.vectors.around(vector, found.keys[own] // self.count)
        found.semantic[own] = np.where(np.isnan(around), near, near + SURROUNDINGS * (around - near))

    def chunks(self, keys: Keys) -> Iterator[_Chunk]:
        """What the record says of chunks; of one that is gone meanwhile, nothing."""
        own = self.own(keys).tolist()
        rows = self.database.execute(
            "SELECT k.key * ? + ?, k.document * ? + ?, k.section, k.path, k.text, k.ordinal, k.anchors, k.page, "
            f"{INFO_COLUMNS} FROM chunks k JOIN documents d ON d.key = k.document "
            f"JOIN collections c ON c.key = d.collection WHERE k.key IN ({', '.join('?' * len(own))})",
            (self.count, self.number, self.count, self.number, *own),
        )
        for key, document, section, path, text, ordinal, anchors, page, *info in rows:
            yield _Chunk(key, document, section, path, text, ordinal, anchors, page, info)


_NOTHING: tuple[Any, Any] = np.empty(0, np.int64), np.empty(0)


class _Chunk(NamedTuple):
    """A chunk's row; keys are told apart from those of other stores."""

    key: int
    document: int
    section: str
    path: str
    text: str
    ordinal: int
    anchors: str
    page: int | None
    info: Sequence[Any]
    """Of its document, as `document_info` takes it."""

    def candidate(self, fused: float, nearness: float) -> Candidate:
        _, _, title, version, *_ = self.info
        return Candidate(
            self.key,
            fused,
            None if isnan(nearness) else nearness,
            self.document,
            self.section,
            tuple(orjson.loads(self.path)),
            title,
            self.text,
            version,
        )

    def hit(self, score: float) -> Hit:
        document = document_info(*self.info)
        anchors = tuple(orjson.loads(self.anchors))
        return Hit(
            document=document,
            chunk_id=f"{document.id}#c{self.ordinal}",
            section=self.section,
            path=tuple(orjson.loads(self.path)),
            page=self.page,
            text=self.text,
            score=round(score, 4),
            anchor=anchors[-1] if anchors else "",
            anchors=tuple(anchor for anchor in anchors if anchor),
        )


def _find(places: Sequence[_Place], asked: Asked) -> list[Hit]:
    search = asked.search
    places, found = _found_in(places, asked)
    if asked.vector is not None:
        found, _ = found.best(asked, asked.enough(SURROUNDED))
        for place in places:
            if place.knows(asked):
                place.surround(found, asked.vector)
    found, fused = found.best(asked, max(LOOKED_AT, 2 * search.limit))
    chunks = {chunk.key: chunk for place in places for chunk in place.chunks(found.keys)}
    scored = zip(found.keys.tolist(), fused.tolist(), found.semantic.tolist(), strict=True)
    candidates = [chunks[key].candidate(score, near) for key, score, near in scored if key in chunks]
    return [chunks[one.key].hit(one.score) for one in ranking.rank(search.query, candidates, search.limit)]


def _found_in(places: Sequence[_Place], asked: Asked) -> tuple[list[_Place], _Found]:
    """The places that have candidates, and the candidates of all of them."""
    parts, most = list[tuple[_Place, _Found]](), 0.0
    for place in places:
        part = place.found(asked, SHARED_LEAST * most if place.store.is_shared else 0.0)
        most = max(most, np.fmax.reduce(part.lexical, initial=0.0))
        if len(part.keys):
            parts.append((place, part))
    return [place for place, _ in parts], _Found.joined([part for _, part in parts])
