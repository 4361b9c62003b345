"""The full-text index: what it finds, and what is left of it when its process dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tantivy import Index, SchemaBuilder

from refdesk.engines.embedded.fulltext import (
    FREQUENT_COUNT,
    FullText,
    FullTextWriter,
    IndexDamaged,
    IndexEntry,
    _select_terms,
)

PASSAGES = (
    ("Connections", ("Settings",), "max_connections sets how many clients may be connected at once."),
    ("Memory", ("Settings",), "shared_buffers sets how much memory is kept; a connection takes its own."),
    ("pg_dump", ("Options",), "Run `pg_dump -j 4` to dump tables at the same time."),
    ("CREATE INDEX", ("Notes",), "Building it concurrently does not lock out writes."),
    ("Using amcheck", (), "Checks that a tree is what it should be."),
)


@contextmanager
def writing(folder: Path) -> Iterator[FullTextWriter]:
    with closing(FullTextWriter(folder)) as writer:
        yield writer


def entry(key: int, text: str, *, document: int = 1, collection: int = 1, title: str = "") -> IndexEntry:
    return IndexEntry(key, document, collection, title, (), text)


def keys(index: FullText, query: str, limit: int = 10, **filters: list[int]) -> list[int]:
    return list(index.search(query, limit, **filters)[0].tolist())


def scored(index: FullText, query: str, limit: int = 10, **filters: list[int]) -> dict[int, float]:
    found, scores = index.search(query, limit, **filters)
    return dict(zip(found.tolist(), scores.tolist(), strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with writing(tmp_path / "fulltext") as writer:
        for number, (title, path, text) in enumerate(PASSAGES, 1):
            writer.replace(number, [IndexEntry(number * 10, number, 1 + number % 2, title, path, text)])
        writer.commit(7)
    return tmp_path / "fulltext"


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("max_connections", 10),
        ("how many clients can connect", 10),
        ("SHARED_BUFFERS", 20),
        ("pg_dump -j", 30),
        ("create index", 40),
        ("Notes on CREATE INDEX", 40),
        ("using amcheck", 50),
    ],
)
def test_the_passage_that_is_meant_comes_first(folder: Path, query: str, best: int) -> None:
    assert keys(FullText(folder), query)[0] == best


def test_scores_fall_and_no_more_are_given_than_wanted(folder: Path) -> None:
    found = scored(FullText(folder), "settings for memory of a connection", 2)
    best, next_best = found.values()
    assert best > next_best > 0


def test_a_query_of_common_words_alone_is_still_looked_up(folder: Path) -> None:
    assert keys(FullText(folder), "what should it be")[0] == 50


@pytest.mark.parametrize("query", ["", "  ", "?!", "«»", "zzz", "mark", "\x00", '"', "body:memory AND", "a" * 10_000])
def test_odd_queries_find_nothing_or_something_but_never_fail(folder: Path, query: str) -> None:
    assert set(keys(FullText(folder), query)) <= {20}


def test_a_very_long_query_is_answered(folder: Path) -> None:
    assert keys(FullText(folder), "memory " + " ".join(f"word{number}" for number in range(5_000))) == [20]


def test_a_filter_lets_through_what_it_names_and_changes_no_score(folder: Path) -> None:
    index = FullText(folder)
    everything = scored(index, "settings pg_dump index")
    assert set(everything) == {10, 20, 30, 40}
    assert scored(index, "settings pg_dump index", collections=[2]) == pytest.approx(
        {key: everything[key] for key in (10, 30)}
    )
    assert keys(index, "settings pg_dump index", documents=[2]) == [20]
    assert keys(index, "settings pg_dump index", documents=[1, 2], collections=[1]) == [20]
    assert keys(index, "settings pg_dump index", documents=[]) == []
    assert keys(index, "settings pg_dump index", collections=[]) == []


@pytest.mark.parametrize("let_through", [1, 3, 40])
def test_a_filter_of_many_documents_finds_the_same_as_one_of_few(tmp_path: Path, let_through: int) -> None:
    with writing(tmp_path) as writer:
        for document in range(1, 121):
            writer.replace(document, [entry(document, "word " * (document % 7 + 1), document=document)])
        writer.commit(1)
    wanted = [document for document in range(1, 121) if document % let_through == 0]
    looked_up = scored(FullText(tmp_path), "word", 5, documents=wanted)
    assert scored(FullText(tmp_path, many_documents=1), "word", 5, documents=wanted) == looked_up
    assert len(looked_up) == min(5, len(wanted))


def test_of_a_large_index_a_word_that_is_everywhere_is_looked_up_only_where_others_are_few(
    tmp_path: Path,
) -> None:
    with writing(tmp_path) as writer:
        for number in range(1, 41):
            rare = "apple pear quince" if number == 7 else f"w{number}"
            writer.replace(number, [entry(number, f"file {rare}", document=number)])
        writer.commit(1)
    assert len(keys(FullText(tmp_path), "file apple pear quince", 100)) == 40
    large = FullText(tmp_path, frequent=10)
    assert keys(large, "file apple pear quince", 100) == [7]
    assert len(keys(large, "file apple pear nowhere", 100)) == 40


def test_of_a_large_index_a_heading_that_is_everywhere_counts_only_where_others_are_few(
    tmp_path: Path,
) -> None:
    with writing(tmp_path) as writer:
        for number in range(1, 41):
            rare = ("Apple", "Pear") if number == 7 else (f"W{number}",)
            writer.replace(number, [entry(number, "text", document=number, title=" ".join(("Details", *rare)))])
        writer.commit(1)
    index = FullText(tmp_path)
    commit = index._snapshot
    assert commit is not None
    asked = {"detail": 1.0, "appl": 1.0, "pear": 1.0}
    assert _select_terms(commit, asked, frozenset(), FREQUENT_COUNT).heading == asked
    assert _select_terms(commit, asked, frozenset(), 10).heading.keys() == {"appl", "pear"}
    one_unknown = {"detail": 1.0, "appl": 1.0, "nowher": 1.0}
    assert _select_terms(commit, one_unknown, frozenset(), 10).heading.keys() >= {"detail"}


@pytest.mark.slow
def test_threads_that_find_a_new_commit_at_once_all_find_what_is_in_it(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        writer.commit(1)
        index = FullText(tmp_path)
        with ThreadPoolExecutor(8) as threads:
            for mark in range(2, 32):
                writer.replace(mark, [entry(mark, f"word{mark}", document=mark)])
                writer.commit(mark)
                list(threads.map(lambda _: index.refresh(), range(16)))
                assert keys(index, f"word{mark}") == [mark]


def test_a_document_is_replaced_whole_and_removed_whole(folder: Path) -> None:
    with writing(folder) as writer:
        writer.replace(1, [entry(11, "tomatoes", document=1), entry(12, "more tomatoes", document=1)])
        writer.replace(2, [])
        writer.commit(8)
    index = FullText(folder)
    assert sorted(keys(index, "tomatoes clients shared_buffers")) == [11, 12]


def test_replacing_twice_before_a_commit_keeps_the_last(folder: Path) -> None:
    with writing(folder) as writer:
        writer.replace(9, [entry(91, "apples", document=9)])
        writer.replace(9, [entry(92, "pears", document=9)])
        writer.commit(8)
    assert keys(FullText(folder), "apples pears") == [92]


def test_a_reader_sees_a_commit_when_it_refreshes_and_nothing_before(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet"
    index = FullText(folder)
    assert (index.mark, keys(index, "figs")) == (0, [])
    with writing(folder) as writer:
        writer.replace(1, [entry(1, "figs")])
        index.refresh()
        assert keys(index, "figs") == []
        writer.commit(3)
        assert (index.mark, keys(index, "figs")) == (0, [])
        index.refresh()
        assert (index.mark, keys(index, "figs")) == (3, [1])


@pytest.mark.parametrize("looks_between", [True, False])
def test_a_reader_follows_a_folder_that_was_made_anew(folder: Path, tmp_path: Path, looks_between: bool) -> None:
    index = FullText(folder)
    folder.rename(tmp_path / "old")
    if looks_between:
        index.refresh()
        assert (index.mark, keys(index, "memory")) == (0, [])
    with writing(folder) as writer:
        writer.replace(1, [entry(1, "figs")])
        writer.commit(1)
    index.refresh()
    assert (index.mark, keys(index, "figs"), keys(index, "memory")) == (1, [1], [])


def test_what_was_not_committed_is_not_there_when_the_writer_opens_again(folder: Path) -> None:
    with writing(folder) as writer:
        assert writer.mark == 7
        writer.replace(9, [entry(91, "lost", document=9)])
    with writing(folder) as writer:
        assert writer.mark == 7
        writer.commit(8)
    assert keys(FullText(folder), "lost") == []
    assert FullText(folder).mark == 8


@pytest.mark.slow
def test_many_small_commits_leave_few_segments(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        for number in range(1, 25):
            writer.replace(number, [entry(number, "word", document=number)])
            writer.commit(number)
    assert len(list(tmp_path.glob("*.term"))) < 18
    assert len(keys(FullText(tmp_path), "word", 100)) == 24


WRITER = """
import sys
from pathlib import Path
from refdesk.engines.embedded.fulltext import IndexEntry, FullTextWriter

