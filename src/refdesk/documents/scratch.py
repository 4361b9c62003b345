"""Temporary files that are created and removed in a thread."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
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


@asynccontextmanager
async def scratch_file() -> AsyncIterator[IO[bytes]]:
    """Open an unnamed temporary file, deleted at the end."""
    async with in_thread(_TemporaryFile) as file:
        yield file


class _TemporaryFile:
    """`tempfile.TemporaryFile` that is created on enter."""

    _file: IO[bytes] | None = None

    def __enter__(self) -> IO[bytes]:
        self._file = tempfile.TemporaryFile()
        return self._file

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.close()

    def __del__(self) -> None:
        """Close the file if the task was cancelled while it was being created."""
        if self._file is not None:
            self._file.close()
