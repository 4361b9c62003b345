"""Waiting for state that emits no event: another process, a file, a library's internals."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable

PATIENCE_SECONDS = 240.0
"""Time limit of a wait, below that of a test. Only a failing test waits this long, so it can be generous: on a new
machine that runs other tests too, the first server takes a minute or two to embed the manual."""

POLL_SECONDS = 0.01


async def eventually(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Poll a condition, plain or async, until it is true; raise `TimeoutError` after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            result = condition()
            if await result if inspect.isawaitable(result) else result:
                return
            await asyncio.sleep(POLL_SECONDS)


def eventually_sync(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Poll a condition outside an event loop, as `eventually` does inside one."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"the condition did not become true within {seconds:g} seconds")
        time.sleep(POLL_SECONDS)
