"""Full-text index of one tenant: a tantivy folder derived from the document store.

Each chunk is one entry. Terms are computed by `analyzer`, not by tantivy, so that queries and texts are always analyzed
alike. Each commit includes an entry with the number of the last change it contains (its mark). Index content and mark
therefore stay consistent whenever the process dies.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import log1p
from mmap import ACCESS_READ, mmap
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import cast

import numpy as np
import orjson
from numpy.typing import NDArray
from tantivy import Document, Index, Occur, Query, Schema, SchemaBuilder, Searcher, TextAnalyzerBuilder, Tokenizer

from refdesk.engines import analyzer
from refdesk.errors import EngineError
from refdesk.support.fs import MACHINE_FAULTS

Keys = NDArray[np.int64]
Scores = NDArray[np.float64]

HEADING_WEIGHT = 0.3
"""Additional weight of a term in the title or a heading. The body starts with them as well."""

WRITER_BYTES = 32_000_000
"""Memory the writer may use before it flushes a segment."""

MAX_QUERY_TERMS = 48
"""Maximum number of query terms, from the start: a page pasted as a query costs no more than a paragraph."""

MAX_HEADING_QUERY = 6
"""Queries of up to this many terms may be titles, so all of their terms are also matched in headings: `Using amcheck`.

Longer queries are sentences, whose single words in a heading say little, except identifiers.
"""

FREQUENT_COUNT, FREQUENT_SHARE = 20_000, 0.1
"""Terms in this many chunks, and in this share of all, are dropped from queries that have others. In a large index they
take the most time and discriminate least."""

MIN_OTHER_TERMS: Mapping[str, int] = {"body": 3, "heading": 2}
"""Minimum number of other terms for that, by field."""

MANY_DOCUMENTS = 2_000
"""A filter on more documents than this is applied to the hits first: looking up each document takes 1.6 µs."""

OVERFETCH_FACTOR = 4
"""Multiple of the limit that is fetched for that: enough if the filter matches a quarter of the hits."""

MAX_VERIFIED_FILES = 100_000
FOOTER_MAGIC = 1337
_FOOTER_END = Struct("<II")

TERM_CACHE_SIZE = 8192
"""Query terms cached with their document frequency, since most queries share some with others."""

BM25_K1 = 1.2
"""Term frequency saturation of tantivy's scores."""

_TOKENIZER_NAME = f"refdesk-words-{analyzer.VERSION}"
_MARK_ROLE = "mark"


class IndexDamaged(EngineError):
    """An index file is missing, truncated, corrupt, or of another version. The index is rebuilt."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """Chunk to index."""

    key: int
    document: int
    collection: int
    title: str
    path: tuple[str, ...]
    text: str


def _build_schema() -> Schema:
    """Build the index schema.

    The tokenizer's name includes the analyzer version, which tantivy compares on opening. Integer fields are signed:
    the binding's `delete_documents_by_term` doesn't find terms of unsigned fields.
    """
    builder = SchemaBuilder()
    builder.add_integer_field("key", fast=True)
    builder.add_integer_field("document", indexed=True, fast=True)
    builder.add_integer_field("collection", indexed=True)
    builder.add_text_field("body", tokenizer_name=_TOKENIZER_NAME, index_option="freq")
    builder.add_text_field("heading", tokenizer_name=_TOKENIZER_NAME, index_option="freq")
    builder.add_text_field("role", tokenizer_name="raw", index_option="basic")
    builder.add_integer_field("mark", fast=True)
    return builder.build()


SCHEMA = _build_schema()


@contextmanager
def _translate_errors(folder: Path) -> Iterator[None]:
    """Raise tantivy's errors about unreadable files, panics included, as IndexDamaged."""
    try:
        yield
    except (ValueError, OSError) as error:
        if fault := next((fault for fault in map(os.strerror, MACHINE_FAULTS) if fault in str(error)), None):
            raise EngineError(f"the full-text index in {folder} cannot be opened: {fault}") from error
        raise IndexDamaged(f"the full-text index in {folder} cannot be read: {error}") from error
    except BaseException as error:
        # A Rust panic isn't an Exception, and its class can't be imported.
        if type(error).__name__ == "PanicException":
            raise IndexDamaged(f"the full-text index in {folder} is corrupt: {error}") from error
        raise


