"""The threads that searches run in: the one that was busy last is the first to be busy again.

A search takes some milliseconds, and a twentieth of them went into the guards and counters of anyio's threads, as much
again into memory that a thread finds cold when others had their turn since its last (Python's own pool lets them take
turns).
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future, get_running_loop
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from refdesk.errors import EngineError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Call:
    """A search, and who waits for it."""

    work: Callable[[], Any]
    context: Context
    loop: AbstractEventLoop
    done: Future[Any]


class SearchThreads:
    """So many searches at a time, others wait. Everything but the work itself happens in the event loop."""

    def __init__(self, count: int) -> None:
        self._left = count
        """How many may still be started."""
        self._idle: list[_Worker] = []
        self._waiting: deque[_Call] = deque()
        self._is_closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Do this in a thread; whoever is cancelled meanwhile leaves it behind."""
        if self._is_closed:
            raise EngineError("the desk is closed")
        loop = get_running_loop()
        done: Future[T] = loop.create_future()
        self._waiting.append(_Call(work, copy_context(), loop, done))
        if not self._idle and self._left:
            self._left -= 1
            self._idle.append(_Worker(self._ended))
        self._begin()
        return await done

    def close(self) -> None:
        """Take no more calls; those under way come to their end."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().calls.put(None)

    def _begin(self) -> None:
        while self._idle and self._waiting:
            call = self._waiting.popleft()
            if not call.done.cancelled():
                self._idle.pop().calls.put(call)

    def _ended(self, worker: _Worker, call: _Call, found: Any, error: BaseException | None) -> None:
        self._idle.append(worker)
        self._begin()
        if self._is_closed:
            self.close()
        if error is not None and not call.done.cancelled():
            call.done.set_exception(error)
        elif not call.done.cancelled():
            call.done.set_result(found)


class _Worker(Thread):
    """One thread. It keeps no process alive: a disk that hangs is no reason not to end."""

    def __init__(self, ended: Callable[[_Worker, _Call, Any, BaseException | None], None]) -> None:
        super().__init__(name="refdesk-search", daemon=True)
        self.calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._ended = ended
        self.start()

    def run(self) -> None:
        while (call := self.calls.get()) is not None:
            self._do(call)
            del call  # or what it holds would stay until the next one

    def _do(self, call: _Call) -> None:
        found, error = None, None
        try:
            found = call.context.run(call.work)
        except BaseException as raised:  # noqa: BLE001  whoever waits has it raised
            error = raised
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            call.loop.call_soon_threadsafe(self._ended, self, call, found, error)
