"""Calls that go on while their client is away to answer a question.

A client of the newest revision is asked by ending its call; a server of an older one asks in the middle of it, and
waits. Between the two, the request to the server goes on in a task of its own, under a handle that only the caller who
was given it can bring back, and no longer than the call may take.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from refdesk.calls import Client, InputRequired
from refdesk.errors import InvalidArguments, InvalidCall, Overloaded, Problem
from refdesk.tools.client_callbacks import refuse_unasked, tell

MAX_AWAY = 1000
"""Calls whose clients are away, of all callers together: each holds a task and a place at its server."""

MAX_AWAY_OF_ONE = 32
"""The same for one caller, so that nobody takes all places."""

HANDLE_BYTES = 18

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Question:
    method: str
    params: Mapping[str, Any]
    answer: asyncio.Future[Mapping[str, Any]]


class Conversation:
    """One such call: the voice that its server hears, and the way on for the client each time it comes back."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_away = False
        self._questions: dict[str, _Question] = {}
        self._asked = 0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[Result] | None = None

    @property
    def key(self) -> object:
        """Of the client that called first."""
        return self._client.key

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Pass on what the server tells; nobody hears it while the client is away."""
        if not self._is_away:
            await tell(self._client, method, params)

    async def ask(self, id: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Wait until the client has come back with the answer."""
        if (known := refuse_unasked(self._client, method)) is not None:
            return known
        self._asked += 1
        name = f"question-{self._asked}"
        question = self._questions[name] = _Question(method, params, asyncio.get_running_loop().create_future())
        self._changed.set()
        try:
            return await question.answer
        finally:
            del self._questions[name]

    async def begin(self, request: Callable[..., Coroutine[Any, Any, Result]]) -> Result:
        """Make the request with this as its `voice`, and go on until it is answered or something is asked."""
        self._task = asyncio.create_task(request(voice=self))
        self._task.add_done_callback(self._over)
        return await self._until_asked(self._task)

    async def go_on(self, client: Client, answers: object) -> Result:
        """Give the server the answers, and go on as before."""
        self._client, self._is_away = client, False
        for name, answer in answers.items() if isinstance(answers, Mapping) else ():
            question = self._questions.get(name)
            if question is None or question.answer.done():
                continue
            if isinstance(answer, Mapping):
                question.answer.set_result(answer)
            else:
                question.answer.set_exception(InvalidArguments([Problem(name, "must be an object")]))
        assert self._task is not None
        return await self._until_asked(self._task)

    def end(self) -> asyncio.Task[Result] | None:
        """Give the call up; the server is told."""
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def _until_asked(self, task: asyncio.Task[Result]) -> Result:
        try:
            while not task.done():
                open_questions = {
                    name: {"method": question.method, "params": question.params}
                    for name, question in self._questions.items()
                    if not question.answer.done()
                }
                if open_questions:
                    self._is_away = True
                    raise InputRequired(open_questions)
                self._changed.clear()
                await self._changed.wait()
        except asyncio.CancelledError:
            task.cancel()
            raise
        return task.result()

    def _over(self, task: asyncio.Task[Result]) -> None:
        self._changed.set()
        if not task.cancelled():
            task.exception()  # nobody may ever come back for it


@dataclass(frozen=True, slots=True)
class _Place:
    conversation: Conversation
    owner: Hashable
    about: Hashable
    expiry: asyncio.TimerHandle


class Conversations:
    """The table of calls whose clients are away."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def keep(self, conversation: Conversation, owner: Hashable, about: Hashable, seconds: float) -> str:
        """A handle for a call that is waiting; it is given up when nobody comes back in time."""
        own = sum(place.owner == owner for place in self._places.values())
        if len(self._places) >= MAX_AWAY or own >= MAX_AWAY_OF_ONE:
            conversation.end()
            raise Overloaded("Too many calls wait for an answer of their clients; try again later", retry_after=seconds)
        handle = secrets.token_urlsafe(HANDLE_BYTES)
        expiry = asyncio.get_running_loop().call_later(seconds, self._expire, handle)
        self._places[handle] = _Place(conversation, owner, about, expiry)
        return handle

    def take(self, handle: str, owner: Hashable, about: Hashable) -> Conversation:
        """The call under a handle, for its owner and about the same thing only."""
        place = self._places.get(handle)
        if place is None or place.owner != owner or place.about != about:
            raise InvalidCall("The call that this answers has been waiting too long, or was another; call anew")
        place.expiry.cancel()
        del self._places[handle]
        return place.conversation

    async def close(self) -> None:
        """Give up all of them."""
        places, self._places = self._places, {}
        for place in places.values():
            place.expiry.cancel()
        tasks = [task for place in places.values() if (task := place.conversation.end()) is not None]
        if tasks:
            await asyncio.wait(tasks)

    def _expire(self, handle: str) -> None:
        self._places.pop(handle).conversation.end()