_verified: set[tuple[int, int, int]] = set()
"""Files whose checksum was verified by this process, by inode, size and modification time."""


def _verify_checksums(folder: Path) -> None:
    """Raise ValueError if a file that searches read is corrupt. tantivy doesn't verify the checksums that it writes."""
    for segment in orjson.loads((folder / "meta.json").read_bytes())["segments"]:
        kinds = ["term", "idx", "fast", "fieldnorm"]
        if segment["deletes"]:
            kinds.append(f"{segment['deletes']['opstamp']}.del")
        for kind in kinds:
            path = folder / f"{segment['segment_id'].replace('-', '')}.{kind}"
            if not path.exists():
                continue  # tantivy reports it, unless a newer commit has replaced it meanwhile
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                stamp = found.st_ino, found.st_size, found.st_mtime_ns
                if stamp in _verified:
                    continue
                with mmap(file.fileno(), 0, access=ACCESS_READ) as data:
                    if not _has_valid_checksum(data):
                        raise ValueError(f"{path.name} doesn't match its checksum")
            if len(_verified) >= MAX_VERIFIED_FILES:
                _verified.clear()
            _verified.add(stamp)


def _has_valid_checksum(data: mmap) -> bool:
    """Whether a file ends with a footer of tantivy: JSON with the checksum, its length and a magic number."""
    if len(data) < _FOOTER_END.size:
        return False
    length, magic = _FOOTER_END.unpack(data[-_FOOTER_END.size :])
    end = len(data) - _FOOTER_END.size - length
    if magic != FOOTER_MAGIC or end < 0:
        return False
    with memoryview(data) as view, view[:end] as body:
        return bool(zlib.crc32(body) == orjson.loads(data[end : end + length])["crc"])


class _Snapshot:
    """Searcher on one commit of the index."""

    def __init__(self, searcher: Searcher) -> None:
        self.searcher = searcher
        self.mark = _read_mark(searcher)
        self.entries = max(searcher.num_docs - 1, 0)
        self._counts: dict[tuple[str, str], int] = {}

    def count_matches(self, field: str, word: str) -> int:
        """Return the number of entries with a term in this field."""
        found = self._counts.get((field, word))
        if found is None:
            found = self._counts[field, word] = self.searcher.doc_freq(field, word)
            if len(self._counts) > TERM_CACHE_SIZE:
                self._counts.clear()
        return found

    def compute_max_score(self, word: str) -> float:
        """Return the limit of a term's BM25 score in the body; 0 if no entry has it."""
        count = self.count_matches("body", word)
        return (1 + BM25_K1) * log1p((self.searcher.num_docs - count + 0.5) / (count + 0.5)) if count else 0.0


