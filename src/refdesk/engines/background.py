"""Background tasks bound to a context manager."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from anyio import CancelScope


@asynccontextmanager
async def in_background(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run each coroutine as a task while the block runs, and cancel them when it ends.

    A task group isn't used because it would wrap the block's exceptions in an exception group.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        with CancelScope(shield=True):
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
