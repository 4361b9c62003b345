"""Background tasks owned by an object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from anyio import CancelScope


class TaskSet:
    """Running tasks of one owner. The event loop alone keeps only weak references to tasks."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None], name: str | None = None) -> asyncio.Task[None]:
        """Run `work` in the background."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def cancel(self) -> None:
        """Cancel the tasks and wait for them."""
        await cancel_all(list(self._tasks))


async def cancel_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for them."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def wait_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait for tasks to end. Cancelling this cancels them, and waits nevertheless."""
    if not tasks:
        return
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        await cancel_all(tasks)
        raise


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
