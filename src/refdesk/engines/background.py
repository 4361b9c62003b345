"""Work that goes on beside a block, and ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from anyio import CancelScope


@asynccontextmanager
async def in_background(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Each work is a task of its own; no task group, which would wrap up whatever the block raises."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        with CancelScope(shield=True):
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
