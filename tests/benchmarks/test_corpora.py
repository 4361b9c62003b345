"""What the benchmarks of search ask, compare with and count: the same on every machine, and fair to everybody."""

from __future__ import annotations

import mmap
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import orjson
import pytest

from corpora.baselines import any_of, build_fts5, search_fts5
from corpora.documents import shuffled
from corpora.measuring import Stopwatch, evict, memory_of, percentile
from corpora.questions import heading, questions, sentence
from corpora.vectors import likeness
from search import Asked


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "knowledge.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE chunks (key INTEGER PRIMARY KEY, path TEXT, text TEXT)")
        rows = [
            (
                number,
                orjson.dumps(["Manual", f"Chapter {number}"]).decode(),
                f"Chapter {number} is about backups again.",
            )
            for number in range(40)
        ]
        database.executemany("INSERT INTO chunks VALUES (?, ?, ?)", rows)
        database.commit()
    return path


def test_questions_are_headings_and_sentences_in_turn_and_always_the_same(record: Path) -> None:
    with closing(sqlite3.connect(record)) as database:
        asked = questions(database, 10)
        assert questions(database, 10) == asked

    assert len(set(asked)) == 10
    assert [question.startswith("Manual Chapter") for question in asked] == [False, True] * 5


def test_a_heading_of_one_word_is_no_question() -> None:
    assert heading(["Introduction"]) is None
    assert heading(["Part I", "Server", "Backup and Restore"]) == "Server Backup and Restore"


def test_a_question_is_the_first_sentence_that_is_neither_short_nor_marked_up() -> None:
    text = "Note. See `pg_dump` for details of the output. It waits until all other sessions have ended."

    assert sentence(text) == "It waits until all other sessions have ended"
    assert sentence("SELECT 1;") is None


def test_fts5_is_asked_for_any_of_the_words_with_or_without_the_common_ones() -> None:
    assert any_of("How is the index built", all_words=True) == '"how" OR "is" OR "the" OR "index" OR "built"'
    assert any_of("How is the index built", all_words=False) == '"index" OR "built"'
    assert any_of("how to", all_words=False) == '"how" OR "to"'


def test_fts5_is_timed_on_every_question(record: Path, tmp_path: Path) -> None:
    built = build_fts5(record, tmp_path / "fts5.db")
    times = search_fts5(tmp_path / "fts5.db", ["backups", "chapter 7"], all_words=True)

    assert built.bytes > 0
    assert times.calls == 2
    assert 0 < times.cpu_p50 <= times.cpu_p99


def test_a_likeness_is_near_a_real_vector_and_the_same_each_time() -> None:
    known = np.eye(384, dtype=np.float32)[:20]
    made = likeness(known, b"0123456789abcdef")

    assert np.allclose(np.linalg.norm(made), 1)
    assert 0.8 < float((known @ made).max()) < 1
    assert np.array_equal(made, likeness(known, b"0123456789abcdef"))
    assert not np.array_equal(made, likeness(known, b"another hash 16b"))


def test_documents_are_shuffled_alike_wherever_they_are_listed() -> None:
    names = [f"package/page-{number}.html" for number in range(50)]

    assert shuffled(names) == shuffled(names[::-1])
    assert shuffled(names) != names


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(number) for number in range(1, 101)]

    assert (percentile(values, 50), percentile(values, 99)) == (51.0, 100.0)
    assert percentile([3.0], 99) == 3.0


def test_a_stopwatch_counts_work_as_cpu_time() -> None:
    watch = Stopwatch()
    for _ in range(3):
        with watch.timing():
            sum(range(200_000))

    times = watch.times()
    assert times.calls == 3
    assert 0 < times.cpu_p50 <= times.cpu_p99


def test_memory_is_told_apart_by_whose_it_is() -> None:
    before = memory_of("self")
    # Of its own: what the interpreter hands out may be memory that it had before.
    held = mmap.mmap(-1, 50_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(0, len(held), mmap.PAGESIZE):
        held[page] = 1
    after = memory_of("self")

    assert after.anonymous - before.anonymous > 40
    assert after.rss >= after.anonymous
    assert len(held) == 50_000_000


def test_evicting_a_folder_leaves_its_files_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_bytes(b"kept" * 1000)

    evict(tmp_path)

    assert (tmp_path / "inner" / "file").read_bytes() == b"kept" * 1000


def test_no_question_is_measured_that_the_server_has_answered_before() -> None:
    assert Asked(["one"], ["two"], ["three"]).measured == ["one"]
    with pytest.raises(ValueError, match="answered from memory"):
        Asked(["one"], ["one"], ["three"])
