"""The full-text index of one tenant: a folder that tantivy keeps, made from the store and always to be made again.

Each chunk is one entry. Its words are worked out here, not by tantivy, so that a query and a text can never disagree on
what a word is. The number of the last change that a commit holds (its mark) is written by the same commit, as an entry
of its own that no search can find: whatever moment the process dies at, the index opens with words and mark in step.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import cast

import numpy as np
from numpy.typing import NDArray
from tantivy import Document, Index, Occur, Query, Schema, SchemaBuilder, Searcher, TextAnalyzerBuilder, Tokenizer

from refdesk.engines.embedded import analyzer
from refdesk.engines.embedded.damage import IndexDamaged

Keys = NDArray[np.int64]
Scores = NDArray[np.float64]

HEADING_WEIGHT = 0.3
"""What a word in the title or a heading counts, beside what it counts in the text, which begins with them."""

WRITER_BYTES = 32_000_000
"""What the writer may hold in memory before it writes a segment of its own accord."""

MAX_QUERY_WORDS = 48
"""Words of a query that are looked up, the first ones; a page pasted as a query costs no more than a paragraph."""

SHORT_QUERY = 6
"""Up to as many words a query may be a title, and all of its words are looked up in headings too: `Using amcheck`.

What is longer is a sentence, whose single words in a heading say little."""

FREQUENT, FREQUENT_SHARE = 20_000, 0.1
"""A word in so many chunks, and in this share of all, is left out of a query that has others: of a large index it takes
the most time, and says the least about which chunk is meant."""

OTHER_WORDS: Mapping[str, int] = {"body": 3, "heading": 2}
"""So many others there must be for that, by the field that they are looked up in."""

MANY_DOCUMENTS = 2_000
"""A filter of more documents than this is tried on the hits first: to look each of them up takes 1.6 µs."""

SIFTED = 4
"""As many times the wanted hits are sifted then: enough when the filter lets a quarter of them through."""

WORDS_KEPT = 8192
"""Words of queries that are remembered, with how frequent they are: most questions have some that others had."""

_ANALYSER = f"refdesk-words-{analyzer.VERSION}"
_MARK_ROLE = "mark"


@dataclass(frozen=True, slots=True)
class Entry:
    """A chunk, as it is indexed."""

    key: int
    document: int
    collection: int
    title: str
    path: tuple[str, ...]
    text: str


def _schema() -> Schema:
    """The fields. The name of the analyser carries the version of the words, and tantivy compares it when opening.

    Numbers are signed: a term of an unsigned field is not found by the binding's `delete_documents_by_term`.
    """
    builder = SchemaBuilder()
    builder.add_integer_field("key", fast=True)
    builder.add_integer_field("document", indexed=True, fast=True)
    builder.add_integer_field("collection", indexed=True)
    builder.add_text_field("body", tokenizer_name=_ANALYSER, index_option="freq")
    builder.add_text_field("heading", tokenizer_name=_ANALYSER, index_option="freq")
    builder.add_text_field("role", tokenizer_name="raw", index_option="basic")
    builder.add_integer_field("mark", fast=True)
    return builder.build()


SCHEMA = _schema()


@contextmanager
def _checked(folder: Path) -> Iterator[None]:
    """What tantivy says of files that it cannot read, in our words; a panic of its own counts as that too."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise IndexDamaged(f"the full-text index in {folder} cannot be read: {error}") from error
    except BaseException as error:
        # A panic in Rust is no Exception, and its class cannot be imported.
        if type(error).__name__ == "PanicException":
            raise IndexDamaged(f"the full-text index in {folder} is broken: {error}") from error
        raise


class _Commit:
    """What the index held at some moment."""

    def __init__(self, searcher: Searcher) -> None:
        self.searcher = searcher
        self.mark = _mark_of(searcher)
        self.entries = max(searcher.num_docs - 1, 0)
        self._counts: dict[tuple[str, str], int] = {}

    def count(self, field: str, word: str) -> int:
        """The entries that have a word in this field."""
        found = self._counts.get((field, word))
        if found is None:
            found = self._counts[field, word] = self.searcher.doc_freq(field, word)
            if len(self._counts) > WORDS_KEPT:
                self._counts.clear()
        return found


