"""How long until documents can be found: the PostgreSQL manual brought in, brought in again, and with a page changed.

Beside it, in the same run, what cannot be saved: the conversion of the same pages alone, and SQLite FTS5 over the same
texts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import uvloop

from corpora.documents import manual_folder
from corpora.measuring import percentile
from corpora.records import size_of, tenant_folder
from quality.sources import NotToBeHad
from refdesk.app import Desk, open_desk
from refdesk.calls import LOCAL
from refdesk.config.models import Config
from refdesk.documents.chunking import chunks
from refdesk.documents.convert import convert
from refdesk.engines.base import FileSource, Listing, NewDocument, Search, Status
from refdesk.errors import CannotConvert
from report import print_json, print_table, print_verdict

COLLECTION = "postgresql"
TEXTS = 100
"""Texts that are given one at a time, to see how long their acknowledgement takes."""

POLL_SECONDS = 0.1
GIVE_UP_SECONDS = 3600.0
CORES = 2
"""What the target for embedding is about; on a machine that others use as well, only the CPU time can tell."""

ALL_OF_IT = "brought in: all of it"
CHANGED_PAGE = "indexes-types.html"
NEW_SENTENCE = "<p>Quokka trees are an index type that only this benchmark knows.</p>"

ACKNOWLEDGED_TARGET_MS = 100.0
FOUND_TARGET_SECONDS = 60.0
EMBEDDED_TARGET_SECONDS = 300.0
AGAIN_TARGET_SECONDS = 5.0

NOT_FOUND: tuple[Status, ...] = ("pending", "converting")
NOT_EMBEDDED: tuple[Status, ...] = (*NOT_FOUND, "embedding")


@dataclass(frozen=True)
class Took:
    """A part of the work: its CPU time, of all processes, and how long one waited."""

    what: str
    cpu_seconds: float
    seconds: float
    pages: int = 0
    note: str = ""

    def cells(self) -> list[str]:
        """As they are printed."""
        rate = f"{self.pages / self.seconds:.0f}" if self.pages else ""
        return [self.what, f"{self.cpu_seconds:.2f}", f"{self.seconds:.2f}", rate, self.note]


@dataclass(frozen=True)
class Acknowledged:
    """How long the callers of `r2r_ingest_document` waited, in milliseconds."""

    when: str
    p50: float
    p99: float


COLUMNS = ("", "CPU s", "wall s", "pages/s", "")


class Bench:
    """The manual in a folder of its own, and what was measured of it."""

    def __init__(self, folder: Path, pages: int | None) -> None:
        self.data = folder / "data"
        self.manual = folder / "manual"
        shutil.copytree(manual_folder(), self.manual)
        self.pages = sorted(self.manual.glob("*.html"))[:pages]
        self.bytes = sum(page.stat().st_size for page in self.pages)
        self.rows: list[Took] = []
        self.acknowledged: list[Acknowledged] = []
        self.facts: dict[str, Any] = {"pages": len(self.pages), "bytes": self.bytes}

    @contextmanager
    def taking(self, what: str) -> Iterator[Callable[[str], None]]:
        """Note what is done inside; the given function adds a remark."""
        notes: list[str] = []
        cpu, wall = _cpu_seconds(), time.perf_counter()
        yield notes.append
        self.rows.append(
            Took(what, _cpu_seconds() - cpu, time.perf_counter() - wall, len(self.pages), ", ".join(notes))
        )

    def convert_alone(self) -> list[tuple[str, str]]:
        """The pages through the converter and into chunks, in this process; the texts of the chunks."""
        texts: list[tuple[str, str]] = []
        with self.taking("conversion alone, one process") as remark:
            for page in self.pages:
                try:
                    document = convert(page.read_bytes(), page.name)
                except CannotConvert:
                    continue
                texts += [(" > ".join(chunk.path), chunk.text) for chunk in chunks(document.blocks)]
            remark(f"{len(texts)} chunks")
        return texts

    def index_by_fts5(self, texts: Sequence[tuple[str, str]]) -> None:
        """The same texts, indexed by what comes with Python."""
        path = self.data.with_name("fts5.db")
        with self.taking("SQLite FTS5 over the chunks") as remark, closing(sqlite3.connect(path)) as database:
            database.execute("CREATE VIRTUAL TABLE found USING fts5 (path, text, tokenize = 'porter unicode61')")
            database.executemany("INSERT INTO found VALUES (?, ?)", texts)
            database.commit()
            remark(f"{path.stat().st_size / 1e6:.0f} MB")

    async def bring_in(self) -> None:
        """Ingest everything: queued, found by full-text search, found by semantic search."""
        began = time.perf_counter()
        with self.taking(ALL_OF_IT) as remark:
            async with self.desk() as desk:
                await desk.engine.create_collection(LOCAL.tenant, COLLECTION)
                await self.acknowledge(desk, "idle")
                began = time.perf_counter()
                synced = await self._sync(desk)
                queued = time.perf_counter() - began
                await self.acknowledge(desk, "while the manual comes in")
                await _until_none(desk, NOT_FOUND)
                found = time.perf_counter() - began
                await self._require_found(desk)
                await _until_none(desk, NOT_EMBEDDED)
                embedded = time.perf_counter() - began
                failed = await _count(desk, ("failed",))
            remark(f"{len(synced.new)} new, {failed} failed")
        self.facts |= {"queued": queued, "found": found, "embedded": embedded, "failed": failed}
        for what, seconds in (("queued", queued), ("full-text search", found), ("semantic search", embedded)):
            self.rows.append(Took(f"  until {what}", 0.0, seconds, len(self.pages)))
        count = len(_embeddings(self.data))
        self.facts |= {"embeddings": count, "embeddings_per_second": count / embedded}

    async def acknowledge(self, desk: Desk, when: str) -> None:
        """Short texts, one at a time."""
        waited = []
        for number in range(TEXTS):
            text = f"Note {number} {when}. The quick brown fox jumps over the lazy dog {number} times."
            given = {"text": text, "title": f"Note {number} {when}", "collection_id": "notes"}
            if number == 0:
                await desk.engine.create_collection(LOCAL.tenant, "notes")
            asked = time.perf_counter()
            await desk.call("r2r_ingest_document", given)
            waited.append((time.perf_counter() - asked) * 1000)
        waited.sort()
        self.acknowledged.append(Acknowledged(when, median(waited), percentile(waited, 99)))

    async def bring_in_again(self, what: str) -> None:
        """The whole manual once more, in a new process's stead: the desk is opened anew."""
        before = _embeddings(self.data)
        async with self.desk() as desk:
            with self.taking(what) as remark:
                synced = await self._sync(desk)
                await _until_none(desk, NOT_EMBEDDED)
                remark(f"{synced.unchanged} unchanged, {len(synced.changed)} looked into")
        new = len(_embeddings(self.data) - before)
        self.rows[-1] = replace(self.rows[-1], note=f"{self.rows[-1].note}, {new} chunks embedded")

    def touch(self) -> None:
        """Make every file look as if it had been written anew."""
        for page in self.pages:
            os.utime(page)

    def change_a_page(self) -> None:
        """Add a sentence at the end of a section."""
        page = next((page for page in self.pages if page.name == CHANGED_PAGE), self.pages[0])
        text = page.read_text("utf-8")
        place = text.index("</div>", text.index("</p>"))
        page.write_text(text[:place] + NEW_SENTENCE + text[place:], "utf-8")

    @asynccontextmanager
    async def desk(self) -> AsyncIterator[Desk]:
        """A desk on the data so far."""
        async with open_desk(Config(data_dir=self.data)) as desk:
            yield desk

    async def _sync(self, desk: Desk) -> Any:
        documents = [NewDocument(FileSource(page, page.name), COLLECTION) for page in self.pages]
        return await desk.engine.sync_folder(LOCAL.tenant, COLLECTION, self.manual, documents)

    async def _require_found(self, desk: Desk) -> None:
        """See that what the statuses say is true: the last pages are found by their titles."""
        for page in self.pages[-3:]:
            status = await desk.engine.status(LOCAL.tenant, f"{COLLECTION}/{page.name}")
            title = status.title if status else page.stem
            hits = await desk.engine.search(LOCAL.tenant, Search(title, limit=50, mode="fulltext"))
            if not any(hit.document.id.endswith(f"/{page.name}") for hit in hits):
                raise SystemExit(f"{page.name} is said to be found by its words, and is not")


