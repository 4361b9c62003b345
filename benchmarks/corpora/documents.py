"""Documentation packages of Debian as packed documents: converted once by Refdesk's own converters, and kept.

The documents are in an order of chance that is the same everywhere, so that the first of them are a fair sample of all.
"""

from __future__ import annotations

import hashlib
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path

from quality.sources import ROOT, NotToBeHad, unpacked
from refdesk.documents.convert import convert
from refdesk.documents.jobs import chunk_and_pack
from refdesk.documents.packed_document import PACKED_DOCUMENT_VERSION, PackedDocument
from refdesk.engines.embedded.document_content import compress
from refdesk.errors import CannotConvert

CACHE = ROOT / ".cache" / "search-corpus"
DOCUMENTS = CACHE / "documents.db"

POSTGRESQL = "postgresql-doc-15"
PACKAGES = (
    POSTGRESQL,
    "git-doc",
    "python3.11-doc",
    "python-django-doc",
    "sqlite3-doc",
    "nodejs-doc",
    "cmake-doc",
    "llvm-14-doc",
    "libboost1.81-doc",
    "qtbase5-doc-html",
    "erlang-doc",
    "openjdk-17-doc",
)
"""Reference manuals and tutorials of many hands: more than enough."""

MOST_CHUNKS = 201_000
"""Converted in all; the largest store has 200,000, and pages that are there twice are left out."""

LONGEST_PAGE = 4_000_000
"""Bytes; the few longer pages are indexes that name every function once."""

CONVERTERS = 2


@dataclass(frozen=True, slots=True)
class Packed:
    """A document, converted."""

    package: str
    name: str
    digest: str
    size: int
    chunks: int
    body: bytes
    """What `shelf.pack` made of it, compressed."""


def packed_documents(wanted_chunks: int, *, fresh: bool = False) -> Iterator[Packed]:
    """Documents of so many chunks together, or as many as there are."""
    if fresh or not _is_current(DOCUMENTS):
        _make(DOCUMENTS)
    with closing(sqlite3.connect(DOCUMENTS)) as database:
        rows = database.execute("SELECT package, name, digest, size, chunks, body FROM documents ORDER BY place")
        yield from _first((Packed(*row) for row in rows), wanted_chunks)


def manual_folder() -> Path:
    """The pages of the PostgreSQL manual."""
    return unpacked(POSTGRESQL) / "usr/share/doc/postgresql-doc-15/html"


def pages_of(package: str) -> list[str]:
    """The names of a package's pages; what is linked to is there only once."""
    folder = unpacked(package)
    pages = (path for path in folder.rglob("*.html") if path.is_file() and not path.is_symlink())
    return [path.relative_to(folder).as_posix() for path in pages]


def shuffled(names: Sequence[str]) -> list[str]:
    """In an order of chance, decided by the names alone."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


def _is_current(path: Path) -> bool:
    if not path.exists():
        return False
    with closing(sqlite3.connect(path)) as database:
        return bool(database.execute("PRAGMA user_version").fetchone()[0] == PACKED_DOCUMENT_VERSION)


def _make(path: Path) -> None:
    """Aside first, so that a corpus which is there is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".new")
    aside.unlink(missing_ok=True)
    print("converting the documentation, once: some minutes", file=sys.stderr)
    with closing(sqlite3.connect(aside)) as database:
        database.execute(
            "CREATE TABLE documents (place INTEGER PRIMARY KEY, package TEXT, name TEXT, digest TEXT UNIQUE, "
            "size INTEGER, chunks INTEGER, body BLOB)"
        )
        rows = (astuple(one) for one in _converted(MOST_CHUNKS))
        database.executemany("INSERT OR IGNORE INTO documents VALUES (NULL, ?, ?, ?, ?, ?, ?)", rows)
        database.execute(f"PRAGMA user_version = {PACKED_DOCUMENT_VERSION}")
        database.commit()
    aside.replace(path)


def _converted(wanted_chunks: int) -> Iterator[Packed]:
    pages = shuffled([f"{package}/{name}" for package in _available() for name in pages_of(package)])
    with ProcessPoolExecutor(CONVERTERS) as pool:
        yield from _first(pool.map(_pack, pages, chunksize=32), wanted_chunks)
        pool.shutdown(cancel_futures=True)


def _first(documents: Iterable[Packed | None], wanted_chunks: int) -> Iterator[Packed]:
    found = 0
    for document in documents:
        if document is not None:
            yield document
            found += document.chunks
        if found >= wanted_chunks:
            return


def _available() -> Iterator[str]:
    for package in PACKAGES:
        try:
            unpacked(package)
        except NotToBeHad as error:
            print(f"left out: {error}", file=sys.stderr)
        else:
            yield package


def _pack(page: str) -> Packed | None:
    """A page, converted; None where it holds nothing to find."""
    package, _, name = page.partition("/")
    path = unpacked(package) / name
    data = path.read_bytes()
    if len(data) > LONGEST_PAGE:
        return None
    try:
        document = convert(data, path.name)
    except CannotConvert:
        return None
    packed = chunk_and_pack(document, "html")
    with PackedDocument.of(packed) as shelf:
        chunks = shelf.about.chunks
    return Packed(package, name, document.digest, len(data), chunks, compress(packed))
