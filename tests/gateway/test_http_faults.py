"""Servers over HTTP that hang, break off, refuse and come and go: F1 and F13 to F16 of the table in this package."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from tests.conftest import Serve
from tests.downstream.servers import Kind, running_talkative
from tests.downstream.servers.bad_http import BadHttp, bad_http
from tests.gateway.cutting import cutting
from tests.gateway.desks import Gateway, bad, failure_of, gateway, serving_in
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Behind:
    """A desk, and what is behind it."""

    server: BadHttp
    desk: Gateway

    async def is_left(self) -> None:
        """Wait until the desk has hung up before the answer came."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.server.left.wait()

    async def hears(self, method: str) -> None:
        """Wait until the server is told this."""
        await eventually(lambda: self.server.list_posts(method))


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Behind]:
    """What the faults of single answers are shown with; nothing may be left of all of them together."""
    async with bad_http() as server:
        settings = {"url": server.url(), "max_message_bytes": 2_000_000}
        serve = serving_in(tmp_path_factory.mktemp("faults"))
        async with gateway(serve, bad=settings, good=bad()) as desk:
            yield Behind(server, desk)


@pytest.fixture
def behind(shared: Behind) -> Behind:
    """The same, with nothing seen yet."""
    shared.server.seen.clear()
    shared.server.left.clear()
    return shared


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("hang", id="f1 hang"),
        pytest.param("drip", id="f7 drip"),
        pytest.param("hanghdr", id="f15 headers then silence"),
        pytest.param("slowhead", id="f15 headers in drips"),
        pytest.param("hangsse", id="f15 a stream with nothing in it"),
        pytest.param("sseforever", id="f15 a stream of everything but the answer"),
        pytest.param("comments", id="f15 a stream of comments"),
    ],
)
async def test_f1_f7_f15_what_does_not_answer_in_time_is_too_slow(behind: Behind, fault: str) -> None:
    answer = await behind.desk.hanging(f"bad__{fault}", lambda: behind.server.list_posts("tools/call"))
    assert failure_of(answer)["data"]["type"] == "ServerTooSlow"
    # The server is told, as these revisions have it: by a message, besides that the connection is closed.
    await behind.hears("notifications/cancelled")
    await behind.is_left()
    assert await behind.desk.text("bad__echo", text="again") == "again"


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("reset", id="f13 reset"),
        pytest.param("resetmid", id="f13 reset in the body"),
        pytest.param("close", id="f13 close"),
        pytest.param("lenlie", id="f13 less than announced"),
        pytest.param("lenshort", id="f13 more than announced"),
        pytest.param("badchunk", id="f13 a chunk that is none"),
        pytest.param("badchunksse", id="f13 a chunk of a stream that is none"),
        pytest.param("ssecut", id="f13 a stream without the answer"),
        pytest.param("ssebroken", id="f13 a stream that breaks in an event"),
        pytest.param("nothttp", id="f13 not http"),
        pytest.param("bighead", id="f13 a head without end"),
        pytest.param("notjson", id="f10 not JSON"),
        pytest.param("html", id="f10 a page"),
        pytest.param("empty", id="f10 nothing"),
        pytest.param("taken", id="f10 taken as a notification"),
        pytest.param("deep", id="f10 deep"),
        pytest.param("nullresult", id="f10 null"),
        pytest.param("wrongid", id="f11 an answer to another"),
        pytest.param("bigchunked", id="f8 a body without end"),
        pytest.param("bigcomment", id="f8 a line without end"),
        pytest.param("bomb", id="f9 a bomb"),
    ],
)
async def test_f8_to_f13_an_answer_that_is_none_fails_its_call_and_nothing_else(behind: Behind, fault: str) -> None:
    answer = await behind.desk.during(f"bad__{fault}")
    assert failure_of(answer)["data"]["type"] in ("ServerGone", "ServerTalksNonsense")
    assert len(behind.server.list_posts("tools/call")) == 1, "a call may change something, and is not made twice"
    assert await behind.desk.text("bad__echo", text="again") == "again"


@pytest.mark.slow
async def test_f9_a_body_of_fifty_megabytes_is_refused(serve: Serve) -> None:
    async with bad_http() as server, gateway(serve, bad={"url": server.url() + "?bytes=50000000"}, good=bad()) as desk:
        answer = await desk.during("bad__big")
        assert "16777216" in failure_of(answer)["message"]
        assert await desk.text("bad__echo", text="again") == "again"