async def _until_none(desk: Desk, statuses: tuple[Status, ...]) -> None:
    with anyio.fail_after(GIVE_UP_SECONDS):
        while True:
            if not await _count(desk, statuses):
                return
            await anyio.sleep(POLL_SECONDS)


async def _count(desk: Desk, statuses: tuple[Status, ...]) -> int:
    listing = Listing(COLLECTION, statuses, limit=1)
    return (await desk.engine.documents(LOCAL.tenant, listing))[1]


def _embeddings(data: Path) -> set[bytes]:
    """The hashes of all texts that are embedded."""
    with closing(sqlite3.connect(tenant_folder(data) / "knowledge.db")) as database:
        return {row[0] for row in database.execute("SELECT hash FROM embeddings")}


def _cpu_seconds() -> float:
    """Of this process and of its children, once they have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


async def _measure(bench: Bench) -> None:
    bench.index_by_fts5(bench.convert_alone())
    await bench.bring_in()
    folder = tenant_folder(bench.data)
    bench.facts |= {name: size_of(folder / name) for name in ("knowledge.db", "fulltext", "vectors")}
    await bench.bring_in_again("again, nothing changed")
    bench.touch()
    await bench.bring_in_again("again, every file written anew with the same text")
    bench.change_a_page()
    await bench.bring_in_again("again, one page changed")


def main() -> int:
    """Measure and print."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="refdesk-bench-") as folder:
        try:
            bench = Bench(Path(folder), 100 if options.quick else None)
        except NotToBeHad as error:
            print(f"not measured: {error}")
            return 1
        uvloop.run(_measure(bench))
    _tell(bench)
    return 0