class FullText:
    """The index, to be searched; any number of them may be open in any number of processes."""

    def __init__(self, folder: Path, *, frequent: int = FREQUENT, many_documents: int = MANY_DOCUMENTS) -> None:
        self._folder = folder
        self._frequent = frequent
        self._many_documents = many_documents
        self._meta = str(folder / "meta.json")
        self._index: Index | None = None
        self._commit: _Commit | None = None
        self._seen: tuple[int, int] | None = None
        self._opening = Lock()
        self.refresh()

    @property
    def mark(self) -> int:
        """The last change that the open commit holds; 0 where there is none."""
        return self._commit.mark if self._commit else 0

    @property
    def count(self) -> int:
        """The number of entries that can be found."""
        return self._commit.entries if self._commit else 0

    def refresh(self) -> None:
        """Take the newest commit; costs one look at a file when there is no newer one."""
        try:
            status = os.stat(self._meta)
        except FileNotFoundError:
            self._index = self._commit = self._seen = None
            return
        seen = (status.st_ino, status.st_mtime_ns)
        if seen == self._seen:
            return
        # One thread at a time: the binding does not let two change what is open.
        with self._opening, _checked(self._folder):
            if seen != self._seen:
                self._open()
                self._seen = seen

    def _open(self) -> None:
        if self._index is None:
            self._index = _opened(self._folder)
            self._index.config_reader(reload_policy="manual")
        self._index.reload()
        self._commit = _Commit(self._index.searcher())

    def search(
        self,
        query: str,
        limit: int,
        *,
        collections: Sequence[int] | None = None,
        documents: Sequence[int] | None = None,
    ) -> tuple[Keys, Scores]:
        """The keys of the chunks that hold words of the query, best first, and their scores."""
        # One commit for the whole search: another thread may open a newer one meanwhile, with other addresses.
        asked, commit = analyzer.query_words(query), self._commit
        if commit is None or not asked or limit < 1:
            return np.empty(0, np.int64), np.empty(0)
        with _checked(self._folder):
            searcher, words_asked = commit.searcher, _words_asked(commit, asked, self._frequent)
            wanted = list(_filter("collection", collections))
            if documents is not None and len(documents) > self._many_documents:
                found = _sifted(searcher, _query(words_asked, wanted), limit, frozenset(documents))
                if found is not None:
                    return found
            return _found(searcher, _query(words_asked, [*wanted, *_filter("document", documents)]), limit)


class FullTextWriter:
    """The index, to be changed; one at a time, by the process that holds the tenant's lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with _checked(folder):
            index = Index(SCHEMA, str(folder))
            analyser = TextAnalyzerBuilder(Tokenizer.whitespace()).build()
            index.register_tokenizer(_ANALYSER, analyser)
            self._writer = index.writer(WRITER_BYTES, 1)
            self._writer.garbage_collect_files()
            self.mark = _mark_of(index.searcher())

    def replace(self, document: int, entries: Iterable[Entry]) -> None:
        """Make these the entries of a document; seen by searches after the next commit."""
        with _checked(self._folder):
            self.remove(document)
            for entry in entries:
                self._writer.add_document(_indexed(entry))

    def remove(self, document: int) -> None:
        """Take a document's entries away."""
        self._writer.delete_documents_by_term("document", document)

    def clear(self) -> None:
        """Begin anew: the next commit holds what is added from now on, and nothing else."""
        self._writer.delete_all_documents()
        self.mark = 0

    def commit(self, mark: int) -> None:
        """Keep all that was changed so far, and that it reaches to this change."""
        self._writer.delete_documents_by_term("role", _MARK_ROLE)
        marker = Document()
        marker.add_text("role", _MARK_ROLE)
        marker.add_integer("mark", mark)
        with _checked(self._folder):
            self._writer.add_document(marker)
            self._writer.commit()
        self.mark = mark

    def close(self) -> None:
        """Wait for segments that are being merged, and let go of the folder; what was not committed is lost."""
        self._writer.wait_merging_threads()


