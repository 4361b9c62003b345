"""The vector index finds what an exact search finds, and a crash at any point leaves the last commit."""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from numpy.typing import NDArray

from refdesk.engines.embedded.fulltext import IndexDamaged
from refdesk.engines.embedded.vectors import Float32s, Row, Vectors, VectorWriter
from refdesk.engines.embedded.vectors.writer import LARGEST_ROWS, SMALL_ROWS, choose_merges

MODEL = "a-model"


def make_clustered(count: int, dimensions: int = 384, seed: int = 1) -> Float32s:
    """Vectors of length one as language models make them: in clusters, off the centre, of few true dimensions."""
    numbers = np.random.default_rng(seed)
    latent = numbers.normal(size=(40, 32))[numbers.integers(0, 40, count)] + numbers.normal(size=(count, 32))
    spread = np.random.default_rng(0).normal(size=(32, dimensions))
    vectors = np.asarray(latent @ spread + numbers.normal(size=(count, dimensions)) + 2, np.float32)
    lengths: Float32s = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / lengths


def rows(vectors: Float32s, first: int = 0, per_document: int = 10, per_collection: int = 1000) -> list[Row]:
    """A row for each vector: its key, and documents and collections of so many rows."""
    keys = range(first, first + len(vectors))
    return [Row(k, k // per_document, k // per_collection, v) for k, v in zip(keys, vectors, strict=True)]


def build(folder: Path, batches: Iterable[Sequence[Row]], dimensions: int = 384) -> VectorWriter:
    """An index in which each batch was committed."""
    writer = VectorWriter(folder, MODEL, dimensions)
    for batch in batches:
        writer.add(batch)
        writer.commit(writer.mark + 1)
    return writer


def in_batches(every: Sequence[Row], size: int) -> list[Sequence[Row]]:
    return [every[start : start + size] for start in range(0, len(every), size)]


def exact(vectors: Float32s, query: Float32s, limit: int, allowed: Iterable[int] | None = None) -> list[int]:
    """The keys that a search without any shortcut finds."""
    keys = np.arange(len(vectors)) if allowed is None else np.array(sorted(allowed))
    return [int(key) for key in keys[np.argsort(-(vectors[keys] @ query))[:limit]]]


def keys(found: tuple[NDArray[np.int64], NDArray[np.float32]]) -> list[int]:
    return list(found[0].tolist())


def everything(folder: Path) -> list[int]:
    """The keys that are in the index."""
    vectors = Vectors(folder)
    dimensions = 8
    return sorted(keys(vectors.search(np.ones(dimensions, np.float32), 10_000)))


def small(first: int, count: int = 10) -> list[Row]:
    return rows(make_clustered(count, 8, seed=first), first)


def test_an_index_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    vectors = Vectors(tmp_path / "none")
    assert (vectors.mark, vectors.count, vectors.model) == (0, 0, "")
    assert keys(vectors.search(np.ones(8, np.float32), 10)) == []


@pytest.mark.parametrize("dimensions", [3, 64, 100, 384, 1536])
def test_a_vector_finds_itself_with_its_cosine(tmp_path: Path, dimensions: int) -> None:
    vectors = make_clustered(2000, dimensions)
    build(tmp_path, in_batches(rows(vectors), 700), dimensions)
    index = Vectors(tmp_path)
    assert (index.mark, index.count, index.model) == (3, 2000, MODEL)
    for key in (0, 999, 1999):
        found = index.search(vectors[key], 3)
        assert key in keys(found)
        assert found[1].tolist() == sorted(found[1].tolist(), reverse=True)
        assert all(
            score == pytest.approx(float(vectors[k] @ vectors[key]), abs=0.02) for k, score in zip(*found, strict=True)
        )


def test_nearly_all_of_the_nearest_are_found(tmp_path: Path) -> None:
    vectors, queries = np.split(make_clustered(12_050), [12_000])
    build(tmp_path, in_batches(rows(vectors), 5000))
    index = Vectors(tmp_path)
    hits = [len(set(exact(vectors, query, 10)) & set(keys(index.search(query, 10)))) for query in queries]
    assert np.mean(hits) >= 9.5


def test_only_what_a_filter_allows_is_found_and_nearly_all_of_it(tmp_path: Path) -> None:
    vectors, queries = np.split(make_clustered(12_020), [12_000])
    build(tmp_path, in_batches(rows(vectors), 5000))
    index = Vectors(tmp_path)
    few, many = [3, 700, 1199, 10**12], [key for key in range(1200) if key % 3]
    allowed = {
        "few": {key for key in range(12_000) if key // 10 in few},
        "many": {key for key in range(12_000) if key // 10 in many},
        "collections": set(range(2000, 3000)) | set(range(7000, 11_000)),
        "both": {key for key in range(2000, 3000) if key // 10 in many},
    }
    for query in queries:
        found = {
            "few": index.search(query, 10, documents=few),
            "many": index.search(query, 10, documents=many),
            "collections": index.search(query, 10, collections=[9, 2, 7, 8, 10, 99]),
            "both": index.search(query, 10, collections=[2], documents=many),
        }
        for name, hits in found.items():
            assert set(keys(hits)) <= allowed[name]
            assert len(set(keys(hits)) & set(exact(vectors, query, 10, allowed[name]))) >= 8, name


def test_how_near_chunks_are_is_looked_up(tmp_path: Path) -> None:
    vectors = make_clustered(3000)
    build(tmp_path, in_batches(rows(vectors, per_document=10), 700))
    index, wanted = Vectors(tmp_path), np.array([2999, 5, 1700, 1701, 777_777])
    cosine = vectors @ vectors[5]
    cosines = index.compute_cosines(vectors[5], wanted)
    assert cosines.tolist() == pytest.approx([*cosine[wanted[:4]], math.nan], abs=0.02, nan_ok=True)
    assert np.isnan(Vectors(tmp_path / "none").compute_cosines(vectors[5], np.array([5]))).all()


@pytest.mark.slow
def test_nearly_all_of_the_nearest_are_found_in_a_large_index(tmp_path: Path) -> None:
    count, dimensions = 50_000, 192
    vectors, queries = np.split(make_clustered(count + 30, dimensions), [count])
    writer = build(tmp_path, [rows(vectors, per_document=100)], dimensions)
    for document in range(0, count // 100, 10):
        writer.remove(document)
    writer.commit(2)
    alive = [key for key in range(count) if key // 100 % 10]
    index, found = Vectors(tmp_path), 0
    for query in queries:
        hits = keys(index.search(query, 10))
        assert set(hits) <= set(alive)
        found += len(set(hits) & set(exact(vectors, query, 10, alive)))
    assert found >= 0.97 * 10 * len(queries)


def test_a_filter_that_names_nothing_finds_nothing(tmp_path: Path) -> None:
    build(tmp_path, [small(0)], 8)
    assert keys(Vectors(tmp_path).search(np.ones(8, np.float32), 10, documents=[])) == []
    assert keys(Vectors(tmp_path).search(np.ones(8, np.float32), 10, collections=[77])) == []


def test_rows_that_are_all_alike_are_bounded_and_found(tmp_path: Path) -> None:
    alike = np.tile(make_clustered(1), (20_000, 1))
    build(tmp_path, [rows(alike)])
    found = Vectors(tmp_path).search(alike[0], 10)
    assert len(set(keys(found))) == 10
    assert found[1].tolist() == pytest.approx([1] * 10, abs=0.01)


def test_removed_versions_of_a_document_do_not_crowd_out_its_neighbours(tmp_path: Path) -> None:
    vectors = make_clustered(6000)
    writer = build(tmp_path, [rows(vectors)])
    crowd = np.tile(vectors[4321], (500, 1))
    for version in range(3):
        writer.remove(10**6)
        writer.add([Row(10_000 + version * 500 + n, 10**6, 1, vector) for n, vector in enumerate(crowd)])
        writer.commit(2 + version)
    writer.remove(10**6)
    writer.commit(9)
    index = Vectors(tmp_path)
    assert index.count == 6000
    assert keys(index.search(vectors[4321], 5))[0] == 4321
    assert max(keys(index.search(vectors[4321], 100))) < 6000


def test_a_document_can_be_removed_and_added_anew_in_one_commit(tmp_path: Path) -> None:
    writer = build(tmp_path, [small(0, 30)], 8)
    writer.remove(1)
    writer.add([Row(50, 1, 0, make_clustered(1, 8)[0])])
    writer.add([Row(60, 2, 0, make_clustered(1, 8)[0])])
    writer.commit(2)
    assert everything(tmp_path) == [*range(10), *range(20, 30), 50, 60]


def test_readers_see_a_commit_when_they_refresh_and_not_before(tmp_path: Path) -> None:
    reader = Vectors(tmp_path)
    writer = build(tmp_path, [small(0)], 8)
    assert reader.count == 0
    reader.refresh()
    writer.add(small(10))
    assert (reader.count, reader.mark) == (10, 1)
    for mark in range(2, 6):
        writer.commit(mark)
        reader.refresh()
        assert (reader.count, reader.mark) == (20, mark)


def test_a_reader_goes_on_with_segments_that_a_merge_removed(tmp_path: Path) -> None:
    writer = build(tmp_path, [small(0)], 8)
    reader = Vectors(tmp_path)
    before = {path.name for path in tmp_path.glob("*.segment")}
    writer.add(small(10))
    writer.commit(2)
    assert not before & {path.name for path in tmp_path.glob("*.segment")}
    assert sorted(keys(reader.search(np.ones(8, np.float32), 100))) == list(range(10))


def test_what_another_model_made_is_dropped(tmp_path: Path) -> None:
    build(tmp_path, [small(0)], 8)
    reader = Vectors(tmp_path)
    writer = VectorWriter(tmp_path, "another", 16)
    assert writer.mark == 0
    reader.refresh()
    assert (reader.count, reader.model) == (0, "another")
    assert list(tmp_path.glob("*.segment")) == []


def test_a_writer_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    build(tmp_path, [small(0), small(10)], 8)
    writer = VectorWriter(tmp_path, MODEL, 8)
    assert writer.mark == 2
    writer.remove(0)
    writer.commit(3)
    assert everything(tmp_path) == list(range(10, 20))


def test_a_vector_or_query_of_the_wrong_length_is_refused(tmp_path: Path) -> None:
    writer = build(tmp_path, [small(0)], 8)
    with pytest.raises(ValueError, match="shape"):
        writer.add(rows(make_clustered(1, 9)))
    with pytest.raises(ValueError, match="8 dimensions"):
        Vectors(tmp_path).search(np.ones(9, np.float32), 1)


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


@pytest.mark.parametrize("step", range(1, 6))
def test_an_end_at_any_step_of_a_commit_leaves_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    writer = build(tmp_path, [small(0)], 8)
    steps = iter(range(1, 100))

    def count_fsync(descriptor: int) -> None:
        if next(steps) == step:
            raise Killed

    monkeypatch.setattr(os, "fsync", count_fsync)
    writer.remove(0)
    writer.add(small(10))
    with suppress(Killed):
        writer.commit(2)
    monkeypatch.undo()
    mark = Vectors(tmp_path).mark
    assert mark == (1 if step < 4 else 2)
    assert everything(tmp_path) == list(range(10) if mark == 1 else range(10, 20))
    VectorWriter(tmp_path, MODEL, 8)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_commit_that_failed_for_want_of_space_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = build(tmp_path, [small(0)], 8)
    writer.add(small(10))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        writer.commit(2)
    monkeypatch.undo()
    assert everything(tmp_path) == list(range(10))
    assert len(list(tmp_path.iterdir())) == 2
    writer.commit(2)
    assert everything(tmp_path) == list(range(20))


WRITE_UNTIL_KILLED = """
import sys
from pathlib import Path
import numpy as np
from refdesk.engines.embedded.vectors import Row, VectorWriter
writer = VectorWriter(Path(sys.argv[1]), "a-model", 8)
for mark in range(writer.mark + 1, 10**6):
    writer.remove(mark - 3)
    writer.add([Row(mark * 10 + n, mark, 0, np.eye(8, dtype=np.float32)[n]) for n in range(8)])
    writer.commit(mark)
    print(mark, flush=True)
"""


@pytest.mark.slow
def test_a_killed_writer_loses_nothing_that_it_said_was_committed(tmp_path: Path) -> None:
    for kill in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITE_UNTIL_KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        with child:
            assert child.stdout is not None
            said = [int(child.stdout.readline()) for _ in range(random.randint(3, 30))]
            child.send_signal(signal.SIGKILL)
        mark = Vectors(tmp_path).mark
        assert mark >= said[-1] > kill
        assert everything(tmp_path) == [m * 10 + n for m in range(max(1, mark - 2), mark + 1) for n in range(8)]


def damage_index(folder: Path, damage: str) -> None:
    segment = next(folder.glob("*.segment"))
    data = bytearray(segment.read_bytes())
    if damage == "missing":
        segment.unlink()
    elif damage == "empty":
        segment.write_bytes(b"")
    elif damage == "short":
        segment.write_bytes(data[:-1])
    elif damage == "header":
        segment.write_bytes(b"x" + data[1:])
    elif damage == "table":
        data[130] ^= 1
        segment.write_bytes(data)
    elif damage == "manifest":
        (folder / "manifest").write_bytes((folder / "manifest").read_bytes().replace(b'"mark":1', b'"mark":7'))
    elif damage == "no manifest":
        (folder / "manifest").write_bytes(b"")


@pytest.mark.parametrize("damage", ["missing", "empty", "short", "header", "table", "manifest", "no manifest"])
def test_damage_is_noticed_on_opening_and_mended_by_building_anew(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "vectors"
    build(folder, [small(0)], 8)
    damage_index(folder, damage)
    with pytest.raises(IndexDamaged):
        Vectors(folder)
    with pytest.raises(IndexDamaged):
        VectorWriter(folder, MODEL, 8)
    shutil.rmtree(folder)
    build(folder, [small(0)], 8)
    assert everything(folder) == list(range(10))


class Histories(RuleBasedStateMachine):
    """Whatever is added, removed, committed and reopened: the index holds what a plain dictionary holds."""

    @initialize()
    def open(self) -> None:
        self.folder = Path(mkdtemp(dir=TEMPORARY[0]))
        self.writer = VectorWriter(self.folder, MODEL, 8)
        self.held: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self.next = 0

    @rule(document=st.integers(0, 5), count=st.integers(1, 4))
    def add(self, document: int, count: int) -> None:
        new = range(self.next, self.next + count)
        self.writer.add([Row(key, document, document % 2, make_clustered(1, 8, key)[0]) for key in new])
        self.held |= dict.fromkeys(new, document)
        self.next += count

    @rule(document=st.integers(0, 5))
    def remove(self, document: int) -> None:
        self.writer.remove(document)
        self.held = {key: owner for key, owner in self.held.items() if owner != document}

    @rule()
    def commit(self) -> None:
        self.writer.commit(self.writer.mark + 1)
        self.committed = dict(self.held)

    @rule()
    def reopen(self) -> None:
        self.writer = VectorWriter(self.folder, MODEL, 8)
        self.held = dict(self.committed)

    @invariant()
    def holds_what_was_committed(self) -> None:
        vectors = Vectors(self.folder)
        query = np.ones(8, np.float32)
        assert vectors.count == len(self.committed)
        assert sorted(keys(vectors.search(query, 1000))) == sorted(self.committed)
        odd = sorted(key for key, document in self.committed.items() if document % 2)
        assert sorted(keys(vectors.search(query, 1000, collections=[1]))) == odd


TEMPORARY: list[Path] = []


def test_the_index_holds_what_its_history_says(tmp_path: Path) -> None:
    TEMPORARY[:] = [tmp_path]
    run_state_machine_as_test(Histories, settings=settings(max_examples=15, stateful_step_count=15, deadline=None))


@given(st.lists(st.integers(1, 9000), min_size=1, max_size=50))
def test_segments_stay_few_and_rows_are_rarely_written_again(commits: list[int]) -> None:
    sizes: list[int] = []
    written = 0
    for fresh in commits:
        chosen = choose_merges(sizes, sizes, fresh)
        merged = fresh + sum(sizes[number] for number in chosen)
        sizes = [rows for number, rows in enumerate(sizes) if number not in chosen] + [merged]
        written += merged
    total = sum(commits)
    growth = max(1.0, total / SMALL_ROWS)
    assert sum(sizes) == total
    assert len(sizes) <= math.log(growth, 3) + 2
    assert written <= total * (math.log(growth, 1.5) + 2) + len(commits) * 2 * SMALL_ROWS


def test_no_merge_makes_a_segment_larger_than_the_largest() -> None:
    assert choose_merges([LARGEST_ROWS - 5, 3], [LARGEST_ROWS - 5, 3], 3) == [1]


def test_a_segment_of_which_much_was_removed_is_written_again() -> None:
    assert choose_merges([390_000, 70_000], [400_000, 100_000], 0) == [1]
    assert choose_merges([100_000], [100_000], 0) == []
    assert choose_merges([0], [10], 0) == [0]
