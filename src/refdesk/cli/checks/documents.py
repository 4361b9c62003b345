"""The documents: the record, the indexes made from it, and who is writing them. Everything is opened to be read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from refdesk.cli.checks.finding import Finding, Situation, counted, fail, ok, warn
from refdesk.engines.embedded.damage import IndexDamaged
from refdesk.engines.embedded.fulltext import FullText
from refdesk.engines.embedded.tenant_store import SCHEMA_VERSION
from refdesk.engines.embedded.vectors import Vectors
from refdesk.engines.storage.folders import DATABASE
from refdesk.engines.storage.records import last_change

MOST_CHECKED_BYTES = 268_435_456
"""Of a record whose every page is looked at; a larger one takes longer than anybody waits for."""

MOST_TENANTS = 20
"""Whose files are looked at; who has more looks at the console."""

LOCKS = Path("/proc/locks")
"""Where Linux tells who holds a lock, so that none has to be taken to find out."""

REBUILD = "`refdesk reindex` makes the indexes anew from what is stored"


def engine(situation: Situation) -> Sequence[Finding]:
    """Each tenant's documents."""
    if situation.config.r2r.api_url is not None:
        return [ok("documents are in R2R")]
    folders = _tenants(situation)
    if not folders:
        return [ok("no documents of your own yet; `refdesk add FOLDER` brings some in")]
    return [finding for folder in folders[:MOST_TENANTS] for finding in _looked_at(folder)]


def _tenants(situation: Situation) -> list[Path]:
    return sorted(path.parent for path in (situation.config.data_path / "tenants").glob(f"*/{DATABASE}"))


def _looked_at(folder: Path) -> list[Finding]:
    try:
        with closing(_opened(folder)) as database:
            return list(_tenant(folder, database))
    except sqlite3.Error as error:
        mend = "put back a copy of the folder, or remove it and add the documents anew"
        return [fail(f"{folder / DATABASE} cannot be read: {error}", mend)]


def _opened(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{(folder / DATABASE).as_uri()}?mode=ro", uri=True, timeout=1)


def _tenant(folder: Path, database: sqlite3.Connection) -> Iterator[Finding]:
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        text = f"{folder} was written by another version of Refdesk (schema {version}, this one reads {SCHEMA_VERSION})"
        yield fail(text, "use another --data folder, or remove this one and add the documents anew")
        return
    if (folder / DATABASE).stat().st_size <= MOST_CHECKED_BYTES:
        found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            yield fail(f"{folder / DATABASE} is damaged: {found}", "put back a copy, or add the documents anew")
            return
    tenant = str(database.execute("SELECT tenant FROM owner").fetchone()[0])
    yield from _counted(tenant, database)
    yield from _indexes(folder, tenant, last_change(database))


def _counted(tenant: str, database: sqlite3.Connection) -> Iterator[Finding]:
    counts = dict(database.execute("SELECT stage, count(*) FROM documents GROUP BY stage").fetchall())
    collections = database.execute("SELECT count(*) FROM collections").fetchone()[0]
    total, failed = sum(counts.values()), counts.get("failed", 0)
    waiting = total - failed - counts.get("success", 0)
    whose = "" if tenant == "default" else f" of the tenant {tenant!r}"
    under_way = f", {waiting:,} of them on their way in" if waiting else ""
    yield ok(f"{counted(total, 'document')}{whose} in {counted(collections, 'collection')}{under_way}")
    if failed:
        yield warn(
            f"{counted(failed, 'document')}{whose} could not be brought in",
            "`refdesk documents --status failed` says why",
        )


def _indexes(folder: Path, tenant: str, last: int) -> Iterator[Finding]:
    try:
        marks = FullText(folder / "fulltext").mark, Vectors(folder / "vectors").mark
    except IndexDamaged as error:
        yield fail(str(error), REBUILD)
        return
    behind = [name for name, mark in zip(("words", "meaning"), marks, strict=True) if mark < last]
    if "words" in behind:
        mend = "`refdesk serve`, or the next `refdesk add`, brings it up to date"
        yield warn(f"the index of words lacks the latest changes of the tenant {tenant!r}", mend)


def locks(situation: Situation) -> Sequence[Finding]:
    """Who holds the writers' locks, as the kernel tells it."""
    folders = _tenants(situation)
    try:
        held = _held(LOCKS.read_text())
    except OSError:
        return [ok("this system does not tell who holds a lock")]
    writers = {
        folder: held.get((folder / "writer.lock").stat().st_ino)
        for folder in folders
        if (folder / "writer.lock").exists()
    }
    busy = {folder: pid for folder, pid in writers.items() if pid}
    if busy:
        return [ok(f"process {pid} writes {folder}") for folder, pid in busy.items()]
    waiting = sum(map(_waiting, folders))
    if waiting and situation.config.r2r.api_url is None:
        mend = "`refdesk serve`, or the next `refdesk add`, goes on with them"
        return [
            warn(f"{counted(waiting, 'document')} wait{'s' * (waiting == 1)} to be brought in, and nobody does", mend)
        ]
    return [ok("nobody writes just now")]


def _held(text: str) -> dict[int, int]:
    """The process that holds a lock of a whole file, by the file's number on its disk."""
    rows = (line.split() for line in text.splitlines())
    return {int(row[5].rpartition(":")[2]): int(row[4]) for row in rows if len(row) > 5 and row[1] == "FLOCK"}


def _waiting(folder: Path) -> int:
    try:
        with closing(_opened(folder)) as database:
            asked = "SELECT count(*) FROM documents WHERE stage NOT IN ('success', 'failed')"
            return int(database.execute(asked).fetchone()[0])
    except sqlite3.Error:
        return 0  # told by the check of the engine
