"""Thread pool for searches that reuses the most recently used thread.

A search takes a few milliseconds. The guards and counters of anyio's threads took a twentieth of that, and cold caches
as much again, because Python's own pool rotates its threads.
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
    """Search with the future that receives its result."""

    work: Callable[[], Any]
    context: Context
    loop: AbstractEventLoop
    done: Future[Any]


class SearchThreads:
    """Pool with a fixed number of threads and a queue. Everything but the work itself runs in the event loop."""

    def __init__(self, count: int) -> None:
        self._unstarted = count
        """Number of threads that may still be started."""
        self._idle: list[_Worker] = []
        self._queue: deque[_Call] = deque()
        self._is_closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function in a thread. If the caller is cancelled, the function continues unattended."""
        if self._is_closed:
            raise EngineError("the engine is closed")
        loop = get_running_loop()
        done: Future[T] = loop.create_future()
        self._queue.append(_Call(work, copy_context(), loop, done))
        if not self._idle and self._unstarted:
            self._unstarted -= 1
            self._idle.append(_Worker(self._finish))
        self._dispatch()
        return await done

    def close(self) -> None:
        """Reject new calls; running ones finish."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().calls.put(None)

    def _dispatch(self) -> None:
        while self._idle and self._queue:
            call = self._queue.popleft()
            if not call.done.cancelled():
                self._idle.pop().calls.put(call)

    def _finish(self, worker: _Worker, call: _Call, result: Any, error: BaseException | None) -> None:
        self._idle.append(worker)
        self._dispatch()
        if self._is_closed:
            self.close()
        if error is not None and not call.done.cancelled():
            call.done.set_exception(error)
        elif not call.done.cancelled():
            call.done.set_result(result)


class _Worker(Thread):
    """Daemon thread, so that a hanging disk doesn't keep the process alive."""

    def __init__(self, on_finish: Callable[[_Worker, _Call, Any, BaseException | None], None]) -> None:
        super().__init__(name="refdesk-search", daemon=True)
        self.calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._finish = on_finish
        self.start()

    def run(self) -> None:
        while (call := self.calls.get()) is not None:
            result, error = None, None
            try:
                result = call.context.run(call.work)
            except BaseException as raised:  # noqa: BLE001  raised in the awaiting task
                error = raised
            with suppress(RuntimeError):  # the loop is closed, nobody awaits the result
                call.loop.call_soon_threadsafe(self._finish, self, call, result, error)
            del call, result, error  # release the references while waiting for the next one
