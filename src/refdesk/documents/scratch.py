"""Temporary files that are created and removed in a thread."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import IO, TypeVar

from anyio import CancelScope, to_thread

T = TypeVar("T")


@asynccontextmanager
async def in_thread(make: Callable[[], AbstractContextManager[T]]) -> AsyncIterator[T]:
    """Enter and exit a context manager in a thread: opening, closing or removing a file takes milliseconds."""
    context = make()
    # Shielded, so that whatever was entered is exited.
    with CancelScope(shield=True):
        value = await to_thread.run_sync(context.__enter__)
    try:
        yield value
    finally:
        with CancelScope(shield=True):
            await to_thread.run_sync(context.__exit__, None, None, None)


def scratch_file() -> AbstractAsyncContextManager[IO[bytes]]:
    """Open an unnamed temporary file, deleted at the end."""
    return in_thread(_create_temporary_file)


@contextmanager
def _create_temporary_file() -> Iterator[IO[bytes]]:
    """Create the file on enter. If the task is cancelled meanwhile, collecting this generator closes it."""
    with tempfile.TemporaryFile() as file:
        yield file