writer = FullTextWriter(Path(sys.argv[1]))
for mark in range(writer.mark + 1, writer.mark + 10_000):
    # Every document is written again and again, so that what is doubled would be seen.
    document = mark % 5 + 1
    writer.replace(document, [IndexEntry(mark * 10 + part, document, 1, "", (), f"word m{mark}") for part in (1, 2)])
    writer.commit(mark)
    print(mark, flush=True)
"""


@pytest.mark.slow
def test_killed_at_any_moment_it_opens_with_its_last_commit(tmp_path: Path) -> None:
    acknowledged = 0
    for round in range(1, 4):
        acknowledged = _killed_after(tmp_path, commits=3 * round, least=acknowledged)
        index = FullText(tmp_path)
        assert acknowledged <= index.mark <= acknowledged + 1
        newest = [max((mark for mark in range(index.mark + 1) if mark % 5 == slot), default=0) for slot in range(5)]
        expected = {mark * 10 + part for mark in newest if mark for part in (1, 2)}
        assert set(keys(index, "word", 100)) == expected


def _killed_after(folder: Path, *, commits: int, least: int) -> int:
    """The last mark that a writer printed before it was killed in the midst of its work."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = least
        for _ in range(commits):
            printed = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        rest = [int(line) for line in process.stdout if line.endswith("\n")]
    return max([printed, *rest])


