"""The link to Redis: bounded in time whatever happens at the other end, and cheap while nobody is there."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refdesk.config.models import RedisConfig
from refdesk.config.types import Url
from refdesk.errors import ConfigError, DependencyError
from refdesk.resilience.redis_connection import CONNECTIONS, RedisAway, RedisLink, open_redis
from tests.redis_server import RedisServer, needs_redis, redis_server
from tests.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from redis.asyncio import Redis

pytestmark = [pytest.mark.anyio, needs_redis]

SOON = 0.01
"""Time limit, in seconds, of operations that are never answered."""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


async def ping(redis: Redis) -> Any:
    return await redis.echo("here")


async def broken(redis: Redis) -> None:
    raise ConnectionResetError("cut")


class Waiting:
    """Operations that count those that began, and those that were cut off while they waited for Redis."""

    def __init__(self) -> None:
        self.started_at = 0
        self.cut_off = 0

    async def __call__(self, redis: Redis) -> Any:
        self.started_at += 1
        try:
            return await ping(redis)
        except asyncio.CancelledError:
            self.cut_off += 1
            raise


async def back(link: RedisLink) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        await link.back()


async def test_what_was_asked_for_is_answered(server: RedisServer) -> None:
    async with open_redis(server.settings()) as link:
        await link.run(lambda redis: redis.set("key", b"value"))
        assert await link.run(lambda redis: redis.get("key")) == b"value"
        assert link.describe() == {"state": "ok"}


async def test_the_number_of_the_database_is_taken_from_the_settings(server: RedisServer) -> None:
    async with open_redis(RedisConfig(url=Url(server.url), db=3, timeout_seconds=PATIENCE_SECONDS)) as link:
        await link.run(lambda redis: redis.set("key", b"value"))
    async with open_redis(RedisConfig(url=Url(f"{server.url}/3"), timeout_seconds=PATIENCE_SECONDS)) as link:
        assert await link.run(lambda redis: redis.get("key")) == b"value"


async def test_a_redis_that_is_not_there_at_the_start_is_away_until_it_is(server: RedisServer) -> None:
    server.kill()
    async with open_redis(server.settings()) as link:
        assert link.is_away
        assert link.describe()["state"] == "away"
        assert str(server.port) not in str(link.describe()), "anybody may read that"
        server.start()
        await back(link)
        assert await link.run(ping) == b"here"


async def test_a_killed_redis_fails_the_operation_and_nobody_asks_it_again_until_it_is_back(
    server: RedisServer,
) -> None:
    states: list[tuple[str, str]] = []
    async with open_redis(server.settings(), changed=lambda *news: states.append(news)) as link:
        await link.run(ping)
        server.kill()
        waiting = Waiting()
        for _ in range(100):
            with pytest.raises(RedisAway) as raised:
                await link.run(waiting)
            assert isinstance(raised.value, DependencyError)
        assert waiting.started_at == 1
        server.start()
        await back(link)
        assert await link.run(ping) == b"here"
    (away, reason), back_again = states
    assert away == "away"
    assert reason == raised.value.detail, "whoever reads the log need not guess"
    assert back_again == ("ok", "")


async def test_a_restart_that_nobody_noticed_costs_nothing(server: RedisServer) -> None:
    async with open_redis(server.settings()) as link:
        await link.run(ping)
        await asyncio.to_thread(server.restart)
        assert await link.run(ping) == b"here"
        assert link.losses == 0


async def test_while_redis_is_paused_only_the_first_operation_waits(server: RedisServer) -> None:
    async with open_redis(server.settings()) as link:
        await link.run(ping)
        waiting = Waiting()
        with server.paused(link):
            for _ in range(1000):
                with pytest.raises(RedisAway):
                    await link.run(waiting)
            assert (waiting.started_at, waiting.cut_off) == (1, 1)
        await back(link)
        assert await link.run(waiting) == b"here"
        assert link.losses == 1


async def test_all_who_wait_are_let_go_as_soon_as_one_of_them_knows(server: RedisServer) -> None:
    async with open_redis(server.settings()) as link:
        waiting = Waiting()
        with server.paused(link):
            link.timeout_seconds = 3600
            many = [asyncio.create_task(link.run(waiting)) for _ in range(CONNECTIONS - 1)]
            await anyio.wait_all_tasks_blocked()
            assert waiting.started_at == len(many)
            with pytest.raises(RedisAway):
                await link.run(broken)
            outcomes = await asyncio.gather(*many, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {RedisAway}
        assert link.losses == 1


async def test_a_paused_redis_is_noticed_when_it_goes_on(server: RedisServer) -> None:
    async with open_redis(server.settings()) as link:
        await link.run(ping)
        with server.paused(link):
            with pytest.raises(RedisAway):
                await link.run(ping)
            await link.probe()
            assert link.describe()["state"] == "away"
        await back(link)
        assert link.describe()["state"] == "ok"
        assert await link.run(ping) == b"here"


async def test_a_full_redis_refuses_and_is_not_away(server: RedisServer) -> None:
    async with open_redis(server.settings()) as link:
        await link.run(lambda redis: redis.set("key", b"value"))
        server.fill()
        for _ in range(10):
            with pytest.raises(RedisAway, match="refused"):
                await link.run(lambda redis: redis.set("other", b"value"))
        assert await link.run(lambda redis: redis.get("key")) == b"value"
        server.set_read_only(True)
        with pytest.raises(RedisAway, match="refused"):
            await link.run(lambda redis: redis.set("other", b"value"))
        assert link.losses == 0


async def test_one_who_goes_away_takes_nothing_from_the_others(server: RedisServer) -> None:
    async with open_redis(server.settings()) as link:
        for number in range(100):
            await link.run(lambda redis, number=number: redis.set(f"key{number}", str(number)))  # type: ignore[misc]
        for number in range(100):
            leaving = asyncio.create_task(link.run(lambda redis: redis.get("key0")))
            for _ in range(number % 7):
                await checkpoint()
            leaving.cancel()
            asked = link.run(lambda redis, number=number: redis.get(f"key{number}"))  # type: ignore[misc]
            assert await asked == str(number).encode()
            await asyncio.wait([leaving])
        assert link.losses == 0


async def test_more_operations_than_connections_wait_their_turn(server: RedisServer) -> None:
    async with open_redis(server.settings()) as link:
        answers = await asyncio.gather(*(link.run(ping) for _ in range(CONNECTIONS * 10)))
        assert answers == [b"here"] * CONNECTIONS * 10
        connected = await link.run(lambda redis: redis.client_list())
        assert len(connected) <= CONNECTIONS + 1
        assert link.losses == 0


@asynccontextmanager
async def lying(reply: Callable[[bytes], Awaitable[bytes]]) -> AsyncIterator[RedisConfig]:
    """A server that takes the place of Redis and answers as it likes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while heard := await reader.read(4096):
                writer.write(await reply(heard))
                await writer.drain()
        except ConnectionError:
            pass  # the client has seen enough
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield RedisConfig(url=Url(f"redis://127.0.0.1:{port}"), timeout_seconds=PATIENCE_SECONDS)


