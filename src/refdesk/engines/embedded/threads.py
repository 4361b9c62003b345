"""Threads for calls that wait for files.

Not anyio's, which guard each call against cancellation and count it: a search takes some milliseconds, and that alone
was a twentieth of it.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from refdesk.errors import EngineError

T = TypeVar("T")


class Threads:
    """So many calls at a time, others wait."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, "refdesk-files")

    async def run(self, work: Callable[[], T]) -> T:
        """Do this in a thread; whoever is cancelled meanwhile leaves it behind."""
        context = copy_context()
        try:
            done = get_running_loop().run_in_executor(self._pool, lambda: context.run(work))
        except RuntimeError as error:
            raise EngineError("the desk is closed") from error
        return await done

    def close(self) -> None:
        """Take no more calls."""
        self._pool.shutdown(wait=False)
