"""Where a tenant's file lies, and whose file it is."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path

from refdesk.calls import TenantId
from refdesk.errors import EngineError

DATABASE = "knowledge.db"
"""The name of the file in a tenant's folder."""


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


@contextmanager
def translated(what: str) -> Iterator[None]:
    """The one place where an error of the store becomes ours."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise EngineError(f"{what}: {error}") from error