async def test_f13_a_line_cut_anywhere_fails_one_call(serve: Serve) -> None:
    dice = Random(13)
    async with running_talkative(era="legacy") as server, cutting(server.port) as cutter:
        talk = {"url": f"http://127.0.0.1:{cutter.port}/mcp"}
        async with gateway(serve, talk=talk, good=bad()) as desk:
            for number in range(20):
                await desk.works("talk__echo", text="whole")
                cutter.after = dice.randrange(400)
                answer = await desk.call("talk__big", n=1000)
                cutter.after = None
                assert failure_of(answer)["data"]["type"] in ("ServerGone", "ServerTalksNonsense", "ServerAway"), number
            assert cutter.cuts >= 20
            await desk.works("talk__echo", text="whole")
            assert await desk.text("good__echo", text="here") == "here"


@pytest.mark.parametrize("where", ["refused", "blackhole", "silent"])
async def test_f14_a_server_that_takes_no_connection_is_away_and_says_for_how_long(serve: Serve, where: str) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        address = listening.getsockname()
        crowd = []
        if where == "blackhole":
            # Nobody accepts, and the queue is full: further connections are not answered at all.
            for _ in range(3):
                crowd.append(socket.socket())
                crowd[-1].setblocking(False)
                crowd[-1].connect_ex(address)
        elif where == "refused":
            listening.close()
        settings = {"url": f"http://127.0.0.1:{address[1]}/mcp", "connect_timeout_seconds": 0.5}
        async with gateway(serve, "good", bad=settings, good=bad()) as desk:
            await desk.until_away("bad")
            assert await desk.text("good__echo", text="here") == "here"
        for one in crowd:
            one.close()


@pytest.mark.parametrize(("fault", "status"), [("e429", 503), ("e503", 503)])
async def test_f16_when_to_come_back_is_passed_on(serve: Serve, fault: str, status: int) -> None:
    async with bad_http() as server, gateway(serve, bad={"url": server.url()}) as desk:
        error = await desk.failure(f"bad__{fault}")
        assert error["data"]["retry_after"] == 7
        assert error["data"]["retryable"] is True
        plain = await desk.http.post(f"/api/tools/bad__{fault}", json={})
        assert (plain.status_code, plain.headers["retry-after"]) == (status, "7")
        assert len(server.list_posts("tools/call")) == 2, "nobody asks again before the time has come"
        assert await desk.text("bad__echo", text="here") == "here"


async def test_f16_a_server_that_says_so_for_ever_is_left_alone_after_a_while(serve: Serve) -> None:
    async with bad_http() as server, gateway(serve, bad={"url": server.url()}) as desk:
        errors = [await desk.failure("bad__e503date") for _ in range(20)]
        assert errors[-1]["code"] == -32003
        assert 0 < errors[-1]["data"]["retry_after"] <= 30
        assert len(server.list_posts("tools/call")) < 10


async def test_credentials_that_are_no_longer_good_are_told_of_and_are_no_end(serve: Serve) -> None:
    async with bad_http() as server, gateway(serve, bad={"url": server.url()}) as desk:
        # Taken back in the middle of a session: it is asked once more, in another, unless others use this one too.
        await desk.until_described("bad", in_flight=0)
        assert await desk.text("bad__e401once") == "let in"
        error = await desk.failure("bad__e401")
        assert error["data"]["type"] == "ServerAway"
        assert "headers" in error["message"]
        assert not [request for request in server.seen if "elsewhere" in request.target], "what a refusal names"
        assert await desk.text("bad__echo", text="again") == "again"


async def test_a_session_that_the_server_has_forgotten_is_opened_anew(serve: Serve) -> None:
    async with bad_http() as server, gateway(serve, bad={"url": server.url()}) as desk:
        assert await desk.text("bad__e404session") == "in a new session"
        assert (await desk.describe("bad"))["sessions"] == 2


@pytest.mark.slow
async def test_a_server_that_is_gone_for_a_while_is_back_by_itself_over_every_transport(serve: Serve) -> None:
    async with running_talkative() as server:
        kinds: tuple[Kind, ...] = ("http", "sse", "websocket")
        servers: dict[str, Any] = {kind: {"type": kind, "url": server.url(kind)} for kind in kinds}
        async with gateway(serve, good=bad(), **servers) as desk:
            for kind in kinds:
                assert await desk.text(f"{kind}__echo", text="there") == "there"
            server.process.kill()
            await server.process.wait()
            for kind in kinds:
                errors = [await desk.failure(f"{kind}__echo") for _ in range(50)]
                assert all(error["data"]["retryable"] for error in errors)
                assert errors[-1]["data"]["retry_after"] > 0
                assert f"{kind}__echo" in await desk.tools()
            assert await desk.text("good__echo", text="here") == "here"
            async with running_talkative(port=server.port):
                for kind in kinds:
                    await desk.works(f"{kind}__echo", text="back")
                    await desk.until_described(kind, state="Running", stale=[])
                assert (await desk.ready())["state"] == "ok"