class FullText:
    """Reader of the index. Any number may be open in any number of processes."""

    def __init__(self, folder: Path, *, frequent: int = FREQUENT_COUNT, many_documents: int = MANY_DOCUMENTS) -> None:
        self._folder = folder
        self._frequent = frequent
        self._many_documents = many_documents
        self._meta = str(folder / "meta.json")
        self._index: Index | None = None
        self._snapshot: _Snapshot | None = None
        self._stamp: tuple[int, int] | None = None
        self._open_lock = Lock()
        self.refresh()

    @property
    def mark(self) -> int:
        """Number of the last change in the open commit, or 0."""
        return self._snapshot.mark if self._snapshot else 0

    @property
    def count(self) -> int:
        """Number of searchable entries."""
        return self._snapshot.entries if self._snapshot else 0

    def read_stamp(self) -> tuple[int, int] | None:
        """Return what identifies the newest commit, or None if there is none."""
        try:
            found = os.stat(self._meta)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def refresh(self) -> None:
        """Open the newest commit. Costs one `stat` if there is no newer one."""
        stamp = self.read_stamp()
        if stamp is None:
            self._index = self._snapshot = self._stamp = None
        if stamp == self._stamp:
            return
        # One thread at a time: the binding doesn't allow concurrent changes.
        with self._open_lock, _translate_errors(self._folder):
            if stamp != self._stamp:
                self._open()
                self._stamp = stamp

    def _open(self) -> None:
        if self._index is None:
            index = _open_index(self._folder)
            _verify_checksums(self._folder)
            index.config_reader(reload_policy="manual")
            self._index = index
        self._index.reload()
        self._snapshot = _Snapshot(self._index.searcher())

    @contextmanager
    def _detect_damage(self) -> Iterator[None]:
        """After an error, have the next `refresh` verify the checksums again."""
        try:
            with _translate_errors(self._folder):
                yield
        except IndexDamaged:
            _verified.clear()
            self._index = self._stamp = None
            raise

    def search(
        self,
        query: str,
        limit: int,
        *,
        collections: Sequence[int] | None = None,
        documents: Sequence[int] | None = None,
    ) -> tuple[Keys, Scores]:
        """Return the keys of the chunks that match the query best, and their scores."""
        # One snapshot for the whole search: another thread may open a newer one with other addresses.
        terms, snapshot = analyzer.weigh_query_terms(query), self._snapshot
        if snapshot is None or not terms or limit < 1:
            return np.empty(0, np.int64), np.empty(0)
        with self._detect_damage():
            searcher = snapshot.searcher
            query_terms = _select_terms(snapshot, terms, analyzer.find_name_terms(query), self._frequent)
            filters = list(_build_filters("collection", collections))
            if documents is not None and len(documents) > self._many_documents:
                found = _search_and_filter(searcher, _build_query(query_terms, filters), limit, frozenset(documents))
                if found is not None:
                    return found
            return _search_keys(
                searcher, _build_query(query_terms, [*filters, *_build_filters("document", documents)]), limit
            )

    def compute_highest_score(self, query: str) -> float:
        """Return the score that a chunk would have with countless occurrences of all query terms in the index."""
        terms, snapshot = analyzer.weigh_query_terms(query), self._snapshot
        if snapshot is None or not terms:
            return 0.0
        with self._detect_damage():
            body = _select_terms(snapshot, terms, frozenset(), self._frequent).body
            return sum([weight * snapshot.compute_max_score(word) for word, weight in body.items()])

    def has_term(self, term: str, collections: Sequence[int] | None = None) -> bool:
        """Whether a term occurs in any chunk."""
        if (snapshot := self._snapshot) is None:
            return False
        with self._detect_damage():
            query = _build_query(_QueryTerms({term: 1.0}, {}), list(_build_filters("collection", collections)))
            return bool(snapshot.searcher.search(query, 1, count=False).hits)


