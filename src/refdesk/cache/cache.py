"""The cache that tools ask: who gives an answer when, and who makes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b

from refdesk.cache.invalidation import Changes
from refdesk.cache.key import Key, matcher
from refdesk.cache.memory import Held, Memory, Place
from refdesk.cache.redis import LOCK_SECONDS, MAX_PENDING, Look, Question, Shared
from refdesk.cache.response_meta import Given, WireAnswer
from refdesk.cache.signing import is_answer
from refdesk.calls import InputRequired, TenantId
from refdesk.config import CacheConfig
from refdesk.errors import ClientCannot, DependencyError, MissingCapability, Overloaded, RateLimited, RefdeskError
from refdesk.resilience.partial_results import noting_shortfalls
from refdesk.resilience.redis import RedisAway, RedisLink
from refdesk.resilience.single_flight import Flights
from refdesk.version import __version__

Make = Callable[[], Awaitable[WireAnswer]]

BEHIND_AT_ONCE = 16
"""Answers made anew behind old ones at a time: it is work that nobody waits for."""

BEHIND_SECONDS = 60.0
"""How long that may take; there is no call around it whose deadline would end it."""

FIRST_PAUSE_SECONDS = 0.01
LONGEST_PAUSE_SECONDS = 0.25
"""Between looks for what another process makes: short against what is worth keeping, and few."""


class _MakerLeft(Exception):
    """Whoever made it by talking to his own client has gone; another has to make it with his."""


HIS_OWN = (InputRequired, ClientCannot, MissingCapability, _MakerLeft)
"""What has to do with one client and tells nothing about the next one's."""


@dataclass(slots=True, eq=False)
class _Wanted:
    """One caller's wish for an answer."""

    place: Place
    question: Question
    make: Make
    is_certain: bool
    is_flying: bool = False
    """Whether it is this caller's own making that all wait for."""
    has_left: asyncio.Event | None = None
    """Where it is personal: set when he goes away."""


