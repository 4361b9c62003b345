"""The link to Redis, of which nothing is expected: an operation ends within its time, whatever Redis does.

Redis only ever makes things faster or shares them among processes. So a Redis that is dead, slow, paused or talks
nonsense costs the operations that meet it first their short time-out; from then on it is known to be away, every
operation ends at once, and a probe in the background notices when it is back. The client's own time-outs are not
relied on: each of the several commands that set a connection up would get its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from refdesk.config import RedisConfig
from refdesk.errors import ConfigError, DependencyError

if TYPE_CHECKING:
    from redis.asyncio import Redis

T = TypeVar("T")

Changed = Callable[[str, str], None]
"""Told of a new state, and of the reason where it is a bad one."""

CONNECTIONS = 32
"""Operations at a time, each on a connection of its own; a process cannot keep more than a few busy."""

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
"""Between probes, doubling: what is back is used again within seconds, and what is not costs next to nothing."""

STEADY_SECONDS = 10.0
"""How long Redis has to be well for its earlier absences to be forgotten. One that answers the probe and nothing else
would otherwise cost every call its time-out."""

CLOSING_SECONDS = 1.0
"""How long closing the connections may take; a paused Redis does not answer a goodbye."""

NONSENSE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What the client library raises, besides its own errors, over replies that no Redis would give."""


class RedisAway(DependencyError):
    """Redis did not do what it was asked to; whoever asked goes on without it."""


class RedisLink:
    """A pool of connections that is left alone while nobody answers at the other end."""

    def __init__(
        self,
        client: Redis,
        timeout_seconds: float,
        *,
        now: Callable[[], float] = time.monotonic,
        changed: Changed = lambda state, reason: None,
    ) -> None:
        from redis.exceptions import RedisError, ResponseError

        self._refusals = ResponseError
        self._failures = (RedisError, OSError, *NONSENSE)
        self._client = client
        self.timeout_seconds = timeout_seconds
        """Time limit of an operation and of a probe. Those under way keep the one they began with."""
        self._now = now
        self._changed = changed
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._timers: set[asyncio.Timeout] = set()
        self._trouble: str | None = None
        self._lost = asyncio.Event()
        self._back = asyncio.Event()
        self._back.set()
        self._pause = 0.0
        self._well_since = now()
        self.losses = 0
        """How often Redis was found to be away."""

    @property
    def is_away(self) -> bool:
        """Whether Redis is known not to answer."""
        return self._trouble is not None

    def describe(self) -> dict[str, Any]:
        """How the link is, for `/ready`, which anybody may read: why it is so, with addresses, is for the log."""
        return {"state": "ok"} if self._trouble is None else {"state": "away", "detail": "the log says why"}

    async def back(self) -> None:
        """Wait until Redis is not away."""
        await self._back.wait()

    async def run(self, work: Callable[[Redis], Awaitable[T]]) -> T:
        """What `work` makes of its commands, or RedisAway: at once while Redis is away, else in time.

        `work` is to do nothing but commands, so that whatever fails in it is Redis's doing.
        """
        if self._trouble is not None:
            raise RedisAway(self._trouble)
        losses = self.losses
        is_running = False
        try:
            async with asyncio.timeout(self.timeout_seconds) as timer:
                self._timers.add(timer)
                try:
                    async with self._slots:
                        is_running = True
                        return await work(self._client)
                finally:
                    self._timers.discard(timer)
        except TimeoutError as error:
            # Who ran out of time in the queue has learnt nothing about Redis.
            raise self._away("Redis did not answer in time", losses if is_running else None) from error
        except self._refusals as error:
            raise self._away(f"Redis refused: {error}", None) from error
        except self._failures as error:
            raise self._away(f"Redis failed: {error}", losses) from error

    async def watch(self) -> None:
        """Look for Redis whenever it is away, and say when it is back; runs for ever."""
        while True:
            await self._lost.wait()
            await asyncio.sleep(self._pause)
            self._pause = min(max(self._pause * 2, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
            await self.probe()

    async def probe(self) -> None:
        """See whether Redis answers, and take it from there."""
        try:
            async with asyncio.timeout(self.timeout_seconds):
                await self._client.execute_command("PING")  # type: ignore[no-untyped-call]
        except self._failures as error:
            self._lose(f"Redis does not answer: {error or 'not in time'}")
        else:
            self._find()

    def _away(self, detail: str, losses: int | None) -> RedisAway:
        """The error to raise; with the number of losses that it began at, it also is the news that Redis is away."""
        if losses == self.losses:
            self._lose(detail)
        return RedisAway(detail)

    def _lose(self, detail: str) -> None:
        is_news = self._trouble is None
        self._trouble = detail
        if not is_news:
            return
        self.losses += 1
        if self._now() - self._well_since >= STEADY_SECONDS:
            self._pause = 0.0
        self._back.clear()
        self._lost.set()
        # Whoever waits for Redis at this moment would only find out the same.
        for timer in self._timers:
            if not timer.expired():
                timer.reschedule(asyncio.get_running_loop().time())
        self._changed("away", detail)

    def _find(self) -> None:
        if self._trouble is None:
            return
        self._trouble = None
        self._well_since = self._now()
        self._lost.clear()
        self._back.set()
        self._changed("ok", "")


@asynccontextmanager
async def open_redis(
    settings: RedisConfig,
    *,
    changed: Changed = lambda state, reason: None,
    now: Callable[[], float] = time.monotonic,
) -> AsyncIterator[RedisLink]:
    """A link to the Redis server, which need not be there; `changed` is told `away`, with the reason, and `ok`."""
    client = _client(settings)
    link = RedisLink(client, settings.timeout_seconds, changed=changed, now=now)
    await link.probe()
    watching = asyncio.create_task(link.watch())
    try:
        yield link
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        await _close(client)


def _client(settings: RedisConfig) -> Redis:
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        raise ConfigError(["Redis needs the package redis: pip install 'refdesk[redis]'"]) from error
    # RESP 2 and no name of the library: a connection is ready without a single command, but for a password.
    client: Redis = Redis.from_url(
        str(settings.url),
        db=settings.db,
        protocol=2,
        driver_info=None,
        retry=Retry(NoBackoff(), 0),
        max_connections=CONNECTIONS + 1,  # one is the probe's
        socket_timeout=None,
        socket_connect_timeout=settings.timeout_seconds,
    )
    return client


async def _close(client: Redis) -> None:
    try:
        async with asyncio.timeout(CLOSING_SECONDS):
            await client.aclose()
    except TimeoutError:
        return  # the process is about to let go of the sockets anyway
