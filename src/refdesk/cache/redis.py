"""Answers in Redis, for all processes: what is kept, what is being made, and what a change has made worthless.

Every tenant has a generation in Redis, a random word that each kept answer carries. A change removes it; whoever asks
next makes a new one up, and all answers of the old one are worthless, in every process at once. So they are when a
generation is lost (evicted, expired, Redis restarted): nothing can make an answer valid again.

Whether an answer still holds is known in Redis only, so that Redis is asked each time. But an answer that this process
has read or made before stays in its memory, and Redis need only say that it is still the one: to read it anew, check
it and take it apart costs more than to ask.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from refdesk.cache.key import escaped, redis_pattern
from refdesk.cache.memory import Held, Memory
from refdesk.cache.response_meta import WireAnswer
from refdesk.cache.scripts import KEEP, LOOK, READ, RELEASE, RENEW
from refdesk.cache.signing import GENERATION_BYTES, HEAD_BYTES, Broken, sealed, unsealed
from refdesk.calls import TenantId
from refdesk.resilience.redis import RedisAway, RedisLink

if TYPE_CHECKING:
    from redis.asyncio import Redis

PREFIX = "refdesk:1:"
"""Of every key. The number rises when what is kept under them changes its form."""

LOCK_SECONDS = 1.0
"""How long others wait for a process that died while it made an answer; one that lives renews its lock in time."""

REFUSED_SECONDS = 5.0
"""How long to wait before a Redis that is there, and refuses to write, is told once more what has changed."""

GENERATION_SECONDS = 7 * 86_400
"""How long a generation lasts: longer than any answer, so that few are lost with it."""

MAX_VALUE_BYTES = 1_000_000
"""Of an answer that is kept: what is larger could not be read within Redis's time."""

MAX_PENDING = 1000
"""Tenants whose changes wait for Redis to be back. Beyond that, everything is cleared then."""

KNOWN = -1
"""In place of the number of a change: in memory, what is in Redis as well has places of its own."""

SCAN_COUNT = 1000
"""Keys looked through in a step of clearing: well within Redis's time."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for."""

    name: str
    tenant: TenantId
    seconds: float
    """How long its answer is kept."""
    fits: Callable[[WireAnswer], bool]
    """Whether an answer is one to this."""

    @property
    def keys(self) -> tuple[str, str, str]:
        """Its keys in Redis: the answer, the tenant's generation, the lock."""
        return f"{PREFIX}answer:{self.name}", _generation_key(self.tenant), self.lock

    @property
    def lock(self) -> str:
        return f"{PREFIX}lock:{self.name}"


@dataclass(frozen=True, slots=True)
class Look:
    """What is there, and whether it is ours to make a new one."""

    held: Held | None
    leads: bool
    generation: bytes = b""


