"""A desk that several tests share, and callers of whom nobody else has heard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio

from refdesk.app import Desk, open_desk
from refdesk.calls import Caller, TenantId, UserId
from refdesk.config.loading import load
from refdesk.engines.base import SHARED, Listing
from tests.waiting import PATIENCE_SECONDS


@asynccontextmanager
async def open_indexed_desk(data: Path, **settings: Any) -> AsyncIterator[Desk]:
    """A desk on a folder, whose manual can be searched; keyword arguments are settings with `__` for the dot."""
    # Without a model: what it adds is shown where search itself is tested, and it takes seconds to embed.
    given = {"data_dir": str(data), "embedding.source": "none"}
    given |= {name.replace("__", "."): value for name, value in settings.items()}
    async with open_desk(load(None, {}, given)) as desk:
        with anyio.fail_after(PATIENCE_SECONDS):
            unread = Listing("refdesk", ("pending", "converting"), limit=100)
            while statuses := (await desk.engine.documents(SHARED, unread))[0]:
                await desk.engine.wait(SHARED, [status.id for status in statuses], seconds=10)
        yield desk


def somebody(name: str, tenant: str | None = None) -> Caller:
    """A user of a tenant that no other test has, unless one is given."""
    return Caller(user=UserId(name), tenant=TenantId(tenant or f"{name}-{uuid4().hex}"), authenticated=True)