class FullTextWriter:
    """Writer of the index. Only one may be open, in the process that holds the tenant's writer lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with _translate_errors(folder):
            index = Index(SCHEMA, str(folder))
            _verify_checksums(folder)
            analyser = TextAnalyzerBuilder(Tokenizer.whitespace()).build()
            index.register_tokenizer(_TOKENIZER_NAME, analyser)
            self._writer = index.writer(WRITER_BYTES, 1)
            self._writer.garbage_collect_files()
            self.mark = _read_mark(index.searcher())

    def replace(self, document: int, entries: Iterable[IndexEntry]) -> None:
        """Replace the entries of a document. Visible after the next commit."""
        with _translate_errors(self._folder):
            self._writer.delete_documents_by_term("document", document)
            for entry in entries:
                self._writer.add_document(_build_document(entry))

    def clear(self) -> None:
        """Delete everything: the next commit only contains what is added from now on."""
        self._writer.delete_all_documents()
        self.mark = 0

    def commit(self, mark: int) -> None:
        """Commit all changes, with the number of the last change they include."""
        self._writer.delete_documents_by_term("role", _MARK_ROLE)
        marker = Document()
        marker.add_text("role", _MARK_ROLE)
        marker.add_integer("mark", mark)
        with _translate_errors(self._folder):
            self._writer.add_document(marker)
            self._writer.commit()
        self.mark = mark

    def close(self) -> None:
        """Wait for running merges and release the folder. Uncommitted changes are lost."""
        self._writer.wait_merging_threads()


def _open_index(folder: Path) -> Index:
    index = Index.open(str(folder))
    if index.schema != SCHEMA:
        raise ValueError("it was written by another version")
    return index


def _search_keys(searcher: Searcher, query: Query, limit: int) -> tuple[Keys, Scores]:
    hits = searcher.search(query, limit, count=False).hits
    keys = searcher.fast_field_values("key", [address for _, address in hits])
    return np.array(keys, np.int64), np.array([score for score, _ in hits])


def _search_and_filter(searcher: Searcher, query: Query, limit: int, documents: Set[int]) -> tuple[Keys, Scores] | None:
    """Search with overfetching and filter the hits. Returns None if too few are left and there may be more."""
    hits = searcher.search(query, limit * OVERFETCH_FACTOR, count=False).hits
    addresses = [address for _, address in hits]
    keys, owners = (searcher.fast_field_values(field, addresses) for field in ("key", "document"))
    matches = [place for place, owner in enumerate(owners) if owner in documents][:limit]
    if len(matches) < limit and len(hits) == limit * OVERFETCH_FACTOR:
        return None
    return np.array(keys, np.int64)[matches], np.array([score for score, _ in hits])[matches]


def _read_mark(searcher: Searcher) -> int:
    found = searcher.search(Query.term_query(SCHEMA, "role", _MARK_ROLE), 1, count=False).hits
    marks = searcher.fast_field_values("mark", [address for _, address in found])
    return cast(int, marks[0]) if marks else 0


def _build_document(entry: IndexEntry) -> Document:
    heading = analyzer.extract_index_terms("\n".join(analyzer.build_heading_path(entry.title, entry.path)))
    body = analyzer.extract_index_terms(analyzer.strip_markdown(entry.text))
    document = Document()
    document.add_integer("key", entry.key)
    document.add_integer("document", entry.document)
    document.add_integer("collection", entry.collection)
    document.add_text("heading", " ".join(heading))
    document.add_text("body", " ".join([*heading, *body]))
    return document


@dataclass(frozen=True, slots=True)
class _QueryTerms:
    """Query terms with their weights, by field."""

    body: Mapping[str, float]
    heading: Mapping[str, float]


def _select_terms(snapshot: _Snapshot, terms: Mapping[str, float], names: Set[str], frequent: int) -> _QueryTerms:
    content_terms = {word: weight for word, weight in terms.items() if not analyzer.is_stop_word(word)} or terms
    body = dict(islice(content_terms.items(), MAX_QUERY_TERMS))
    heading = terms if len(terms) <= MAX_HEADING_QUERY else dict.fromkeys(sorted(names), 1.0)
    return _QueryTerms(
        _drop_frequent(snapshot, "body", body, frequent), _drop_frequent(snapshot, "heading", heading, frequent)
    )


def _drop_frequent(snapshot: _Snapshot, field: str, terms: Mapping[str, float], frequent: int) -> Mapping[str, float]:
    max_count, others = max(frequent, int(FREQUENT_SHARE * snapshot.entries)), MIN_OTHER_TERMS[field]
    if snapshot.entries <= max_count or len(terms) <= others:
        return terms
    counts = {word: snapshot.count_matches(field, word) for word in terms}
    rare = [word for word, count in counts.items() if 0 < count <= max_count]
    return {word: weight for word, weight in terms.items() if counts[word] <= max_count or len(rare) < others}


def _build_query(terms: _QueryTerms, filters: Sequence[Query]) -> Query:
    """Build a query that matches any of the terms. Filters don't affect the score."""
    parts = [(Occur.Should, _build_term("body", word, weight)) for word, weight in terms.body.items()]
    parts += [
        (Occur.Should, _build_term("heading", word, weight * HEADING_WEIGHT)) for word, weight in terms.heading.items()
    ]
    if not filters:
        return Query.boolean_query(parts)
    return Query.boolean_query([(Occur.Must, Query.boolean_query(parts)), *((Occur.Must, one) for one in filters)])


@lru_cache(maxsize=TERM_CACHE_SIZE)
def _build_term(field: str, word: str, weight: float) -> Query:
    return Query.boost_query(Query.term_query(SCHEMA, field, word, "freq"), weight)


def _build_filters(field: str, allowed: Sequence[int] | None) -> Iterator[Query]:
    if allowed is not None:
        yield Query.const_score_query(Query.term_set_query(SCHEMA, field, allowed), 0.0)
