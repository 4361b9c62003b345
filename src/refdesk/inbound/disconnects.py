"""A client that goes away, or thinks better of it, stops the work behind its call.

Most calls are over in a moment, so a call is only written down when it begins; now and then somebody looks who has
been here for long, and only for those a task waits for the client to leave.
"""

from __future__ import annotations

import asyncio

from refdesk.inbound.asgi import ClientGone, Receive

LOOK_EVERY_SECONDS = 0.1


class CalledOff(Exception):
    """The client has cancelled its call and wants no answer to it."""


class Watches:
    """The calls that are under way."""

    def __init__(self) -> None:
        self._new: set[Watch] = set()
        self._timer: asyncio.TimerHandle | None = None
        # Asking for it again would cost a system call each time before Python 3.12.
        self.loop = asyncio.get_running_loop()

    def over(self, receive: Receive) -> Watch:
        """A watch over the call that the current task is about to make."""
        return Watch(self, receive)

    def add(self, watch: Watch) -> None:
        """Look after a call, unless it ends first."""
        self._new.add(watch)
        if self._timer is None:
            self._timer = self.loop.call_later(LOOK_EVERY_SECONDS, self._look)

    def forget(self, watch: Watch) -> None:
        """The call has ended."""
        self._new.discard(watch)

    def _look(self) -> None:
        self._timer = None
        for watch in self._new:
            watch.start()
        self._new.clear()


class Watch:
    """Around a call: cancels it when its client disconnects or says so, and then raises the reason in its place."""

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
        """Wait for the client to leave."""
        self._watcher = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self.stop(ClientGone())

    def stop(self, reason: Exception) -> None:
        """Cancel the call; the reason is what it ends with."""
        if self._task is not None and self._reason is None:
            self._reason = reason
            self._task.cancel()
