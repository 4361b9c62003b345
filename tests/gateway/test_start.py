"""Ten servers of which one hangs and one crashes; servers that die; a start at which nobody is there."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import mcp
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from tests.conftest import Serve
from tests.downstream.servers import running_talkative
from tests.gateway.desks import Gateway, bad, behind_gate, failure_of, gateway, listening, talkative
from tests.inbound.streaming import RawStream
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio

CHANGED = "notifications/tools/list_changed"


async def hears(stream: RawStream, method: str) -> None:
    """Wait to be told this."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await stream.next())["method"] != method:
            pass


def ten_servers(gate: Path) -> dict[str, dict[str, Any]]:
    """One hangs, one crashes, four are good, and four are good once they are let."""
    good = {f"good{number}": bad() for number in range(4)}
    later = {f"later{number}": behind_gate(gate) for number in range(4)}
    return {"hangs": bad("hang"), "crashes": bad("exit"), **good, **later}


async def test_of_ten_servers_one_hangs_and_one_crashes_and_eight_are_there(serve: Serve, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    good = [f"good{number}" for number in range(4)]
    async with gateway(serve, *good, **ten_servers(gate)) as desk:
        # The client is greeted and has a list while four are only starting, and one never will.
        session = await desk.session()
        assert await desk.servers() == set(good)
        async with listening(session) as stream:
            opened = os.open(gate, os.O_RDWR)
            try:
                await hears(stream, CHANGED)
                await desk.offers(*good, *(f"later{number}" for number in range(4)))
            finally:
                os.close(opened)
        assert len(await desk.servers()) == 8
        ready = await desk.until_away("crashes")
        assert ready["servers"]["hangs"]["state"] == "Starting"
        texts = await asyncio.gather(*(desk.text(f"{name}__echo", text=name) for name in await desk.servers()))
        assert set(texts) == await desk.servers()


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_of_the_official_sdk_goes_on_with_its_session_when_a_server_has_died(
    serve: Serve, mode: Any
) -> None:
    async with (
        gateway(serve, bad=bad(), good=bad()) as desk,
        mcp.Client(desk.url, mode=mode) as client,
    ):
        first = await text_of(client, "bad__pid")
        for _ in range(3):
            killed = int(await text_of(client, "bad__pid"))
            hanging = asyncio.create_task(desk.call("bad__hang"))
            await desk.until_described("bad", in_flight=1)
            os.kill(killed, signal.SIGKILL)
            assert failure_of(await hanging)["data"]["type"] == "ServerGone"
            # No need to try again: the call waits for the server that is being started.
            assert int(await text_of(client, "bad__pid")) != killed
        assert await text_of(client, "good__echo", text="here") == "here"
        assert await text_of(client, "bad__pid") != first
        assert (await desk.describe("bad"))["restarts"] == 3


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_call_whose_server_dies_while_its_client_is_asked_fails_and_can_be_made_again(
    serve: Serve, mode: Any
) -> None:
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        is_asked.set()
        await may_answer.wait()
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async with (
        gateway(serve, talk=talkative("legacy")) as desk,
        mcp.Client(desk.url, mode=mode, elicitation_callback=elicit) as client,
    ):
        pid = int(await text_of(client, "talk__pid"))
        calling = asyncio.create_task(client.call_tool("talk__elicit", {}))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await is_asked.wait()
            os.kill(pid, signal.SIGKILL)
            if mode == "auto":
                may_answer.set()  # the newest revision has no call to fail before its client calls again
            with pytest.raises(MCPError) as caught:
                await calling
        assert caught.value.error.data["type"] == "ServerGone"
        may_answer.set()
        assert "Ada" in await text_of(client, "talk__elicit")
        # The new session's lists are being asked for at this time as well.
        await desk.until_described("talk", in_flight=0)


async def text_of(client: mcp.Client, tool: str, **arguments: Any) -> str:
    """What a tool says."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        result = await client.call_tool(tool, arguments)
    assert not result.is_error
    return str(getattr(result.content[0], "text", None))


@pytest.mark.slow
async def test_f43_when_all_servers_are_down_at_the_start_their_last_known_lists_are_offered(serve: Serve) -> None:
    async with running_talkative() as server:
        servers: dict[str, Any] = {kind: {"type": kind, "url": server.url(kind)} for kind in ("http", "websocket")}
        async with gateway(serve, **servers) as desk:
            known = await desk.tools()

            async def are_kept() -> bool:
                prompts, resources = await desk.ask("prompts/list"), await desk.ask("resources/list")
                return "websocket__" in str(prompts) and "talk://" in str(resources)

            await eventually(are_kept)
    async with gateway(serve, **servers) as desk:
        # At once, and not only when it is known that nobody is there.
        assert await desk.tools() == known
        ready = await desk.until_away(*servers)
        assert all("tools" in ready["servers"][name]["stale"] for name in servers)
        assert await find_stale_servers(desk) == set(servers), "and what it lists is marked"
        for name in servers:
            error = await desk.failure(f"{name}__echo", text="anybody?")
            assert error["data"]["type"] in ("ServerAway", "BreakerOpen")
            assert error["data"]["retryable"] is True
        async with running_talkative(port=server.port):
            for name in servers:
                await desk.works(f"{name}__echo", text="back")
                await desk.until_described(name, state="Running", stale=[])
            assert await find_stale_servers(desk) == set()
        assert await desk.tools() == known


async def find_stale_servers(desk: Gateway) -> set[str]:
    """The servers whose tools are listed as what is last known of them."""
    tools = (await desk.ask("tools/list"))["result"]["tools"]
    return {tool["name"].partition("__")[0] for tool in tools if (tool.get("_meta") or {}).get("refdesk/stale")}