def _tell(bench: Bench) -> None:
    facts, again = bench.facts, {row.what: row for row in bench.rows}
    print_table(COLUMNS, [row.cells() for row in bench.rows])
    for told in bench.acknowledged:
        print(f"acknowledged, {told.when}: p50 {told.p50:.1f} ms, p99 {told.p99:.1f} ms")
    sizes = ", ".join(f"{name} {facts[name] / 1e6:.0f} MB" for name in ("knowledge.db", "fulltext", "vectors"))
    print(f"{bench.bytes / 1e6:.1f} MB of HTML: {bench.bytes / 1e6 / facts['found']:.2f} MB/s; on disk: {sizes}")
    print(f"{facts['embeddings_per_second']:.0f} chunks/s embedded")
    rows = [*(asdict(row) for row in bench.rows), *(asdict(row) for row in bench.acknowledged)]
    print_json("ingest", {"texts": TEXTS}, rows, facts=facts)
    for told in bench.acknowledged:
        print_verdict(f"acknowledged, {told.when}, p99", told.p99, ACKNOWLEDGED_TARGET_MS, at_most=True, unit=" ms")
    print_verdict("full-text search", facts["found"], FOUND_TARGET_SECONDS, at_most=True, unit=" s")
    print_verdict("embedded", facts["embedded"], EMBEDDED_TARGET_SECONDS, at_most=True, unit=" s")
    cores = again[ALL_OF_IT].cpu_seconds / CORES
    print_verdict(f"embedded, CPU time over {CORES} cores", cores, EMBEDDED_TARGET_SECONDS, at_most=True, unit=" s")
    unchanged = again["again, nothing changed"].seconds
    print_verdict("brought in again", unchanged, AGAIN_TARGET_SECONDS, at_most=True, unit=" s")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a hundred pages, to see that it works")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
