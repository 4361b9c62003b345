"""Cancels the work of a call when its client disconnects or cancels it.

Most calls end quickly, so starting a call only registers it. A timer starts a listening task for those that take
longer.
"""

from __future__ import annotations

import asyncio

from refdesk.inbound.asgi import ClientGone, Receive

LOOK_EVERY_SECONDS = 0.1


class CalledOff(Exception):
    """The client has cancelled its request and expects no response."""


class Watches:
    """Registry of the calls in progress."""

    def __init__(self) -> None:
        self._new: set[Watch] = set()
        self._timer: asyncio.TimerHandle | None = None
        # Kept because looking it up costs a system call each time before Python 3.12.
        self.loop = asyncio.get_running_loop()

    def over(self, receive: Receive) -> Watch:
        """Return a watcher for the call that the current task is about to make."""
        return Watch(self, receive)

    def add(self, watch: Watch) -> None:
        """Register a call. A task waits for its client's disconnect unless the call ends first."""
        self._new.add(watch)
        if self._timer is None:
            self._timer = self.loop.call_later(LOOK_EVERY_SECONDS, self._look)

    def forget(self, watch: Watch) -> None:
        """Unregister a call that has ended."""
        self._new.discard(watch)

    def _look(self) -> None:
        self._timer = None
        for watch in self._new:
            watch.start()
        self._new.clear()


class Watch:
    """Context manager that cancels the current task when its client disconnects or cancels, and raises the reason."""

    __slots__ = ("_reason", "_receive", "_task", "_watcher", "_watches")

    def __init__(self, watches: Watches, receive: Receive) -> None:
        self._watches = watches
        self._receive = receive
        self._reason: Exception | None = None
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> Watch:
        self._task = asyncio.current_task(self._watches.loop)
        self._watches.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._watches.forget(self)
        if self._watcher is not None:
            self._watcher.cancel()
        if self._reason is not None and self._task is not None:
            self._task.uncancel()
            raise self._reason

    def start(self) -> None:
        """Start waiting for the client to disconnect."""
        self._watcher = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self.stop(ClientGone())

    def stop(self, reason: Exception) -> None:
        """Cancel the call. It ends with `reason`."""
        if self._task is not None and self._reason is None:
            self._reason = reason
            self._task.cancel()