class Cache:
    """Answers that are kept, and answers that are being made."""

    def __init__(
        self,
        settings: CacheConfig,
        redis: RedisLink | None = None,
        *,
        namespace: str = "",
        secret: bytes = b"",
        counted: Callable[[str], None] = lambda result: None,
        holds: Callable[[int, int], None] = lambda entries, size: None,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        lock_seconds: float = LOCK_SECONDS,
        max_pending: int = MAX_PENDING,
    ) -> None:
        self._link = redis
        self._memory = Memory(settings, now=now, holds=holds)
        # Another version may answer otherwise: while one takes the other's place, each has its own.
        shared_by = repr((namespace, __version__)).encode()
        self._secret = blake2b(shared_by, key=blake2b(secret).digest()).digest()
        self._shared: Shared | None = None
        if redis is not None:
            self._shared = Shared(
                redis, self._memory, settings.stale_seconds, self._secret, counted,
                lock_seconds=lock_seconds, max_pending=max_pending, pause=pause,
            )  # fmt: skip
        self._counted = counted
        self._pause = pause
        self._changes = Changes()
        self._flights: Flights[Place, Given] = Flights()
        self._behind: dict[Place, asyncio.Task[None]] = {}
        self._telling: asyncio.Task[None] | None = None
        self._clearings = 0
        self._losses = redis.losses if redis else 0

    def __len__(self) -> int:
        return len(self._memory)

    @property
    def bytes(self) -> int:
        """About what the answers in memory take."""
        return self._memory.bytes

    async def answer(
        self,
        key: Key,
        seconds: float,
        make: Make,
        *,
        fits: Callable[[WireAnswer], bool] = is_answer,
        is_certain: bool = False,
        is_personal: bool = False,
    ) -> Given:
        """The answer that is kept, or a new one; with no seconds nothing is kept.

        `fits` says whether what comes from Redis can be an answer to this. `is_certain` means that the key's revision
        proves an old answer right, and `is_personal` that to make it may take the caller's own client: it is then made
        only while he is there.
        """
        if seconds <= 0:
            return Given(await make(), is_kept=False)
        if self._shared is not None and not is_certain:
            # The revision is one of this machine alone; what has changed is told through Redis, to all of them.
            key = replace(key, revision=None)
        name = key.name(self._secret)
        place = name, self._changes.number(key.tenant)
        if not self._has_redis() and (held := self._memory.find(place)) and held.is_fresh:
            self._counted("hit")
            return Given(held.answer, is_kept=True)
        question = Question(name, key.tenant, seconds, fits)
        has_left = asyncio.Event() if is_personal else None
        return await self._flown(_Wanted(place, question, make, is_certain and not is_personal, has_left=has_left))

    def changed(self, tenant: TenantId) -> None:
        """No answer of the tenant holds any longer; what is being made at this moment is given, and not kept."""
        self._changes.add(tenant)
        if self._shared is not None:
            self._shared.changed(tenant)
            if self._telling is None or self._telling.done():
                self._telling = asyncio.create_task(self._shared.tell_changes_when_it_is_back())

    async def clear_pattern(self, pattern: str) -> int:
        """Drop the answers whose names match, such as `pattern_of(tenant)`; how many there were.

        What other processes are making at this moment may be kept after that.
        """
        self._clearings += 1
        gone = self._memory.clear(matcher(pattern))
        return await self._shared.clear(pattern) if self._shared else gone

    async def close(self) -> None:
        """Stop what goes on in the background."""
        tasks = [*self._behind.values(), *([self._telling] if self._telling else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _has_redis(self) -> bool:
        """Whether Redis is there. When it comes back, what memory has kept meanwhile is not to be trusted again:
        the next time that Redis is away, others may have changed what it is about."""
        if self._link is None or self._link.is_away:
            return False
        if self._losses != self._link.losses:
            self._losses = self._link.losses
            self._memory.clear()
        return True

    async def _flown(self, wanted: _Wanted) -> Given:
        """The answer, made once for all who want it now."""
        while True:
            try:
                given = await self._flights.run(wanted.place, lambda: self._obtained(wanted))
            except HIS_OWN:
                if wanted.is_flying:
                    raise
            except asyncio.CancelledError:
                if wanted.has_left is not None:
                    wanted.has_left.set()
                raise
            else:
                if wanted.is_flying:
                    return given
                self._counted("stale" if given.is_stale else "hit" if given.is_kept else "shared")
                return given._replace(is_kept=True)

    async def _obtained(self, wanted: _Wanted) -> Given:
        """The answer from where it is kept, or made."""
        wanted.is_flying = True
        look = await self._looked(wanted) if self._has_redis() else None
        shared = self._shared if look else None
        if look is None:
            look = Look(self._memory.find(wanted.place), leads=True)
        held = look.held
        if held is not None and held.is_fresh:
            self._counted("hit")
            return Given(held.answer, is_kept=True)
        if held is not None and wanted.is_certain:
            self._counted("stale")
            if look.leads:
                await self._make_behind(wanted, look, shared)
            return Given(held.answer, is_kept=True)
        given = await self._made(wanted, look, shared)
        self._counted("stale" if given.is_stale else "miss")
        return given

    async def _looked(self, wanted: _Wanted) -> Look | None:
        """What Redis has, once that is fresh or ours to make; till then another process makes it. None without one."""
        assert self._shared is not None
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                look = await self._shared.look(wanted.question)
            except RedisAway:
                self._counted("error")
                return None
            if look.leads or (look.held and (look.held.is_fresh or wanted.is_certain)):
                return look
            await self._pause(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _made(self, wanted: _Wanted, look: Look, shared: Shared | None) -> Given:
        """A new answer, kept if it is all that it should be; or the old one, when something behind us fails."""
        clearings = self._clearings
        leading = shared.leading(wanted.question) if shared else nullcontext()
        try:
            async with leading:
                with noting_shortfalls() as shortfalls:
                    answer = await (_while_there(wanted.make, wanted.has_left) if wanted.has_left else wanted.make())
        except BaseException as error:
            await self._released(wanted, shared)
            if look.held is None or not isinstance(error, (DependencyError, Overloaded, RateLimited)):
                raise
            return Given(look.held.answer, is_kept=True, is_stale=True)
        if clearings == self._clearings and not shortfalls.count:
            await self._kept(wanted, look, shared, answer)
        else:
            await self._released(wanted, shared)
        return Given(answer, is_kept=False)

    async def _kept(self, wanted: _Wanted, look: Look, shared: Shared | None, answer: WireAnswer) -> None:
        if shared is not None:
            try:
                await shared.keep(wanted.question, look, answer)
            except RedisAway:
                self._counted("error")
        elif not self._has_redis():
            self._memory.keep(wanted.place, Held(answer), wanted.question.seconds)

    async def _released(self, wanted: _Wanted, shared: Shared | None) -> None:
        if shared is not None:
            with suppress(RedisAway):  # the lock then ends by itself
                await shared.release(wanted.question)

    async def _make_behind(self, wanted: _Wanted, look: Look, shared: Shared | None) -> None:
        """Make it anew while the old one is given; when too much is being made so, the next one who asks does."""
        place = wanted.place
        if place in self._behind:
            return
        if len(self._behind) >= BEHIND_AT_ONCE:
            await self._released(wanted, shared)
            return
        self._behind[place] = task = asyncio.create_task(self._made_behind(wanted, look, shared))
        task.add_done_callback(lambda task: self._behind.pop(place))

    async def _made_behind(self, wanted: _Wanted, look: Look, shared: Shared | None) -> None:
        """Nobody waits for it: if it fails, whoever asks next tries again."""
        with suppress(RefdeskError, TimeoutError):
            async with asyncio.timeout(BEHIND_SECONDS):
                await self._made(wanted, look, shared)


async def _while_there(make: Make, has_left: asyncio.Event) -> WireAnswer:
    """What is made with the help of the caller's client, for as long as he waits for it."""
    making = asyncio.ensure_future(make())
    leaving = asyncio.ensure_future(has_left.wait())
    try:
        await asyncio.wait((making, leaving), return_when=asyncio.FIRST_COMPLETED)
        if making.done():
            return making.result()
        raise _MakerLeft
    finally:
        making.cancel()
        leaving.cancel()


@asynccontextmanager
async def open_cache(
    settings: CacheConfig,
    redis: RedisLink | None = None,
    *,
    namespace: str = "",
    secret: bytes = b"",
    counted: Callable[[str], None] = lambda result: None,
    holds: Callable[[int, int], None] = lambda entries, size: None,
) -> AsyncIterator[Cache]:
    """A cache in memory, or in Redis where a link is given.

    Processes share answers when they have the same `namespace`, which is to say what their answers are made from, and
    the same `secret`, which makes worthless what others write to that Redis. `counted` is told of each question that it
    was a `hit`, a `miss`, `shared` with who asked for the same at once, or `stale`; and of each `error` of Redis.
    `holds` is told how many entries and bytes there are in memory.
    """
    cache = Cache(settings, redis, namespace=namespace, secret=secret, counted=counted, holds=holds)
    try:
        yield cache
    finally:
        await cache.close()