class Shared:
    """The answers in one Redis; whatever Redis does not do raises RedisAway."""

    def __init__(
        self,
        link: RedisLink,
        memory: Memory,
        stale_seconds: float,
        secret: bytes,
        counted: Callable[[str], None],
        *,
        lock_seconds: float = LOCK_SECONDS,
        max_pending: int = MAX_PENDING,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._link = link
        self._memory = memory
        self._stale_seconds = stale_seconds
        self._secret = secret
        self._counted = counted
        self._lock_seconds = lock_seconds
        self._max_pending = max_pending
        self._pause = pause
        self._we = secrets.token_bytes(16)
        """By which Redis knows this process as the one who makes an answer. What it asked Redis for and heard nothing
        of may have been done, so that it can find itself to be the one already."""
        self._pending: dict[TenantId, int] = {}
        self._is_flooded = False
        self._changes = 0

    async def look(self, question: Question) -> Look:
        """What is kept; unless it is fresh, and nobody else makes a new one, that is ours to do from now on."""
        await self.tell_changes()
        stale, longest = self._milliseconds(question)
        known = self._memory.find((question.name, KNOWN))
        given = stale, longest, known.mark if known else b""
        value = await self._link.run(lambda redis: READ.run(redis, question.keys[:2], *given))
        if value == 1 and known is not None:
            return Look(Held(known.answer, is_fresh=True), leads=False)
        if isinstance(value, bytes) and (answer := self._unsealed(question, value)):
            return Look(Held(answer, is_fresh=True), leads=False)
        return await self._claim(question)

    async def _claim(self, question: Question) -> Look:
        stale, longest = self._milliseconds(question)
        new = secrets.token_bytes(GENERATION_BYTES)
        given = stale, new, GENERATION_SECONDS, self._we, _milliseconds(self._lock_seconds)
        match await self._link.run(lambda redis: LOOK.run(redis, question.keys, *given)):
            case [None, int(), bytes(generation), int(leads)]:
                return Look(None, bool(leads), generation)
            case [bytes(value), int(left), bytes(generation), int(leads)]:
                answer = self._unsealed(question, value) if 0 <= left <= longest else None
                if answer is not None:
                    return Look(Held(answer, is_fresh=left > stale), bool(leads), generation)
                # What cannot be trusted is not there, and made anew by whoever sees it.
                self._counted("error")
                return Look(None, True, generation)
        raise RedisAway("Redis answered what it was not asked for")

    def _unsealed(self, question: Question, value: bytes) -> WireAnswer | None:
        try:
            answer = unsealed(question.name, value, self._secret)
        except Broken:
            return None
        if not question.fits(answer):
            return None
        self._know(question, value, answer)
        return answer

    def _know(self, question: Question, value: bytes, answer: WireAnswer) -> None:
        self._memory.keep((question.name, KNOWN), Held(answer, mark=value[:HEAD_BYTES]), question.seconds)

    def _milliseconds(self, question: Question) -> tuple[int, int]:
        """How long past its time the answer is kept, and in all."""
        return _milliseconds(self._stale_seconds), _milliseconds(question.seconds + self._stale_seconds)

    async def keep(self, question: Question, look: Look, answer: WireAnswer) -> None:
        """Keep what was made after this look, unless the tenant's documents have changed since."""
        value = sealed(question.name, look.generation, answer, self._secret)
        if len(value) > MAX_VALUE_BYTES:
            await self.release(question)
            return
        given = value, self._milliseconds(question)[1], look.generation, self._we
        await self._link.run(lambda redis: KEEP.run(redis, question.keys, *given))
        self._know(question, value, answer)

    async def release(self, question: Question) -> None:
        """Leave it to others to make it."""
        await self._link.run(lambda redis: RELEASE.run(redis, [question.lock], self._we))

    @asynccontextmanager
    async def leading(self, question: Question) -> AsyncIterator[None]:
        """Within the block others wait for us."""
        renewing = asyncio.create_task(self._renew(question))
        try:
            yield
        finally:
            renewing.cancel()

    async def _renew(self, question: Question) -> None:
        given = self._we, _milliseconds(self._lock_seconds)
        while True:
            await self._pause(self._lock_seconds / 3)
            with suppress(RedisAway):  # where there is no Redis, nobody waits
                await self._link.run(lambda redis: RENEW.run(redis, [question.lock], *given))

    def changed(self, tenant: TenantId) -> None:
        """Nothing that is kept for the tenant holds any longer. In this process that is so at once."""
        self._changes += 1
        self._pending[tenant] = self._changes
        if len(self._pending) > self._max_pending:
            self._pending.clear()
            self._is_flooded = True

    async def tell_changes(self) -> None:
        """Have Redis, and so all processes, know of the changes."""
        if self._is_flooded:
            changes = self._changes
            await self.clear("*")
            self._is_flooded = changes != self._changes
        if self._pending:
            pending = dict(self._pending)
            keys = [_generation_key(tenant) for tenant in pending]
            await self._link.run(lambda redis: redis.delete(*keys))
            self._pending = {tenant: n for tenant, n in self._pending.items() if pending.get(tenant) != n}

    async def tell_changes_when_it_is_back(self) -> None:
        """The same as soon as Redis is there to be told."""
        while self._pending or self._is_flooded:
            await self._link.back()
            try:
                await self.tell_changes()
            except RedisAway:
                await self._pause(REFUSED_SECONDS)

    async def clear(self, pattern: str) -> int:
        """Drop every answer whose name matches; how many there were."""
        matching = f"{PREFIX}answer:{redis_pattern(pattern)}"
        cursor, gone = 0, 0

        async def step(redis: Redis) -> tuple[int, int]:
            after, keys = await redis.scan(cursor, match=matching, count=SCAN_COUNT)
            return int(after), int(await redis.unlink(*keys)) if keys else 0

        while True:
            cursor, dropped = await self._link.run(step)
            gone += dropped
            if cursor == 0:
                return gone


def _generation_key(tenant: TenantId) -> str:
    return f"{PREFIX}generation:{escaped(tenant)}"


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
