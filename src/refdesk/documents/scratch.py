"""Files that live only as long as they are needed, made and removed without holding the event loop up."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import IO, TypeVar

from anyio import CancelScope, to_thread

T = TypeVar("T")


@asynccontextmanager
async def in_thread(make: Callable[[], AbstractContextManager[T]]) -> AsyncIterator[T]:
    """Enter and leave a context in a thread: to open, close or remove a file can take milliseconds."""
    context = make()
    # Not to be called off halfway, or nobody would leave what was entered.
    with CancelScope(shield=True):
        value = await to_thread.run_sync(context.__enter__)
    try:
        yield value
    finally:
        with CancelScope(shield=True):
            await to_thread.run_sync(context.__exit__, None, None, None)


@asynccontextmanager
async def scratch_file() -> AsyncIterator[IO[bytes]]:
    """A file without a name, gone at the end."""
    async with in_thread(_TemporaryFile) as file:
        yield file


class _TemporaryFile:
    """`tempfile.TemporaryFile`, but made only when it is entered."""

    _file: IO[bytes] | None = None

    def __enter__(self) -> IO[bytes]:
        self._file = tempfile.TemporaryFile()
        return self._file

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.close()

    def __del__(self) -> None:
        """Whoever is cancelled as a whole while the file is being made never comes to leave it."""
        if self._file is not None:
            self._file.close()
