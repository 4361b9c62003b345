"""Cancels the work of a call when its client disconnects or cancels it.

Most calls end quickly, so starting a call only registers it. A timer starts a listening task for those that take
longer, and the first message of a call starts it at once.
"""

from __future__ import annotations

import asyncio

from refdesk.inbound.asgi import ClientGone, Receive

CHECK_INTERVAL_SECONDS = 0.1


class RequestCancelled(Exception):
    """The client has cancelled its request and expects no response."""


class DisconnectMonitor:
    """Registry of the calls in progress."""

    def __init__(self) -> None:
        self._new: set[DisconnectWatcher] = set()
        self._timer: asyncio.TimerHandle | None = None
        # Kept because looking it up costs a system call each time before Python 3.12.
        self.loop = asyncio.get_running_loop()

    def watch(self, receive: Receive) -> DisconnectWatcher:
        """Return a watcher for the call that the current task is about to make."""
        return DisconnectWatcher(self, receive)

    def add(self, watcher: DisconnectWatcher) -> None:
        """Register a call. A task waits for its client's disconnect unless the call ends first."""
        self._new.add(watcher)
        if self._timer is None:
            self._timer = self.loop.call_later(CHECK_INTERVAL_SECONDS, self._start_watchers)

    def remove(self, watcher: DisconnectWatcher) -> None:
        """Unregister a call that has ended."""
        self._new.discard(watcher)

    def _start_watchers(self) -> None:
        self._timer = None
        for watcher in self._new:
            watcher.start()
        self._new.clear()


class DisconnectWatcher:
    """Context manager that cancels the current task when its client disconnects or cancels, and raises the reason."""

    __slots__ = ("_monitor", "_reason", "_receive", "_task", "_watcher")

    def __init__(self, monitor: DisconnectMonitor, receive: Receive) -> None:
        self._monitor = monitor
        self._receive = receive
        self._reason: Exception | None = None
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> DisconnectWatcher:
        self._task = asyncio.current_task(self._monitor.loop)
        self._monitor.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._monitor.remove(self)
        if self._watcher is not None:
            self._watcher.cancel()
        if self._reason is not None and self._task is not None:
            self._task.uncancel()
            raise self._reason

    def start(self) -> None:
        """Start waiting for the client to disconnect, unless this has begun."""
        if self._watcher is None:
            self._watcher = asyncio.ensure_future(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self.stop(ClientGone())

    def cancel(self) -> None:
        """Cancel the call at its client's request."""
        self.stop(RequestCancelled())

    def stop(self, reason: Exception) -> None:
        """Cancel the call. It ends with `reason`."""
        if self._task is not None and self._reason is None:
            self._reason = reason
            self._task.cancel()
