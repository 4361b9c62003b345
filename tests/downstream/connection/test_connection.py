"""A connection through everything that a server can do to it; the server is in this process, and time is its own."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.jsonrpc import Message, NotTaken, Transport
from refdesk.errors import (
    BreakerOpen,
    Overloaded,
    ServerAway,
    ServerConnectTimeout,
    ServerGone,
    ServerRefused,
    ServerTooSlow,
)
from tests.downstream.connecting import LOOPED, change_settings, run_connection
from tests.downstream.loopback import Clock, Loopback
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio


def settings(**more: Any) -> McpServerConfig:
    return McpServerConfig(command="loopback", **more)


def clock_options(clock: Clock, jitter: float = 1.0) -> dict[str, Any]:
    return {"now": clock.now, "pause": clock.pause, "jitter": lambda: jitter}


def state_of(connection: Connection) -> str:
    return connection.dependency.state


async def test_it_connects_by_itself_and_its_statuses_are_seen_in_order() -> None:
    server = Loopback()
    async with run_connection(open_transport=server.open) as (connection, watcher):
        await watcher.until(lambda: connection.status.state == "Running")
        assert connection.server_profile is not None
        assert connection.server_profile.has("tools.listChanged")
        assert server.methods == ["initialize", "notifications/initialized"]
    assert watcher.states == ["Starting", "Running", "Stopped"]
    assert server.close_count == 1


async def test_the_greeting_is_there_when_the_status_is_told() -> None:
    greetings = []

    def on_status(connection: Connection) -> None:
        greetings.append((connection.status.state, connection.server_profile is not None))

    connection = Connection(
        "it", LOOPED, on_notification=lambda *_: None, on_status=on_status, open_transport=Loopback().open
    )
    running = asyncio.create_task(connection.run())
    await connection.request("ping")
    running.cancel()
    await asyncio.wait({running})
    assert greetings == [("Starting", False), ("Running", True), ("Stopped", True)]


async def test_calls_wait_for_a_server_that_is_starting() -> None:
    server = Loopback()
    begin = asyncio.Event()

    async def slowly(message: Message) -> Message:
        await begin.wait()
        return {"result": {"protocolVersion": "2025-11-25", "capabilities": {}}}

    server.answers["initialize"] = slowly
    async with run_connection(open_transport=server.open) as (connection, _):
        calls = [asyncio.create_task(connection.request("x/y", {"n": n})) for n in range(10)]
        await wait_all_tasks_blocked()
        begin.set()
        assert [(await each)["echo"]["n"] for each in calls] == list(range(10))


async def test_a_hang_in_the_greeting_is_cut_and_told() -> None:
    server = Loopback()
    server.hangs.add("initialize")
    async with run_connection(settings(connect_timeout_seconds=0.05), open_transport=server.open) as (connection, _):
        with pytest.raises(ServerConnectTimeout, match=r"did not answer the handshake within 0\.05 s") as caught:
            await connection.request("x/y")
        assert isinstance(caught.value, TimeoutError)
        assert connection.status.text.startswith("Error(The server 'it' did not answer the handshake")
        assert server.close_count == 1


@pytest.mark.parametrize(("name", "shown"), [("x" * 1000, "x" * 100), ([[]], None), (7, None)])
async def test_whatever_a_server_calls_itself_how_it_stands_can_be_told(name: Any, shown: str | None) -> None:
    server = Loopback()

    async def initialize(message: Message) -> Message:
        info = {"name": name, "version": "1"}
        return {"result": {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": info}}

    server.answers["initialize"] = initialize
    async with run_connection(open_transport=server.open) as (connection, _):
        await connection.request("x/y")
        assert connection.describe()["server"] == {"name": shown, "version": "1"}


async def test_whoever_is_in_flight_fails_at_once_when_the_server_dies_and_the_next_call_works() -> None:
    server = Loopback()
    async with run_connection(open_transport=server.open) as (connection, watcher):
        await connection.request("x/y")
        server.hangs.add("x/z")
        hanging = asyncio.create_task(connection.request("x/z"))
        await wait_all_tasks_blocked()
        server.die()
        with pytest.raises(ServerGone, match="The server ended"):
            await hanging
        assert await connection.request("x/y", {"a": 1}) == {"echo": {"a": 1}}
        assert watcher.states == ["Starting", "Running", "Starting", "Running"]
        assert connection.describe()["restarts"] == 1


async def test_a_call_right_after_the_death_waits_for_the_new_session() -> None:
    server = Loopback()
    async with run_connection(open_transport=server.open) as (connection, _):
        await connection.request("x/y")
        server.die()
        assert connection.status.state == "Starting"
        assert await connection.request("x/y", {"a": 1}) == {"echo": {"a": 1}}


async def test_a_thousand_callers_of_a_dying_server_all_fail_typed() -> None:
    server = Loopback()
    server.hangs.add("x/z")
    async with run_connection(open_transport=server.open) as (connection, _):
        await connection.request("x/y")
        calls = [asyncio.create_task(connection.request("x/z")) for _ in range(1000)]
        await eventually(lambda: server.methods.count("x/z") >= 1000)
        server.die()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(result) for result in results} == {ServerGone}
        assert len({id(result) for result in results}) == 1000
        assert connection.dependency.describe()["failures"] == 1
        assert await connection.request("x/y", {"a": 1}) == {"echo": {"a": 1}}


async def test_callers_beyond_what_a_server_may_hold_wait_or_are_refused() -> None:
    server = Loopback()
    server.hangs.add("x/z")
    async with run_connection(open_transport=server.open) as (connection, _):
        await connection.request("x/y")
        calls = [asyncio.create_task(connection.request("x/z")) for _ in range(2500)]
        await eventually(lambda: server.methods.count("x/z") >= 1000)
        server.hangs.clear()
        server.die()
        results = await asyncio.gather(*calls, return_exceptions=True)
        kinds = Counter(type(result) for result in results)
        assert kinds == {ServerGone: 1000, dict: 1000, Overloaded: 500}


async def test_a_server_that_never_starts_is_tried_six_times_in_a_minute_at_most() -> None:
    server, clock = Loopback(), Clock()
    server.away = "nothing answers"
    begun: list[float] = []

    def open_it(*of: Any) -> Any:
        begun.append(clock.time)
        return server.open(*of)

    async with run_connection(settings(), **clock_options(clock, 0.0), open_transport=open_it) as (_, watcher):
        await watcher.until(lambda: len(begun) >= 13)
    assert sum(time < begun[0] + 60 for time in begun) <= 6
    assert max(later - earlier for earlier, later in pairwise(begun)) <= 60
    assert watcher.states[:4] == ["Starting", "Error", "Starting", "Error"]


async def test_a_call_while_the_server_is_away_fails_at_once_and_says_why() -> None:
    server, clock = Loopback(), Clock()
    server.away = "no server is listening at its address"
    async with run_connection(settings(connect_tries=1), **clock_options(clock), open_transport=server.open) as (
        connection,
        watcher,
    ):
        clock.stopped = True
        await watcher.until(lambda: connection.status.state == "Error")
        for _ in range(20):
            with pytest.raises(ServerAway, match="no server is listening at its address"):
                await connection.request("x/y")
        assert server.open_count == 1
        assert connection.dependency.state == "closed"


async def test_a_call_after_the_rest_has_the_server_tried_at_once() -> None:
    server, clock = Loopback(), Clock()
    server.away = "nothing answers"
    async with run_connection(settings(connect_tries=1), **clock_options(clock), open_transport=server.open) as (
        connection,
        watcher,
    ):
        clock.stopped = True
        await watcher.until(lambda: connection.status.state == "Error")
        clock.time += 1.0  # the rest is a second, and by itself it would be tried after a minute
        server.away = None
        assert await connection.request("x/y") == {"echo": None}
        assert server.open_count == 2


async def test_the_breaker_opens_on_a_hanging_server_and_one_trial_closes_it() -> None:
    server, clock = Loopback(), Clock()
    server.hangs.add("x/z")
    given = settings(call_timeout_seconds=0.02, idle_seconds=0)
    async with run_connection(given, **clock_options(clock), open_transport=server.open) as (it, _):
        for _ in range(5):
            with pytest.raises(ServerTooSlow):
                await it.request("x/z")
        with pytest.raises(BreakerOpen):
            await it.request("x/z")
        clock.time += 30
        server.hangs.clear()
        hold = asyncio.Event()

        async def slowly(message: Message) -> Message:
            await hold.wait()
            return {"result": {}}

        server.answers["x/slow"] = slowly
        change_settings(it, call_timeout_seconds=PATIENCE_SECONDS)
        trial = asyncio.create_task(it.request("x/slow"))
        await wait_all_tasks_blocked()
        assert state_of(it) == "half_open"
        with pytest.raises(BreakerOpen):
            await it.request("x/y")
        hold.set()
        assert await trial == {}
        assert state_of(it) == "closed"


async def test_a_server_whose_lists_hang_can_still_be_called() -> None:
    server = Loopback()
    server.hangs.add("tools/list")
    given = settings(capabilities_timeout_seconds=0.01)
    async with run_connection(given, open_transport=server.open) as (connection, _):
        for _ in range(7):
            with pytest.raises(ServerTooSlow):
                await connection.list_all("tools")
        assert await connection.request("x/y") == {"echo": None}
        assert connection.dependency.state == "closed"


async def test_an_error_that_the_server_answers_is_an_answer() -> None:
    server = Loopback()

    async def refuse(message: Message) -> Message:
        return {"error": {"code": -32042, "message": "no", "data": {"a": 1}}}

    server.answers["x/y"] = refuse
    async with run_connection(open_transport=server.open) as (connection, _):
        for _ in range(10):
            with pytest.raises(ServerRefused) as caught:
                await connection.request("x/y")
            assert (caught.value.code, caught.value.given) == (-32042, {"a": 1})
        assert connection.dependency.state == "closed"


async def test_everybody_who_waits_for_a_server_that_cannot_be_had_fails_and_it_is_one_failure() -> None:
    server = Loopback()
    server.hangs.add("initialize")
    given = settings(connect_timeout_seconds=0.05)
    async with run_connection(given, pause=_never, open_transport=server.open) as (connection, _):
        results = await asyncio.gather(*(connection.request("x/y") for _ in range(100)), return_exceptions=True)
        assert {type(result) for result in results} == {ServerConnectTimeout}
        assert connection.dependency.describe()["failures"] == 1


async def _never(seconds: float) -> None:
    await asyncio.Event().wait()


async def test_a_server_that_comes_back_by_itself_is_not_kept_waiting_by_its_breaker() -> None:
    server, clock = Loopback(), Clock()
    server.away = "it is gone"
    clock.stopped = True
    async with run_connection(settings(), **clock_options(clock), open_transport=server.open) as (connection, watcher):
        for _ in range(5):
            await watcher.until(lambda: connection.status.state == "Error")
            clock.time += 20
            with pytest.raises(ServerAway, match="it is gone"):
                await connection.request("x/y")
        assert state_of(connection) == "open"
        server.away = None
        await connection.restart()
        assert state_of(connection) == "closed"
        assert await connection.request("x/y") == {"echo": None}


async def test_the_status_tells_how_the_last_call_ended() -> None:
    server = Loopback()
    server.hangs |= {"x/z", "tools/list"}
    async with run_connection(settings(idle_seconds=0), open_transport=server.open) as (connection, watcher):
        await connection.request("x/y")
        for _ in range(5):
            with pytest.raises(ServerTooSlow):
                await connection.request("x/z", seconds=0.01)
        message = "The server 'it' did not answer within 0.01 s"
        assert (state_of(connection), connection.status.text) == ("open", f"Error({message})")
        with pytest.raises(BreakerOpen):
            await connection.request("x/y")
        assert connection.describe()["message"] == message
        connection.dependency.mark_recovered()
        assert await connection.request("x/y") == {"echo": None}
        assert connection.status.text == "Running"
        assert connection.is_connected
        assert watcher.states == ["Starting", "Running", "Error", "Running"]
        assert server.open_count == 1


async def test_a_frozen_server_is_replaced_while_callers_keep_calling_and_the_breaker_closes() -> None:
    server = Loopback()
    given = settings(connect_timeout_seconds=0.2, call_timeout_seconds=PATIENCE_SECONDS)
    async with run_connection(given, open_transport=server.open) as (connection, _):
        await connection.request("x/y")
        server.hangs |= {"x/y", "ping"}
        waiting = [asyncio.create_task(connection.request("x/y")) for _ in range(3)]
        for _ in range(5):
            with pytest.raises(ServerTooSlow):
                await connection.request("x/y", seconds=0.01)
        assert state_of(connection) == "open"
        server.answers["initialize"] = _thaw(server)
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(result, ServerAway)
            assert "no longer responds" in result.detail
        await eventually(lambda: server.open_count == 2 and connection.is_connected)
        assert state_of(connection) == "closed"
        assert await connection.request("x/y") == {"echo": None}


def _thaw(server: Loopback) -> Callable[[Message], Awaitable[Message]]:
    """The answer of a new process, which is not frozen."""

    async def initialize(message: Message) -> Message:
        server.hangs.clear()
        return {"result": {"protocolVersion": "2025-11-25", "capabilities": {}}}

    return initialize


async def test_time_outs_can_be_changed_while_it_runs() -> None:
    server = Loopback()
    server.hangs |= {"x/z", "tools/list"}
    async with run_connection(open_transport=server.open) as (connection, _):
        change_settings(connection, call_timeout_seconds=0.01)
        with pytest.raises(ServerTooSlow, match=r"within 0\.01 s"):
            await connection.request("x/z")
        change_settings(connection, capabilities_timeout_seconds=0.02)
        with pytest.raises(ServerTooSlow, match=r"within 0\.02 s"):
            await connection.list_all("tools")
        with pytest.raises(ServerTooSlow, match=r"within 0\.03 s"):
            await connection.request("x/z", seconds=0.03)
        change_settings(connection, connect_timeout_seconds=0.04)
        server.hangs.add("initialize")
        await connection.restart()
        assert "within 0.04 s" in connection.status.message


async def test_the_server_is_told_when_a_call_is_called_off_or_overdue() -> None:
    server = Loopback()
    server.hangs.add("x/z")
    async with run_connection(open_transport=server.open) as (connection, _):
        await connection.request("x/y")
        with pytest.raises(ServerTooSlow):
            await connection.request("x/z", seconds=0.02)
        given_up = asyncio.create_task(connection.request("x/z"))
        await eventually(lambda: server.methods.count("x/z") >= 2)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        await eventually(lambda: server.methods.count("notifications/cancelled") >= 2)
        asked = [message["id"] for message in server.received if message.get("method") == "x/z"]
        told = [message["params"]["requestId"] for message in server.received if "cancelled" in message["method"]]
        assert told == asked
        assert connection.dependency.describe()["failures"] == 1


async def test_many_different_time_outs_do_not_pile_up() -> None:
    server = Loopback()
    async with run_connection(open_transport=server.open) as (connection, _):
        for number in range(200):
            await connection.request("x/y", seconds=5 + number / 7)
        assert len(connection._deadlines) <= 32


async def test_an_unused_session_is_closed_and_the_next_call_opens_another() -> None:
    server, clock = Loopback(), Clock()
    clock.stopped = True
    async with run_connection(settings(idle_seconds=600), **clock_options(clock), open_transport=server.open) as (
        connection,
        watcher,
    ):
        await connection.request("x/y")
        clock.stopped = False
        clock.time += 600
        await connection.request("x/y")  # is a use
        connection._pool._wake.set()  # type: ignore[union-attr]  # as the pause would, which began before the clock ran
        await watcher.until(lambda: connection.status.state == "Stopped")
        assert connection.describe()["state"] == "Stopped"
        clock.stopped = True
        assert await connection.request("x/y") == {"echo": None}
        assert watcher.states == ["Starting", "Running", "Stopped", "Starting", "Running"]


async def test_a_session_that_was_waited_for_is_closed_when_idle_and_stays_so() -> None:
    server, clock = Loopback(), Clock()
    begin = asyncio.Event()

    async def slowly(message: Message) -> Message:
        await begin.wait()
        return {"result": {"protocolVersion": "2025-11-25", "capabilities": {}}}

    server.answers["initialize"] = slowly
    async with run_connection(settings(idle_seconds=600), **clock_options(clock), open_transport=server.open) as (
        connection,
        watcher,
    ):
        await watcher.until(lambda: connection.status.state == "Starting")
        waiting = asyncio.create_task(connection.request("x/y"))
        await wait_all_tasks_blocked()
        begin.set()
        await waiting
        await watcher.until(lambda: connection.status.state == "Stopped")
        await wait_all_tasks_blocked()
        assert (connection.status.state, server.open_count) == ("Stopped", 1)


async def test_a_session_with_a_subscription_is_not_idle() -> None:
    server, clock = Loopback(), Clock()
    async with run_connection(settings(idle_seconds=10), **clock_options(clock), open_transport=server.open) as (
        connection,
        _,
    ):
        await connection.request("resources/subscribe", {"uri": "a:1"})
        await eventually(lambda: len(clock.pauses) >= 5)
        assert connection.status.state == "Running"
        assert server.open_count == 1


async def test_a_session_with_a_call_under_way_is_not_idle() -> None:
    server, clock = Loopback(), Clock()
    finish = asyncio.Event()

    async def slowly(message: Message) -> Message:
        await finish.wait()
        return {"result": {"done": True}}

    server.answers["x/slow"] = slowly
    async with run_connection(settings(idle_seconds=10), **clock_options(clock), open_transport=server.open) as (
        connection,
        _,
    ):
        slow = asyncio.create_task(connection.request("x/slow"))
        await eventually(lambda: len(clock.pauses) >= 5)
        finish.set()
        assert await slow == {"done": True}


async def test_a_restart_opens_another_session_and_ends_what_was_in_flight() -> None:
    server = Loopback()
    server.hangs.add("x/z")
    async with run_connection(open_transport=server.open) as (connection, watcher):
        await connection.request("x/y")
        hanging = asyncio.create_task(connection.request("x/z"))
        await wait_all_tasks_blocked()
        await connection.restart()
        with pytest.raises(ServerGone):
            await hanging
        assert connection.status.state == "Running"
        assert (server.open_count, server.close_count) == (2, 1)
        assert watcher.states == ["Starting", "Running", "Starting", "Running"]


async def test_a_restart_accepts_a_session_that_a_call_has_opened_meanwhile() -> None:
    server = Loopback()
    may_close = asyncio.Event()

    @asynccontextmanager
    async def open_slowly_closing(*given: Any) -> AsyncIterator[Transport]:
        async with server.open(*given) as transport:
            yield transport
            await may_close.wait()

    async with run_connection(open_transport=open_slowly_closing) as (connection, _):
        await connection.request("x/y")
        restarting = asyncio.create_task(connection.restart())
        await wait_all_tasks_blocked()
        await connection.request("x/y")
        may_close.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await restarting
        assert connection.status.state == "Running"


async def test_a_restart_leaves_a_session_alone_that_is_being_opened() -> None:
    server = Loopback()
    begin = asyncio.Event()

    async def greet_late(message: Message) -> Message:
        await begin.wait()
        return {"result": {"protocolVersion": "2025-11-25", "capabilities": {}}}

    server.answers["initialize"] = greet_late
    async with run_connection(open_transport=server.open) as (connection, watcher):
        calling = asyncio.create_task(connection.request("x/y"))
        await watcher.until(lambda: connection.status.state == "Starting")
        restarting = asyncio.create_task(connection.restart())
        await wait_all_tasks_blocked()
        begin.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(calling, restarting)
        assert (server.open_count, watcher.states) == (1, ["Starting", "Running"])


async def test_what_is_no_longer_used_says_so_at_once() -> None:
    server = Loopback()
    async with run_connection(open_transport=server.open) as (connection, _):
        await connection.request("x/y")
    with pytest.raises(ServerAway, match="is stopped"):
        await connection.request("x/y")
    with pytest.raises(ServerAway, match="is stopped"):
        await connection.restart()


async def test_callers_who_wait_are_told_when_the_connection_is_given_up() -> None:
    server = Loopback()
    server.hangs.add("initialize")
    async with run_connection(open_transport=server.open) as (connection, watcher):
        waiting = asyncio.create_task(connection.request("x/y"))
        await watcher.until(lambda: connection.status.state == "Starting")
        await wait_all_tasks_blocked()
    with pytest.raises(ServerAway):
        await waiting


async def test_a_message_that_was_not_taken_is_sent_again_once_in_the_next_session() -> None:
    server = Loopback()
    times = 0

    async def forget(message: Message) -> Message:
        nonlocal times
        times += 1
        if times < 2:
            raise NotTaken("the session is not known any more")
        return {"result": {"times": times}}

    server.answers["x/y"] = forget
    async with run_connection(open_transport=server.open) as (connection, _):
        assert await connection.request("x/y") == {"times": 2}
        assert server.open_count == 2


async def test_a_message_that_is_never_taken_is_not_sent_for_ever() -> None:
    server = Loopback()

    async def forget(message: Message) -> Message:
        raise NotTaken("the session is not known any more")

    server.answers["x/y"] = forget
    async with run_connection(open_transport=server.open) as (connection, _):
        with pytest.raises(ServerGone, match="not known any more"):
            await connection.request("x/y")
        assert server.methods.count("x/y") == 2


async def test_a_call_that_may_have_been_done_is_not_repeated() -> None:
    server = Loopback()
    server.hangs.add("x/z")
    async with run_connection(open_transport=server.open) as (connection, _):
        hanging = asyncio.create_task(connection.request("x/z"))
        await eventually(lambda: "x/z" in server.methods)
        server.die()
        with pytest.raises(ServerGone):
            await hanging
        await connection.request("x/y")
        assert server.methods.count("x/z") == 1


async def test_a_server_that_hangs_for_good_is_found_out_and_restarted() -> None:
    server = Loopback()
    async with run_connection(open_transport=server.open) as (connection, watcher):
        await connection.request("x/y")
        change_settings(connection, connect_timeout_seconds=0.05)  # which a ping has, too
        server.hangs |= {"x/y", "ping"}
        with pytest.raises(ServerTooSlow):
            await connection.request("x/y", seconds=0.05)
        await eventually(lambda: "ping" in server.methods)
        change_settings(connection, connect_timeout_seconds=PATIENCE_SECONDS)
        await watcher.until(lambda: watcher.states[2:] == ["Error", "Starting", "Running"])
        server.hangs.clear()
        assert await connection.request("x/y") == {"echo": None}


async def test_a_server_that_is_only_slow_is_let_live() -> None:
    server = Loopback()
    server.hangs.add("x/z")
    async with run_connection(open_transport=server.open) as (connection, _):
        await connection.request("x/y")
        with pytest.raises(ServerTooSlow):
            await connection.request("x/z", seconds=0.02)
        await eventually(lambda: "ping" in server.methods)
        await connection.request("x/y")
        assert server.open_count == 1


async def test_the_callers_credential_is_passed_on_only_where_that_is_set() -> None:
    for forwards in (False, True):
        server = Loopback()
        async with run_connection(settings(forward_token=forwards), open_transport=server.open) as (connection, _):
            await connection.request("x/y", token="s3cret")
            assert server.headers[-1] == ({"authorization": "Bearer s3cret"} if forwards else None)


async def test_what_belongs_to_no_call_is_heard_and_traced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = Loopback()
    async with run_connection(open_transport=server.open) as (connection, watcher):
        await connection.request("x/y")
        server.say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        assert watcher.notifications == [("notifications/tools/list_changed", {})]
    assert "downstream.list_changed" in caplog.text


async def test_a_transport_that_breaks_in_an_unforeseen_way_is_an_error_like_any_other() -> None:
    def open_it(*of: Any) -> Any:
        raise ZeroDivisionError("secret")

    async with run_connection(settings(connect_tries=1), open_transport=open_it) as (connection, watcher):
        await watcher.until(lambda: connection.status.state == "Error")
        assert connection.status.message == "The server 'it' could not be connected to: ZeroDivisionError"


async def test_short_sessions_are_made_for_each_operation() -> None:
    server = Loopback()
    async with run_connection(settings(session="short"), open_transport=server.open) as (connection, watcher):
        assert connection.status.state == "Stopped"
        for _ in range(3):
            await connection.request("x/y")
            await watcher.until(lambda: connection.status.state == "Stopped")
        assert (server.open_count, server.close_count) == (3, 3)
        assert server.methods[:3] == ["initialize", "notifications/initialized", "x/y"]
        assert watcher.states == ["Starting", "Running", "Stopped"] * 3


async def test_short_sessions_at_a_time_are_bounded() -> None:
    server = Loopback()
    most = 0

    async def count(message: Message) -> Message:
        nonlocal most
        most = max(most, server.open_count - server.close_count)
        await checkpoint()
        return {"result": {}}

    server.answers["x/y"] = count
    async with run_connection(settings(session="short"), open_transport=server.open) as (connection, _):
        await asyncio.gather(*(connection.request("x/y") for _ in range(100)))
        assert server.open_count == 100
        assert most == 8


async def test_a_short_session_that_cannot_be_had_is_an_error_that_the_next_one_ends() -> None:
    server = Loopback()
    server.away = "nothing answers"
    async with run_connection(settings(session="short"), open_transport=server.open) as (connection, watcher):
        with pytest.raises(ServerAway, match="nothing answers"):
            await connection.request("x/y")
        assert connection.status.text == "Error(nothing answers)"
        server.away = None
        assert await connection.request("x/y") == {"echo": None}
        await watcher.until(lambda: connection.status.state == "Stopped")


async def test_whoever_uses_a_short_session_is_told_when_the_connection_is_given_up() -> None:
    server = Loopback()
    server.hangs.add("initialize")
    async with run_connection(settings(session="short"), open_transport=server.open) as (connection, watcher):
        waiting = asyncio.create_task(connection.request("x/y"))
        await watcher.until(lambda: connection.status.state == "Starting")
        await wait_all_tasks_blocked()
    with pytest.raises(ServerAway):
        await waiting