def test_an_index_of_another_version_is_told(tmp_path: Path) -> None:
    builder = SchemaBuilder()
    builder.add_text_field("text")
    Index(builder.build(), str(tmp_path)).writer(15_000_000, 1).commit()
    with pytest.raises(IndexDamaged, match="another version"):
        FullText(tmp_path)
    with pytest.raises(IndexDamaged):
        FullTextWriter(tmp_path)


def test_an_index_that_is_no_index_is_told(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text("{}")
    with pytest.raises(IndexDamaged):
        FullText(tmp_path)
    with pytest.raises(IndexDamaged):
        FullTextWriter(tmp_path)


@pytest.mark.parametrize("suffix", ["term", "idx", "fast", "fieldnorm"])
@pytest.mark.parametrize("harm", ["missing", "empty", "cut"])
def test_a_file_that_is_lost_or_cut_is_told(folder: Path, suffix: str, harm: str) -> None:
    file = next(folder.glob(f"*.{suffix}"))
    whole = file.read_bytes()
    file.unlink()
    if harm != "missing":
        file.write_bytes(b"" if harm == "empty" else whole[: len(whole) // 2])
    with pytest.raises(IndexDamaged):
        FullText(folder).search("memory", 5)


def test_two_writers_of_one_folder_are_refused(folder: Path) -> None:
    with writing(folder), pytest.raises(IndexDamaged, match="lock"):
        FullTextWriter(folder)