def _opened(folder: Path) -> Index:
    index = Index.open(str(folder))
    if index.schema != SCHEMA:
        raise ValueError("it was made by another version")
    return index


def _found(searcher: Searcher, query: Query, limit: int) -> tuple[Keys, Scores]:
    hits = searcher.search(query, limit, count=False).hits
    keys = searcher.fast_field_values("key", [address for _, address in hits])
    return np.array(keys, np.int64), np.array([score for score, _ in hits])


def _sifted(searcher: Searcher, query: Query, limit: int, documents: Set[int]) -> tuple[Keys, Scores] | None:
    """What is left of more hits than are wanted; None where that is too little and there may be others."""
    hits = searcher.search(query, limit * SIFTED, count=False).hits
    addresses = [address for _, address in hits]
    keys, owners = (searcher.fast_field_values(field, addresses) for field in ("key", "document"))
    kept = [place for place, owner in enumerate(owners) if owner in documents][:limit]
    if len(kept) < limit and len(hits) == limit * SIFTED:
        return None
    return np.array(keys, np.int64)[kept], np.array([score for score, _ in hits])[kept]


def _mark_of(searcher: Searcher) -> int:
    found = searcher.search(Query.term_query(SCHEMA, "role", _MARK_ROLE), 1, count=False).hits
    marks = searcher.fast_field_values("mark", [address for _, address in found])
    return cast(int, marks[0]) if marks else 0


def _indexed(entry: Entry) -> Document:
    heading = analyzer.index_words("\n".join(analyzer.context_of(entry.title, entry.path)))
    body = analyzer.index_words(analyzer.plain_text(entry.text))
    document = Document()
    document.add_integer("key", entry.key)
    document.add_integer("document", entry.document)
    document.add_integer("collection", entry.collection)
    document.add_text("heading", " ".join(heading))
    document.add_text("body", " ".join([*heading, *body]))
    return document


@dataclass(frozen=True, slots=True)
class _Words:
    """The words of a query and what each counts, by where they are looked up."""

    body: Mapping[str, float]
    heading: Mapping[str, float]


def _words_asked(commit: _Commit, asked: Mapping[str, float], frequent: int) -> _Words:
    telling = {word: weight for word, weight in asked.items() if not analyzer.is_common(word)} or asked
    body = dict(islice(telling.items(), MAX_QUERY_WORDS))
    heading = asked if len(asked) <= SHORT_QUERY else {}
    return _Words(
        _without_frequent(commit, "body", body, frequent), _without_frequent(commit, "heading", heading, frequent)
    )


def _without_frequent(commit: _Commit, field: str, asked: Mapping[str, float], frequent: int) -> Mapping[str, float]:
    most, others = max(frequent, int(FREQUENT_SHARE * commit.entries)), OTHER_WORDS[field]
    if commit.entries <= most or len(asked) <= others:
        return asked
    counts = {word: commit.count(field, word) for word in asked}
    rare = [word for word, count in counts.items() if 0 < count <= most]
    return {word: weight for word, weight in asked.items() if counts[word] <= most or len(rare) < others}


def _query(asked: _Words, filters: Sequence[Query]) -> Query:
    """Any of the words; the filters let through and add nothing to the score."""
    parts = [(Occur.Should, _term("body", word, weight)) for word, weight in asked.body.items()]
    parts += [(Occur.Should, _term("heading", word, weight * HEADING_WEIGHT)) for word, weight in asked.heading.items()]
    if not filters:
        return Query.boolean_query(parts)
    return Query.boolean_query([(Occur.Must, Query.boolean_query(parts)), *((Occur.Must, one) for one in filters)])


@lru_cache(maxsize=WORDS_KEPT)
def _term(field: str, word: str, weight: float) -> Query:
    return Query.boost_query(Query.term_query(SCHEMA, field, word, "freq"), weight)


def _filter(field: str, allowed: Sequence[int] | None) -> Iterator[Query]:
    if allowed is not None:
        yield Query.const_score_query(Query.term_set_query(SCHEMA, field, allowed), 0.0)
