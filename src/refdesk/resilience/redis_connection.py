"""Connection to an optional Redis. Every operation ends within its time limit, whatever Redis does.

Redis only speeds things up or shares them among processes. If it's down, slow or returns invalid replies, the first
operations run into their short timeout. From then on all operations fail at once, and a background probe detects when
it's back. The client's own timeouts aren't used: each of the commands that set up a connection would get its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from hashlib import sha1
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeVar

from refdesk.config.models import RedisConfig
from refdesk.errors import ConfigError, DependencyError
from refdesk.support.extras import build_install_command
from refdesk.support.tasks import cancel_all

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from refdesk.telemetry.log import Log

T = TypeVar("T")

StateListener = Callable[[str, str], None]
"""Called with a new state, and the reason if Redis is down."""

CONNECTIONS = 32
"""Concurrent operations, each on its own connection. A process can't keep more than a few busy."""

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
"""Pause between probes, doubling: Redis is used again within seconds of its return, and probing costs next to
nothing."""

STABLE_SECONDS = 10.0
"""How long Redis has to be up before its earlier outages are forgotten. Otherwise a Redis that only answers the probe
would cost every call its timeout."""

CLOSING_SECONDS = 1.0
"""Time limit for closing the connections. A paused Redis doesn't respond."""

MALFORMED_REPLY_ERRORS = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Exceptions other than its own that the client library raises for malformed replies."""


class Script:
    """A Lua script, sent by its digest after the first run."""

    def __init__(self, package: str, *names: str) -> None:
        """`names` are files in the folder `scripts` of the package, which are joined."""
        self._files = [resources.files(package) / "scripts" / f"{name}.lua" for name in names]

    @cached_property
    def _source(self) -> bytes:
        return b"".join(file.read_bytes() for file in self._files)

    @cached_property
    def _digest(self) -> str:
        return sha1(self._source, usedforsecurity=False).hexdigest()

    async def run(self, redis: Redis, keys: Sequence[str], *arguments: bytes | float) -> Any:
        """Run the script and return its result."""
        from redis.exceptions import NoScriptError

        parameters = len(keys), *keys, *arguments
        try:
            return await redis.execute_command("EVALSHA", self._digest, *parameters)  # type: ignore[no-untyped-call]
        except NoScriptError:
            return await redis.execute_command("EVAL", self._source, *parameters)  # type: ignore[no-untyped-call]


class RedisAway(DependencyError):
    """Redis is unavailable. Callers fall back to memory."""


class RedisLink:
    """Connection pool that isn't used while Redis is down."""

    def __init__(
        self,
        client: Redis,
        timeout_seconds: float,
        *,
        now: Callable[[], float] = time.monotonic,
        changed: StateListener = lambda state, reason: None,
    ) -> None:
        from redis.exceptions import RedisError, ResponseError

        self._refusals = ResponseError
        self._failures = (RedisError, OSError, *MALFORMED_REPLY_ERRORS)
        self._client = client
        self.timeout_seconds = timeout_seconds
        """Time limit of an operation and of a probe. Those in progress keep the one they started with."""
        self._now = now
        self._changed = changed
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._timers: set[asyncio.Timeout] = set()
        self._failure: str | None = None
        self._is_down = asyncio.Event()
        self._is_up = asyncio.Event()
        self._is_up.set()
        self._pause = 0.0
        self._up_since = now()
        self.losses = 0
        """Number of outages so far."""

    @property
    def is_away(self) -> bool:
        """Whether Redis is known to be down."""
        return self._failure is not None

    def describe(self) -> dict[str, Any]:
        """Return the state for `/ready`. The endpoint is public, so the reason is only logged."""
        return {"state": "ok"} if self._failure is None else {"state": "away", "detail": "the log says why"}

    async def back(self) -> None:
        """Wait until Redis is up."""
        await self._is_up.wait()

    async def run(self, work: Callable[[Redis], Awaitable[T]]) -> T:
        """Return the result of `work`, or raise RedisAway.

        Raises at once while Redis is down, and otherwise within the time limit.
        `work` must only run commands, so that any failure is one of Redis.
        """
        if self._failure is not None:
            raise RedisAway(self._failure)
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
            # A timeout in the queue says nothing about Redis.
            raise self._build_error("Redis did not answer in time", losses if is_running else None) from error
        except self._refusals as error:
            raise self._build_error(f"Redis refused: {error}", None) from error
        except self._failures as error:
            raise self._build_error(f"Redis failed: {error}", losses) from error

    async def watch(self) -> None:
        """Probe Redis whenever it's down. Runs forever."""
        while True:
            await self._is_down.wait()
            await asyncio.sleep(self._pause)
            self._pause = min(max(self._pause * 2, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
            await self.probe()

    async def probe(self) -> None:
        """Check whether Redis responds, and update the state."""
        try:
            async with asyncio.timeout(self.timeout_seconds):
                await self._client.execute_command("PING")  # type: ignore[no-untyped-call]
        except self._failures as error:
            self._mark_down(f"Redis does not answer: {error or 'not in time'}")
        else:
            self._mark_up()

    def _build_error(self, detail: str, losses: int | None) -> RedisAway:
        """Build the error to raise.

        If `losses` is the number of outages at the start of the operation, this also marks Redis as down.
        """
        if losses == self.losses:
            self._mark_down(detail)
        return RedisAway(detail)

    def _mark_down(self, detail: str) -> None:
        is_new = self._failure is None
        self._failure = detail
        if not is_new:
            return
        self.losses += 1
        if self._now() - self._up_since >= STABLE_SECONDS:
            self._pause = 0.0
        self._is_up.clear()
        self._is_down.set()
        # Operations that wait for Redis now would only time out too.
        for timer in self._timers:
            if not timer.expired():
                timer.reschedule(asyncio.get_running_loop().time())
        self._changed("away", detail)

    def _mark_up(self) -> None:
        if self._failure is None:
            return
        self._failure = None
        self._up_since = self._now()
        self._is_down.clear()
        self._is_up.set()
        self._changed("ok", "")


@asynccontextmanager
async def open_redis(
    settings: RedisConfig,
    *,
    changed: StateListener = lambda state, reason: None,
    now: Callable[[], float] = time.monotonic,
) -> AsyncIterator[RedisLink]:
    """Open a connection to Redis, which need not be running.

    `changed` is called with `away` and the reason, or with `ok`.
    """
    client = _create_client(settings)
    link = RedisLink(client, settings.timeout_seconds, changed=changed, now=now)
    await link.probe()
    task = asyncio.create_task(link.watch())
    try:
        yield link
    finally:
        await cancel_all([task])
        with suppress(TimeoutError):  # the process is about to close the sockets anyway
            async with asyncio.timeout(CLOSING_SECONDS):
                await client.aclose()


def log_redis_state(log: Log, state: str, reason: str) -> None:
    """Log that Redis is down, with the consequences, or that it has recovered."""
    if state == "away":
        effect = "answers are made and limits are counted in this process alone"
        log.events.warning("redis.away", reason=reason, effect=effect)
    else:
        log.events.info("redis.back")


def _create_client(settings: RedisConfig) -> Redis:
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        raise ConfigError([f"Redis needs the package redis: {build_install_command('redis')}"]) from error
    # RESP 2 without a library name: a connection is ready without a single command, apart from a password.
    client: Redis = Redis.from_url(
        str(settings.url),
        db=settings.db,
        protocol=2,
        driver_info=None,
        retry=Retry(NoBackoff(), 0),
        max_connections=CONNECTIONS + 1,  # one for the probe
        socket_timeout=None,
        socket_connect_timeout=settings.timeout_seconds,
    )
    return client
