"""Checks of the document store, its indexes and their writers. Everything is opened read-only."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from refdesk.cli.checks.finding import CheckContext, Finding, fail, format_count, ok, warn
from refdesk.engines.embedded.fulltext import FullText, IndexDamaged
from refdesk.engines.embedded.tenant_store import SCHEMA_VERSION
from refdesk.engines.embedded.vectors import Vectors
from refdesk.engines.storage.databases import DATABASE
from refdesk.engines.storage.records import read_last_change

MAX_CHECKED_BYTES = 268_435_456
"""Largest database to run `quick_check` on. Larger ones take too long."""

MAX_TENANTS = 20
"""Tenants checked. The console shows the others."""

LOCKS = Path("/proc/locks")
"""Where Linux lists lock holders, so that no lock has to be taken to find out."""

REINDEX_FIX = "run `refdesk reindex` to rebuild the indexes"


def check_engine(context: CheckContext) -> Sequence[Finding]:
    """Check each tenant's documents."""
    if context.config.r2r.api_url is not None:
        return [ok("documents are stored in R2R")]
    folders = _list_tenants(context)
    if not folders:
        return [ok("no documents yet; `refdesk add FOLDER` adds some")]
    return [finding for folder in folders[:MAX_TENANTS] for finding in _check_tenant(folder)]


def _list_tenants(context: CheckContext) -> list[Path]:
    return sorted(path.parent for path in (context.config.data_path / "tenants").glob(f"*/{DATABASE}"))


def _check_tenant(folder: Path) -> list[Finding]:
    try:
        with closing(_open_database(folder)) as database:
            return list(_check_database(folder, database))
    except sqlite3.Error as error:
        fix = "restore a backup of the folder, or remove it and add the documents again"
        return [fail(f"{folder / DATABASE} cannot be read: {error}", fix)]


def _open_database(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{(folder / DATABASE).as_uri()}?mode=ro", uri=True, timeout=1)


def _check_database(folder: Path, database: sqlite3.Connection) -> Iterator[Finding]:
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        text = f"{folder} was written by another version of Refdesk (schema {version}, this one reads {SCHEMA_VERSION})"
        yield fail(text, "use another --data folder, or remove this one and add the documents again")
        return
    if (folder / DATABASE).stat().st_size <= MAX_CHECKED_BYTES:
        found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            yield fail(f"{folder / DATABASE} is damaged: {found}", "restore a backup, or add the documents again")
            return
    tenant = str(database.execute("SELECT tenant FROM owner").fetchone()[0])
    yield from _count_documents(tenant, database)
    yield from _check_indexes(folder, tenant, read_last_change(database))


def _count_documents(tenant: str, database: sqlite3.Connection) -> Iterator[Finding]:
    counts = dict(database.execute("SELECT stage, count(*) FROM documents GROUP BY stage").fetchall())
    collections = database.execute("SELECT count(*) FROM collections").fetchone()[0]
    total, failed = sum(counts.values()), counts.get("failed", 0)
    waiting = total - failed - counts.get("success", 0)
    whose = "" if tenant == "default" else f" of tenant {tenant!r}"
    under_way = f", {waiting:,} of them queued" if waiting else ""
    yield ok(f"{format_count(total, 'document')}{whose} in {format_count(collections, 'collection')}{under_way}")
    if failed:
        yield warn(
            f"{format_count(failed, 'document')}{whose} failed to index",
            "run `refdesk documents --status failed` for the reasons",
        )


def _check_indexes(folder: Path, tenant: str, last: int) -> Iterator[Finding]:
    try:
        marks = FullText(folder / "fulltext").mark, Vectors(folder / "vectors").mark
    except IndexDamaged as error:
        yield fail(str(error), REINDEX_FIX)
        return
    behind = [name for name, mark in zip(("words", "meaning"), marks, strict=True) if mark < last]
    if "words" in behind:
        fix = "`refdesk serve` or the next `refdesk add` updates it"
        yield warn(f"the full-text index of tenant {tenant!r} lacks the latest changes", fix)


def check_locks(context: CheckContext) -> Sequence[Finding]:
    """Report who holds the writer locks, according to the kernel."""
    folders = _list_tenants(context)
    try:
        holders = _parse_lock_holders(LOCKS.read_text())
    except OSError:
        return [ok("this system does not report lock holders")]
    writers = {
        folder: holders.get((folder / "writer.lock").stat().st_ino)
        for folder in folders
        if (folder / "writer.lock").exists()
    }
    busy = {folder: pid for folder, pid in writers.items() if pid}
    if busy:
        return [ok(f"process {pid} writes {folder}") for folder, pid in busy.items()]
    waiting = sum(map(_count_waiting, folders))
    if waiting and context.config.r2r.api_url is None:
        text = f"{format_count(waiting, 'document')} queued, but no process is indexing"
        return [warn(text, "`refdesk serve` or the next `refdesk add` continues with them")]
    return [ok("no process is writing")]


def _parse_lock_holders(text: str) -> dict[int, int]:
    """Return the process that holds a lock on a whole file, by inode."""
    rows = (line.split() for line in text.splitlines())
    return {int(row[5].rpartition(":")[2]): int(row[4]) for row in rows if len(row) > 5 and row[1] == "FLOCK"}


def _count_waiting(folder: Path) -> int:
    try:
        with closing(_open_database(folder)) as database:
            statement = "SELECT count(*) FROM documents WHERE stage NOT IN ('success', 'failed')"
            return int(database.execute(statement).fetchone()[0])
    except sqlite3.Error:
        return 0  # reported by check_engine
