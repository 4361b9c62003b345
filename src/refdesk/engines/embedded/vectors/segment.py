"""Segment: an immutable file of rows, read through a memory map, and the arrays in it.

Vectors have 8 bits per dimension for scoring and one bit per dimension, a code, for scanning. A code contains the signs
of a vector minus the index's mean. Similar vectors differ in few signs, and counting those is so cheap that a search
scans all rows.

    header · mean · documents, collections, starts of the runs · keys · scales
    code prefixes, word by word · code suffixes, row by row · 8-bit vectors

Everything but codes and vectors is covered by a checksum that is verified on opening. A wrong bit in a vector costs a
little accuracy, but a wrong row number would corrupt search results.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from refdesk.engines.embedded.fulltext import IndexDamaged

Float32s = NDArray[np.float32]
Int8s = NDArray[np.int8]
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Row:
    """Normalized vector of one chunk, with the keys of its document and collection."""

    key: int
    document: int
    collection: int
    vector: Float32s


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows sorted by collection, document and key, so that a document's rows are one run.

    Filters on documents and collections are evaluated per run, of which there are far fewer than rows.
    """

    keys: Numbers
    scales: Float32s
    vectors: Int8s
    documents: Numbers
    """Document of each run."""
    collections: Numbers
    """Collection of each run."""
    starts: Numbers
    """First row of each run, followed by the number of rows."""

    @property
    def lengths(self) -> Numbers:
        """Number of rows of each run."""
        return np.diff(self.starts)

    def list_rows(self, runs: Flags) -> Numbers:
        """Return the row numbers of these runs."""
        lengths = self.lengths[runs]
        ends = np.cumsum(lengths)
        first = np.repeat(self.starts[:-1][runs] - ends + lengths, lengths)
        return first + np.arange(len(first))


