"""Calls that continue while their client is away to answer a request.

A client of the newest revision is asked by ending its call, while an older server asks in the middle of it and waits.
In between, the request to the server continues in a task. Only its caller can resume it, by a handle, within the
timeout of the call.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from refdesk.calls import Client, InputRequired
from refdesk.errors import InvalidArguments, InvalidCall, Overloaded, Problem
from refdesk.tools.client_callbacks import check_capability, forward_notification

MAX_SUSPENDED = 1000
"""Suspended calls of all callers: each holds a task and a slot at its server."""

MAX_SUSPENDED_PER_CALLER = 32
"""The same for one caller."""

HANDLE_BYTES = 18

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _PendingRequest:
    method: str
    params: Mapping[str, Any]
    answer: asyncio.Future[Mapping[str, Any]]


class SuspendedCall:
    """A call that can be suspended and resumed; also the callbacks of its server."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_suspended = False
        self._pending: dict[str, _PendingRequest] = {}
        self._request_count = 0
        self._wakeup = asyncio.Event()
        self._task: asyncio.Task[Result] | None = None

    @property
    def key(self) -> object:
        """Key of the client that made the first call."""
        return self._client.key

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Forward a server's notification; dropped while suspended."""
        if not self._is_suspended:
            await forward_notification(self._client, method, params)

    async def ask(self, id: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Wait until the client has returned with the response."""
        if (fixed := check_capability(self._client, method)) is not None:
            return fixed
        self._request_count += 1
        name = f"question-{self._request_count}"
        pending = self._pending[name] = _PendingRequest(method, params, asyncio.get_running_loop().create_future())
        self._wakeup.set()
        try:
            return await pending.answer
        finally:
            del self._pending[name]

    async def start(self, request: Callable[..., Coroutine[Any, Any, Result]]) -> Result:
        """Send the request with this as its `callbacks`; run until it is answered or input is required."""
        self._task = asyncio.create_task(request(callbacks=self))
        self._task.add_done_callback(self._on_done)
        return await self._run_until_asked(self._task)

    async def resume(self, client: Client, answers: object) -> Result:
        """Pass the client's responses to the server, and continue as in `start`."""
        self._client, self._is_suspended = client, False
        for name, answer in answers.items() if isinstance(answers, Mapping) else ():
            pending = self._pending.get(name)
            if pending is None or pending.answer.done():
                continue
            if isinstance(answer, Mapping):
                pending.answer.set_result(answer)
            else:
                pending.answer.set_exception(InvalidArguments([Problem(name, "must be an object")]))
        assert self._task is not None
        return await self._run_until_asked(self._task)

    def cancel_request(self) -> asyncio.Task[Result] | None:
        """Cancel the request to the server."""
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def _run_until_asked(self, task: asyncio.Task[Result]) -> Result:
        try:
            while not task.done():
                open_requests = {
                    name: {"method": pending.method, "params": pending.params}
                    for name, pending in self._pending.items()
                    if not pending.answer.done()
                }
                if open_requests:
                    self._is_suspended = True
                    raise InputRequired(open_requests)
                self._wakeup.clear()
                await self._wakeup.wait()
        except asyncio.CancelledError:
            task.cancel()
            raise
        return task.result()

    def _on_done(self, task: asyncio.Task[Result]) -> None:
        self._wakeup.set()
        if not task.cancelled():
            task.exception()  # retrieved here in case the client never comes back


@dataclass(frozen=True, slots=True)
class _Entry:
    suspended: SuspendedCall
    owner: Hashable
    subject: Hashable
    expiry: asyncio.TimerHandle


class SuspendedCalls:
    """The table of suspended calls."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, suspended: SuspendedCall, owner: Hashable, subject: Hashable, seconds: float) -> str:
        """Store a suspended call and return its handle; it is cancelled after `seconds`."""
        count = sum(entry.owner == owner for entry in self._entries.values())
        if len(self._entries) >= MAX_SUSPENDED or count >= MAX_SUSPENDED_PER_CALLER:
            suspended.cancel_request()
            raise Overloaded("Too many calls are waiting for their clients. Try again later", retry_after=seconds)
        handle = secrets.token_urlsafe(HANDLE_BYTES)
        expiry = asyncio.get_running_loop().call_later(seconds, self._expire, handle)
        self._entries[handle] = _Entry(suspended, owner, subject, expiry)
        return handle

    def take(self, handle: str, owner: Hashable, subject: Hashable) -> SuspendedCall:
        """Remove and return the call of a handle, for its owner and the same subject only."""
        entry = self._entries.get(handle)
        if entry is None or entry.owner != owner or entry.subject != subject:
            raise InvalidCall("The suspended call has expired, or was another one. Call again")
        entry.expiry.cancel()
        del self._entries[handle]
        return entry.suspended

    async def close(self) -> None:
        """Cancel all suspended calls."""
        entries, self._entries = self._entries, {}
        for entry in entries.values():
            entry.expiry.cancel()
        tasks = [task for entry in entries.values() if (task := entry.suspended.cancel_request()) is not None]
        if tasks:
            await asyncio.wait(tasks)

    def _expire(self, handle: str) -> None:
        self._entries.pop(handle).suspended.cancel_request()
