"""A client that goes away stops the work behind it."""

from __future__ import annotations

import asyncio

from refdesk.inbound.asgi import ClientGone, Receive

WATCH_AFTER_SECONDS = 0.05
"""Most calls are over by then; only a longer one is worth a task that watches whether its client is still there."""


class Watch:
    """Around a call: cancels it when its client disconnects, and then raises `ClientGone` in its place."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task(loop)
        self._timer = loop.call_later(WATCH_AFTER_SECONDS, self._start)

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._gone and self._task is not None:
            self._task.uncancel()
            raise ClientGone

    def _start(self) -> None:
        self._watcher = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self._gone = True
        if self._task is not None:
            self._task.cancel()