REPLIES = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.builds(
        lambda kind, rest: kind + rest + b"\r\n",
        st.sampled_from([b"+", b"-", b":", b"$", b"*", b"_", b"%", b"HTTP/1.1 200 OK"]),
        st.one_of(st.binary(max_size=10), st.integers(-(10**6), 10**6).map(lambda number: str(number).encode())),
    ),
    st.just(b"*1\r\n" * 5000),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(REPLIES)
async def test_a_redis_that_talks_nonsense_is_answered_with_one_error(nonsense: bytes) -> None:
    async def reply(heard: bytes) -> bytes:
        return b"+PONG\r\n" if b"PING" in heard else nonsense

    async with lying(reply) as config, open_redis(config) as link:
        link.timeout_seconds = SOON
        with suppress(RedisAway):
            await link.run(lambda redis: redis.get("key"))


async def test_a_redis_that_answers_only_the_probe_is_asked_ever_less_often() -> None:
    async def reply(heard: bytes) -> bytes:
        return b"+PONG\r\n" if b"PING" in heard else b""

    async with lying(reply) as config, open_redis(config, now=lambda: 0.0) as link:
        pauses = []
        for _ in range(4):
            link.timeout_seconds = SOON
            with pytest.raises(RedisAway):
                await link.run(lambda redis: redis.get("key"))
            pauses.append(link._pause)
            link.timeout_seconds = PATIENCE_SECONDS
            await back(link)
    assert pauses == [0.0, 0.05, 0.1, 0.2]


def test_without_the_package_the_line_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)

    async def open_and_close() -> None:
        async with open_redis(RedisConfig()):
            pass

    with pytest.raises(ConfigError, match="scripts/setup --extra redis"):
        asyncio.run(open_and_close())
