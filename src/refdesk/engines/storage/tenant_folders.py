"""Tenant folders: naming, discovery and ownership."""

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
"""Name of the database file in a tenant's folder."""

MAX_LISTED_TENANTS = 10_000
"""Maximum number of tenants in the tenant list; reading each takes about a millisecond."""

_COUNTS = """
SELECT tenant, (SELECT count(*) FROM documents), (SELECT count(*) FROM collections),
       (SELECT coalesce(sum(size_bytes), 0) FROM documents)
FROM owner
"""

logger = logging.getLogger(__name__)


def tenant_folder_name(tenant: TenantId) -> str:
    """Return the folder name of a tenant: readable where the tenant's name allows it, and unique."""
    if re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,60}", tenant):
        return f"n-{tenant}"
    return f"h-{hashlib.sha256(tenant.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


def list_new_tenants(folder: Path, known: Set[Path]) -> Sequence[TenantId]:
    """Return the tenants that have documents in folders not among `known`."""
    found = []
    for path in sorted(folder.glob(f"*/{DATABASE}")):
        if path.parent in known:
            continue
        with translate_errors(f"cannot read {path}"):
            database = sqlite3.connect(path, timeout=10)
            try:
                row = database.execute("SELECT tenant FROM owner").fetchone()
            except sqlite3.DatabaseError:
                row = None  # being created, broken, or of another version: reported when the tenant uses it
            finally:
                database.close()
        if row is not None:
            found.append(TenantId(row[0]))
    return found


def collect_tenant_info(folder: Path) -> list[TenantInfo]:
    """Return the sizes of all tenants in this folder, in the order of their ids.

    Each database is opened read-only for the query. Broken ones are skipped; their tenants get an error when they use
    them.
    """
    found = []
    for path in sorted(folder.glob(f"*/{DATABASE}"))[:MAX_LISTED_TENANTS]:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=10)) as database:
            try:
                found += [TenantInfo(*row) for row in database.execute(_COUNTS)]
            except sqlite3.DatabaseError as error:
                logger.warning("engine.not_counted", extra={"fields": {"path": str(path), "why": str(error)}})
    return sorted(found, key=lambda info: info.id)


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Raise storage errors as EngineError."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise EngineError(f"{what}: {error}") from error