def split_blocks(count: int, size: int) -> Iterator[slice]:
    """Yield slices of `size` that cover the numbers below `count`."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


WORD_BITS = 64


def quantize(vectors: Float32s) -> tuple[Int8s, Float32s]:
    """Return vectors with 8 bits per dimension, and the scales that restore them approximately."""
    scales = np.abs(vectors).max(axis=1) / np.float32(127)
    scales[scales == 0] = 1
    return np.rint(vectors / scales[:, None]).astype(np.int8), scales


def dequantize(vectors: Int8s, scales: Float32s) -> Float32s:
    """Restore quantized vectors."""
    return vectors.astype(np.float32) * scales[:, None]


def count_code_words(dimensions: int) -> int:
    """Return the number of 64-bit words per code. Unused bits are zero."""
    return -(-dimensions // WORD_BITS)


def encode_signs(vectors: Float32s, mean: Float32s) -> Words:
    """Return the codes of vectors, one row each."""
    signs = np.packbits(vectors > mean, axis=1)
    codes = np.zeros((len(vectors), count_code_words(vectors.shape[1])), np.uint64)
    codes.view(np.uint8)[:, : signs.shape[1]] = signs
    return codes


COARSE_WORDS = 3
"""Words of a code that are compared first: 192 signs, whose count fits in a byte."""

MAGIC = b"RDVEC004"
_HEADER = struct.Struct("<8sQQII")

CHECKED_SECTIONS = ("mean", "documents", "collections", "starts", "keys", "scales")
"""Sections that the checksum covers, in its order."""

ALIGNMENT = 64
"""Bytes: every section starts at a cache line."""

WRITE_BLOCK_ROWS = 8192
"""Rows in memory while a segment is written: about 16 MB with the usual 384 dimensions."""

MIN_MEAN_ROWS = 1024
"""Minimum rows for a segment's own mean. The mean of fewer isn't representative of later documents."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Sections of a segment file."""

    rows: int
    runs: int
    dimensions: int

    @property
    def sections(self) -> dict[str, tuple[int, str, tuple[int, ...]]]:
        """Offset, type and shape of each section, in file order."""
        offset, sections = _HEADER.size, {}
        for name, kind, shape in self._shapes():
            offset = -(-offset // ALIGNMENT) * ALIGNMENT
            sections[name] = (offset, kind, shape)
            offset += math.prod(shape) * np.dtype(kind).itemsize
        return sections

    @property
    def size(self) -> int:
        """File size in bytes; the vectors are the last section."""
        return self.sections["vectors"][0] + self.rows * self.dimensions

    @property
    def _prefix_words(self) -> int:
        return min(COARSE_WORDS, count_code_words(self.dimensions))

    def _shapes(self) -> list[tuple[str, str, tuple[int, ...]]]:
        return [
            ("mean", "<f4", (self.dimensions,)),
            ("documents", "<i8", (self.runs,)),
            ("collections", "<i8", (self.runs,)),
            ("starts", "<i8", (self.runs + 1,)),
            ("keys", "<i8", (self.rows,)),
            ("scales", "<f4", (self.rows,)),
            ("prefixes", "<u8", (self._prefix_words, self.rows)),
            ("suffixes", "<u8", (self.rows, count_code_words(self.dimensions) - self._prefix_words)),
            ("vectors", "|i1", (self.rows, self.dimensions)),
        ]


class Segment:
    """Open segment. It stays mapped while it is referenced, even if the file is deleted."""

    def __init__(self, path: Path, dimensions: int) -> None:
        self.name = path.name
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < _HEADER.size:
                raise IndexDamaged(f"{path} is truncated")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        magic, *shape, checksum = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise IndexDamaged(f"{path} isn't a vector segment of this version of Refdesk")
        layout = Layout(*shape)
        if layout.dimensions != dimensions or len(data) != layout.size:
            raise IndexDamaged(f"{path} doesn't have the size in its header")
        parts = {
            name: np.frombuffer(data, kind, math.prod(shape), offset).reshape(shape)
            for name, (offset, kind, shape) in layout.sections.items()
        }
        if checksum != _checksum(parts[name] for name in CHECKED_SECTIONS):
            raise IndexDamaged(f"{path} is corrupt: its checksum doesn't match")
        self.mean: Float32s = parts.pop("mean")
        self.prefixes: Words = parts.pop("prefixes")
        """Code prefixes, one array per word: all rows are scanned one word at a time."""
        self.suffixes: Words = parts.pop("suffixes")
        """Code suffixes, one row per code: a few are looked up at random positions."""
        self.table = RowTable(**parts)

    @property
    def count(self) -> int:
        """Number of rows, including deleted ones."""
        return len(self.table.keys)

    def find_rows(self, keys: Numbers) -> tuple[Numbers, Flags]:
        """Return the rows of the keys in this segment, and a mask of these keys."""
        places = np.minimum(self._keys_in_order.searchsorted(keys), self.count - 1)
        is_here: Flags = self._keys_in_order[places] == keys
        return self._rows_by_key[places[is_here]], is_here

    def compute_cosines(self, rows: Numbers, query: Float32s) -> Float32s:
        """Return the cosines of these rows with the query."""
        # Not `@`, which starts BLAS threads for a few hundred rows.
        products: Float32s = np.vecdot(self.table.vectors.take(rows, axis=0).astype(np.float32), query)
        return products * self.table.scales.take(rows)

    @cached_property
    def _rows_by_key(self) -> Numbers:
        """Rows in the order of their keys. Computed on first use, because it takes eight bytes of memory per row."""
        return np.argsort(self.table.keys)

    @cached_property
    def _keys_in_order(self) -> Numbers:
        """Sorted keys, another eight bytes per row: lookups in the file would touch all of its pages."""
        return self.table.keys[self._rows_by_key]


@dataclass(frozen=True, slots=True)
class SegmentSource:
    """Input of a new segment: the live runs of a table."""

    table: RowTable
    alive: Flags

    @property
    def count(self) -> int:
        """Number of live rows."""
        return int(self.table.lengths[self.alive].sum())


def write_segment(path: Path, sources: Sequence[SegmentSource], mean: Float32s) -> None:
    """Merge the sources into a new file and flush it to disk.

    `mean` is used if there are too few rows for an own one.
    """
    merged = _MergedRows(sources)
    layout = Layout(len(merged.keys), len(merged.documents), len(mean))
    if layout.rows >= MIN_MEAN_ROWS:
        mean = merged.compute_mean(len(mean))
    with path.open("wb") as file:
        _write_vectors(file, layout, merged, mean)
        _write_table(file, layout, merged, mean)
        file.flush()
        os.fsync(file.fileno())


class _MergedRows:
    """Rows of several sources in the order of the new segment."""

    def __init__(self, sources: Sequence[SegmentSource]) -> None:
        self._tables = [source.table for source in sources]
        rows = [source.table.list_rows(source.alive) for source in sources]
        keys = np.concatenate([source.table.keys[chosen] for source, chosen in zip(sources, rows, strict=True)])
        scales = np.concatenate([source.table.scales[chosen] for source, chosen in zip(sources, rows, strict=True)])
        documents = np.concatenate([_repeat_per_row(source, source.table.documents) for source in sources])
        collections = np.concatenate([_repeat_per_row(source, source.table.collections) for source in sources])
        order = np.lexsort((keys, documents, collections))
        self._sources = np.repeat(np.arange(len(sources)), [len(chosen) for chosen in rows])[order]
        self._rows = np.concatenate(rows)[order]
        self.keys, self.scales = keys[order], scales[order]
        documents, collections = documents[order], collections[order]
        first = np.flatnonzero(_differs_from_previous(documents) | _differs_from_previous(collections))
        self.documents, self.collections = documents[first], collections[first]
        self.starts: Numbers = np.append(first, len(order))

    def read_vectors(self, block: slice) -> NDArray[np.int8]:
        """Return the 8-bit vectors of some rows."""
        sources, rows = self._sources[block], self._rows[block]
        vectors = np.empty((len(rows), self._tables[0].vectors.shape[1]), np.int8)
        for number, table in enumerate(self._tables):
            here = sources == number
            vectors[here] = table.vectors[rows[here]]
        return vectors

    def compute_mean(self, dimensions: int) -> Float32s:
        """Return the mean of all vectors."""
        total = np.zeros(dimensions, np.float64)
        for block in split_blocks(len(self.keys), WRITE_BLOCK_ROWS):
            total += dequantize(self.read_vectors(block), self.scales[block]).sum(axis=0)
        return (total / len(self.keys)).astype(np.float32)


def _repeat_per_row(source: SegmentSource, values: Numbers) -> Numbers:
    return np.repeat(values[source.alive], source.table.lengths[source.alive])


def _differs_from_previous(values: Numbers) -> Flags:
    return np.append(True, values[1:] != values[:-1])


def _write_table(file: BinaryIO, layout: Layout, merged: _MergedRows, mean: Float32s) -> None:
    names = ("documents", "collections", "starts", "keys", "scales")
    columns: dict[str, NDArray[Any]] = {"mean": mean, **{name: getattr(merged, name) for name in names}}
    for name, values in columns.items():
        file.seek(layout.sections[name][0])
        file.write(values.tobytes())
    file.seek(0)
    file.write(_HEADER.pack(MAGIC, layout.rows, layout.runs, layout.dimensions, _checksum(columns.values())))


def _checksum(columns: Iterable[NDArray[Any]]) -> int:
    checksum = 0
    for values in columns:
        checksum = zlib.crc32(np.ascontiguousarray(values).data, checksum)
    return checksum


def _write_vectors(file: BinaryIO, layout: Layout, merged: _MergedRows, mean: Float32s) -> None:
    """Write the vectors and their codes."""
    sections = layout.sections
    vectors_at = sections["vectors"][0]
    codes = np.empty((count_code_words(layout.dimensions), layout.rows), np.uint64)
    for block in split_blocks(layout.rows, WRITE_BLOCK_ROWS):
        vectors = merged.read_vectors(block)
        codes[:, block] = encode_signs(dequantize(vectors, merged.scales[block]), mean).T
        file.seek(vectors_at + block.start * layout.dimensions)
        file.write(vectors.tobytes())
    prefixes, suffixes = codes[:COARSE_WORDS], codes[COARSE_WORDS:].T
    for name, values in (("prefixes", prefixes), ("suffixes", suffixes)):
        file.seek(sections[name][0])
        file.write(values.tobytes())
