"""Where a tenant's file lies, and whose file it is."""

from __future__ import annotations

import hashlib
import logging
import re
import sqlite3
from collections.abc import Iterator, Sequence, Set
from contextlib import closing, contextmanager
from pathlib import Path

from refdesk.calls import TenantId
from refdesk.engines.base import TenantInfo
from refdesk.errors import EngineError

DATABASE = "knowledge.db"
"""The name of the file in a tenant's folder."""

MOST_COUNTED = 10_000
"""Tenants that are counted when somebody asks how much each has; each takes about a millisecond."""

_COUNTS = """
SELECT tenant, (SELECT count(*) FROM documents), (SELECT count(*) FROM collections),
       (SELECT coalesce(sum(size_bytes), 0) FROM documents)
FROM owner
"""

logger = logging.getLogger(__name__)


def folder_of(tenant: TenantId) -> str:
    """The name of a tenant's folder: readable where the name allows it, and never that of another tenant's."""
    if re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,60}", tenant):
        return f"n-{tenant}"
    return f"h-{hashlib.sha256(tenant.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


def tenants_in(folder: Path, known: Set[Path]) -> Sequence[TenantId]:
    """The tenants who have documents in folders that are not known yet."""
    found = []
    for path in sorted(folder.glob(f"*/{DATABASE}")):
        if path.parent in known:
            continue
        with translated(f"cannot read {path}"):
            database = sqlite3.connect(path, timeout=10)
            try:
                row = database.execute("SELECT tenant FROM owner").fetchone()
            except sqlite3.DatabaseError:
                row = None  # just being made, broken, or of another version: told when somebody asks for it
            finally:
                database.close()
        if row is not None:
            found.append(TenantId(row[0]))
    return found


def census(folder: Path) -> list[TenantInfo]:
    """How much each tenant has that has a file in this folder, in the order of their ids; read without opening any of
    them for good. One that is broken is left out: its tenant is told when it asks."""
    found = []
    for path in sorted(folder.glob(f"*/{DATABASE}"))[:MOST_COUNTED]:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=10)) as database:
            try:
                found += [TenantInfo(*row) for row in database.execute(_COUNTS)]
            except sqlite3.DatabaseError as error:
                logger.warning("engine.not_counted", extra={"fields": {"path": str(path), "why": str(error)}})
    return sorted(found, key=lambda info: info.id)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """The one place where an error of the store becomes ours."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise EngineError(f"{what}: {error}") from error
