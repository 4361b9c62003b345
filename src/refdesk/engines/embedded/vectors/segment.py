"""A segment: one file of rows that never changes, read through a memory map.

    header · mean · documents, collections, starts of the runs · keys · scales
    centres, ends, rows and beginnings of the clusters · beginnings of the codes, word by word · their rests, row by row
    8-bit vectors

Everything but codes and vectors is under a checksum that is verified on opening: a wrong bit in a vector
costs a little accuracy, a wrong number of a row would send a search astray.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from refdesk.engines.embedded.damage import IndexDamaged
from refdesk.engines.embedded.vectors.arrays import Flags, Float32s, Numbers, Table, Words, blocks
from refdesk.engines.embedded.vectors.clusters import (
    COARSE_WORDS,
    Clusters,
    cluster_count,
    found_centres,
    nearest_centres,
)
from refdesk.engines.embedded.vectors.codes import cosines, encoded, restored, words_per_code

MAGIC = b"RDVEC003"
_HEADER = struct.Struct("<8sQQII")

ALIGNMENT = 64
"""Bytes: every section begins at a cache line."""

ROWS_AT_A_TIME = 8192
"""How many rows are in memory while a segment is written: about 16 MB of the usual 384 dimensions."""

ENOUGH_FOR_A_MEAN = 1024
"""Rows; the mean of fewer says more about these few than about the documents to come."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where in the file each section is."""

    rows: int
    runs: int
    dimensions: int

    @property
    def sections(self) -> dict[str, tuple[int, str, tuple[int, ...]]]:
        """The offset, type and shape of each section, in the order of the file."""
        offset, sections = _HEADER.size, {}
        for name, kind, shape in self._shapes():
            offset = -(-offset // ALIGNMENT) * ALIGNMENT
            sections[name] = (offset, kind, shape)
            offset += math.prod(shape) * np.dtype(kind).itemsize
        return sections

    @property
    def clusters(self) -> int:
        """How many clusters the rows are in."""
        return cluster_count(self.rows)

    @property
    def size(self) -> int:
        """The size of the file in bytes; the vectors are its end."""
        return self.sections["vectors"][0] + self.rows * self.dimensions

    @property
    def _first_words(self) -> int:
        return min(COARSE_WORDS, words_per_code(self.dimensions))

    def _shapes(self) -> list[tuple[str, str, tuple[int, ...]]]:
        return [
            ("mean", "<f4", (self.dimensions,)),
            ("documents", "<i8", (self.runs,)),
            ("collections", "<i8", (self.runs,)),
            ("starts", "<i8", (self.runs + 1,)),
            ("keys", "<i8", (self.rows,)),
            ("scales", "<f4", (self.rows,)),
            ("centres", "<f4", (self.clusters, self.dimensions)),
            ("ends", "<i8", (self.clusters,)),
            ("clustered", "<i8", (self.rows,)),
            ("clustered_beginnings", "<u8", (self._first_words, self.rows)),
            ("beginnings", "<u8", (self._first_words, self.rows)),
            ("rests", "<u8", (self.rows, words_per_code(self.dimensions) - self._first_words)),
            ("vectors", "|i1", (self.rows, self.dimensions)),
        ]


class Segment:
    """An open segment; its map goes when nobody holds it any more, whether or not the file is still there."""

    def __init__(self, path: Path, dimensions: int) -> None:
        self.name = path.name
        data = _mapped(path)
        layout, checksum = _header(path, data)
        if layout.dimensions != dimensions or len(data) != layout.size:
            raise IndexDamaged(f"{path} has not the size that it says")
        parts = {
            name: np.frombuffer(data, kind, math.prod(shape), offset).reshape(shape)
            for name, (offset, kind, shape) in layout.sections.items()
        }
        self.mean: Float32s = parts.pop("mean")
        self.beginnings: Words = parts.pop("beginnings")
        """Of the codes, an array for each word: all rows are swept over, a word at a time."""
        self.rests: Words = parts.pop("rests")
        """A row for each code: a few are looked up, which may be anywhere."""
        names = ("centres", "ends", "clustered", "clustered_beginnings")
        self.clusters = Clusters(*(parts.pop(name) for name in names))
        self.table = Table(**parts)
        if checksum != _checksum(self._columns):
            raise IndexDamaged(f"{path} is not what was written")

    @property
    def _columns(self) -> list[NDArray[Any]]:
        table, clusters = self.table, self.clusters
        columns: list[NDArray[Any]] = [self.mean, table.documents, table.collections, table.starts, table.keys]
        return [*columns, table.scales, clusters.centres, clusters.ends, clusters.rows]

    @property
    def count(self) -> int:
        """The number of rows, the removed ones with them."""
        return len(self.table.keys)

    def rows(self, wanted: Numbers) -> tuple[Numbers, Flags]:
        """The rows of those keys that are here, and which of the keys these are."""
        places = np.minimum(self._sorted_keys.searchsorted(wanted), self.count - 1)
        is_here: Flags = self._sorted_keys[places] == wanted
        return self._by_key[places[is_here]], is_here

    def cosines(self, rows: Numbers, query: Float32s) -> Float32s:
        """How near to the query each of these rows is."""
        return cosines(self.table.vectors.take(rows, axis=0), self.table.scales.take(rows), query)

    def around(self, rows: Numbers, query: Float32s) -> Float32s:
        """How near to the query the rows on both sides of each row are, on average; not a number where it is alone.

        Only those of its own document count.
        """
        starts = self.table.starts
        runs = starts.searchsorted(rows, side="right")
        (before,) = (rows > starts[runs - 1]).nonzero()
        (after,) = (rows + 1 < starts[runs]).nonzero()
        near = self.cosines(np.concatenate([rows[before] - 1, rows[after] + 1]), query)
        total, count = np.zeros(len(rows), np.float32), np.zeros(len(rows), np.float32)
        for places, values in ((before, near[: len(before)]), (after, near[len(before) :])):
            total[places] += values
            count[places] += 1
        return np.divide(total, count, out=np.full(len(rows), np.nan, np.float32), where=count > 0)

    @cached_property
    def _by_key(self) -> Numbers:
        """The rows in the order of their keys; made when it is first asked for, as eight bytes a row in memory."""
        return np.argsort(self.table.keys)

    @cached_property
    def _sorted_keys(self) -> Numbers:
        """Another eight bytes: to look a key up in the file would be to look all over it."""
        return self.table.keys[self._by_key]


@dataclass(frozen=True, slots=True)
class Part:
    """What goes into a new segment: the runs of a table that are alive."""

    table: Table
    alive: Flags

    @property
    def count(self) -> int:
        """The number of rows that are alive."""
        return int(self.table.lengths[self.alive].sum())


def write_segment(path: Path, parts: Sequence[Part], mean: Float32s) -> None:
    """Join the parts in a new file, and see it onto the disk. `mean` is taken off when there are too few for an own."""
    order = _Order(parts)
    layout = Layout(len(order.keys), len(order.documents), len(mean))
    if layout.rows >= ENOUGH_FOR_A_MEAN:
        mean = order.mean(len(mean))
    centres = order.centres(layout.clusters)
    with path.open("wb") as file:
        clusters = _write_vectors(file, layout, order, mean, centres)
        _write_table(file, layout, order, mean, clusters)
        file.flush()
        os.fsync(file.fileno())


class _Order:
    """The rows of several parts in the order of the segment that they become."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._tables = [part.table for part in parts]
        rows = [part.table.rows(part.alive) for part in parts]
        keys = np.concatenate([part.table.keys[chosen] for part, chosen in zip(parts, rows, strict=True)])
        scales = np.concatenate([part.table.scales[chosen] for part, chosen in zip(parts, rows, strict=True)])
        documents = np.concatenate([_per_row(part, part.table.documents) for part in parts])
        collections = np.concatenate([_per_row(part, part.table.collections) for part in parts])
        order = np.lexsort((keys, documents, collections))
        self._sources = np.repeat(np.arange(len(parts)), [len(chosen) for chosen in rows])[order]
        self._rows = np.concatenate(rows)[order]
        self.keys, self.scales = keys[order], scales[order]
        documents, collections = documents[order], collections[order]
        first = np.flatnonzero(_differs_from_previous(documents) | _differs_from_previous(collections))
        self.documents, self.collections = documents[first], collections[first]
        self.starts: Numbers = np.append(first, len(order))

    def vectors(self, block: slice) -> NDArray[np.int8]:
        """The 8-bit vectors of some rows."""
        sources, rows = self._sources[block], self._rows[block]
        vectors = np.empty((len(rows), self._tables[0].vectors.shape[1]), np.int8)
        for number, table in enumerate(self._tables):
            here = sources == number
            vectors[here] = table.vectors[rows[here]]
        return vectors

    def mean(self, dimensions: int) -> Float32s:
        """The mean of all vectors."""
        total = np.zeros(dimensions, np.float64)
        for block in blocks(len(self.keys), ROWS_AT_A_TIME):
            total += restored(self.vectors(block), self.scales[block]).sum(axis=0)
        return (total / len(self.keys)).astype(np.float32)

    def centres(self, count: int) -> Float32s:
        """What the vectors cluster around, as rows from all over tell."""
        step = -(-len(self.keys) // ROWS_AT_A_TIME)
        sample = slice(None, None, max(step, 1))
        return found_centres(restored(self.vectors(sample), self.scales[sample]), count)


def _per_row(part: Part, values: Numbers) -> Numbers:
    return np.repeat(values[part.alive], part.table.lengths[part.alive])


def _differs_from_previous(values: Numbers) -> Flags:
    return np.append(True, values[1:] != values[:-1])


def _write_table(file: BinaryIO, layout: Layout, order: _Order, mean: Float32s, clusters: Clusters) -> None:
    names = ("documents", "collections", "starts", "keys", "scales")
    columns: dict[str, NDArray[Any]] = {"mean": mean, **{name: getattr(order, name) for name in names}}
    columns |= {"centres": clusters.centres, "ends": clusters.ends, "clustered": clusters.rows}
    for name, values in {**columns, "clustered_beginnings": clusters.beginnings}.items():
        file.seek(layout.sections[name][0])
        file.write(values.tobytes())
    file.seek(0)
    file.write(_HEADER.pack(MAGIC, layout.rows, layout.runs, layout.dimensions, _checksum(columns.values())))


def _checksum(columns: Iterable[NDArray[Any]]) -> int:
    checksum = 0
    for values in columns:
        checksum = zlib.crc32(np.ascontiguousarray(values).data, checksum)
    return checksum


def _write_vectors(file: BinaryIO, layout: Layout, order: _Order, mean: Float32s, centres: Float32s) -> Clusters:
    """Write the vectors and their codes; answers the clusters that they are in."""
    sections = layout.sections
    vectors_at = sections["vectors"][0]
    nearest = np.zeros(layout.rows, np.int64)
    codes = np.empty((words_per_code(layout.dimensions), layout.rows), np.uint64)
    for block in blocks(layout.rows, ROWS_AT_A_TIME):
        vectors = order.vectors(block)
        exact = restored(vectors, order.scales[block])
        nearest[block] = nearest_centres(exact, centres)
        codes[:, block] = encoded(exact, mean).T
        file.seek(vectors_at + block.start * layout.dimensions)
        file.write(vectors.tobytes())
    beginnings, rests = codes[:COARSE_WORDS], codes[COARSE_WORDS:].T
    for name, values in (("beginnings", beginnings), ("rests", rests)):
        file.seek(sections[name][0])
        file.write(values.tobytes())
    return Clusters.of(centres, nearest, beginnings)


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < _HEADER.size:
            raise IndexDamaged(f"{path} is cut short")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _header(path: Path, data: mmap.mmap) -> tuple[Layout, int]:
    magic, rows, runs, dimensions, checksum = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise IndexDamaged(f"{path} is no segment of vectors")
    return Layout(rows, runs, dimensions), checksum
