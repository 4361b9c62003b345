"""The servers behind the desk in the console: what is shown of them to whom, and what administrators change."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

from refdesk.calls import ANONYMOUS, CONSOLE, Call
from refdesk.console.server_methods import Servers
from refdesk.downstream.files.servers_file import OwnServers
from refdesk.errors import InvalidArguments
from refdesk.policy.policies import can_reach, can_reach_any
from refdesk.telemetry.metric_history import History
from tests.conftest import Serve
from tests.console.asking import act, bearer, get_refusal
from tests.console.events import listening
from tests.downstream.connecting import BAD_STDIO
from tests.servers import RunningServer
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SECRET = "a-secret-of-some-length"


def stdio(**more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(BAD_STDIO)], "env": {"API_KEY": SECRET}, **more}


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., None]:
    """Have servers in the desk's own file."""

    def write(**servers: Any) -> None:
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / "servers.json").write_text(json.dumps({"mcpServers": servers}))

    return write


async def get_server(server: RunningServer, name: str, key: str = "") -> dict[str, Any]:
    [found] = [each for each in (await act(server, "servers", key=key))["servers"] if each["name"] == name]
    return dict(found)


async def running(server: RunningServer, name: str, key: str = "") -> dict[str, Any]:
    """A server once it runs and its tools are known, held or not."""

    async def is_up() -> bool:
        found = await get_server(server, name, key)
        return found["state"] == "Running" and bool(found["tools"] or found["held"])

    await eventually(is_up)
    return await get_server(server, name, key)


async def call_tool(server: RunningServer, tool: str, key: str = "", **arguments: Any) -> None:
    """Call a tool, once it is offered."""

    async def is_answered() -> bool:
        answer = await server.http.post(f"/api/tools/{tool}", json=arguments, headers=bearer(key))
        return answer.status_code == 200

    await eventually(is_answered)


async def test_a_server_is_shown_as_it_is_and_its_secrets_are_not(serve: Serve, own: Callable[..., None]) -> None:
    own(tools=stdio())
    async with serve(embedding__source="none") as server:
        await running(server, "tools")
        found = (await act(server, "refresh_server", name="tools"))["server"]
        assert (found["transport"], found["enabled"], found["can_change"]) == ("stdio", True, True)
        assert found["breaker"]["state"] == "closed"
        assert (found["in_flight"], found["held"], found["last_error"], found["latency"]) == (0, [], None, None)
        echo = next(tool for tool in found["tools"] if tool["name"] == "echo")
        assert echo["exposed"] == "tools__echo"
        await call_tool(server, "tools__secret")

        async def is_written() -> bool:
            return bool((await act(server, "server_log", name="tools"))["lines"])

        await eventually(is_written)
        everything = [await act(server, "servers"), await act(server, "server_log", name="tools", lines=50)]
        assert SECRET not in json.dumps(everything)
        assert server.desk.console is not None
        await server.desk.console.feed.sample()
        assert (await get_server(server, "tools"))["latency"]["p95_ms"] > 0
        metrics = await act(server, "metrics")
        assert [tool["calls"] for tool in metrics["tools"]] == [1]
        assert metrics["samples"][-1]["breakers"] == {"downstream tools": "closed"}


async def test_a_server_is_switched_off_and_on_at_once(serve: Serve, own: Callable[..., None]) -> None:
    own(tools=stdio())
    async with serve(embedding__source="none") as server, listening(server.http) as events:
        await running(server, "tools")
        off = (await act(server, "set_server", name="tools", enabled=False))["server"]
        assert (off["state"], off["enabled"], off["tools"], off["can_change"]) == ("Stopped", False, [], True)
        gone = await server.http.get("/api/tools")
        assert "tools__echo" not in {tool["name"] for tool in gone.json()["tools"]}
        await events.until(
            lambda events: [each["servers"][0]["state"] for each in events.of("servers")][-1:] == ["Stopped"]
        )
        on = (await act(server, "set_server", name="tools", enabled=True))["server"]
        assert on["enabled"] is True
        await running(server, "tools")
        await events.until(lambda events: events.of("servers")[-1]["servers"][0]["state"] == "Running")


async def test_a_server_without_its_variable_is_disabled_with_the_reason_and_the_others_run(
    serve: Serve, own: Callable[..., None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    incomplete = {**stdio(), "env": {"API_KEY": "${NOT_SET_ANYWHERE}"}}
    reason = (
        "env.API_KEY: environment variable NOT_SET_ANYWHERE is not set; set it, or write ${NOT_SET_ANYWHERE:-default}"
    )
    own(tools=stdio(), web={"url": "${NO_URL}"})
    async with serve(embedding__source="none", mcpServers={"new": incomplete}) as server:
        await running(server, "tools")
        own(tools=stdio(), more=stdio())
        await call_tool(server, "more__echo", text="new")
        found = await get_server(server, "new")
        assert (found["state"], found["enabled"], found["last_error"]) == ("Error", True, reason)
        checks = (await server.http.get("/ready")).json()["checks"]["downstream"]
        assert checks["state"] == "degraded"
        assert checks["servers"]["new"] == {"state": "Error", "message": reason}
        logged = [vars(one)["fields"] for one in caplog.records if one.message == "downstream.unresolved"]
        assert {one["server"]: one["why"] for one in logged}["new"] == reason
        assert {one["server"] for one in logged} == {"new", "web"}

        (tmp_path / "data" / "servers.json").write_text("{")

        async def is_told() -> bool:
            checks = (await server.http.get("/ready")).json()["checks"]["downstream"]
            return checks["state"] == "degraded" and "servers.json" in checks.get("problem", "")

        await eventually(is_told)
        await call_tool(server, "tools__echo", text="still here")


async def test_changed_tools_wait_until_they_are_approved_as_shown(serve: Serve, own: Callable[..., None]) -> None:
    own(tools=stdio(hold="new"))
    async with serve(embedding__source="none") as server:
        found = await running(server, "tools")
        assert found["tools"] == []
        held = {each["tool"]: each for each in found["held"]}
        assert held["echo"]["is_new"] is True
        assert (held["echo"]["reason"], held["echo"]["approve"]) == (
            "held: new tool",
            "refdesk servers approve tools echo",
        )
        assert '+  "name": "echo"' in held["echo"]["diff"]
        other = held["pid"]["sha256"]
        stale = await get_refusal(server, "approve", 400, name="tools", tool="echo", sha256=other)
        assert "sha256: the tool has changed" in stale
        after = (await act(server, "approve", name="tools", tool="echo", sha256=held["echo"]["sha256"]))["server"]
        assert [tool["name"] for tool in after["tools"]] == ["echo"]
        assert "echo" not in {each["tool"] for each in after["held"]}
        refusing = (await act(server, "approve", name="tools", tool="crash", reject=True))["server"]
        assert [tool["name"] for tool in refusing["tools"]] == ["echo"]
        assert "no tool 'echo' of 'tools' waits" in await get_refusal(server, "approve", 400, name="tools", tool="echo")
        everything = (await act(server, "approve", name="tools"))["server"]
        assert len(everything["tools"]) > 10
        assert "crash" not in {tool["name"] for tool in everything["tools"]}


async def test_a_server_of_the_configuration_is_changed_there(serve: Serve) -> None:
    async with serve(mcpServers={"fixed": stdio()}, embedding__source="none") as server:
        assert (await running(server, "fixed"))["can_change"] is False
        said = await get_refusal(server, "set_server", 400, name="fixed", enabled=False)
        assert said.startswith("name: 'fixed' is a server of ")
        assert "change it there" in said
        assert "no server named 'fixd'; did you mean 'fixed'?" in await get_refusal(
            server, "set_server", 400, name="fixd", enabled=False
        )


async def test_a_key_sees_the_servers_and_tools_that_it_opens(serve: Serve) -> None:
    keys = [
        {"key": "k-all", "user": "all", "tenant": "acme", "roles": ["admin"]},
        {"key": "k-one", "user": "one", "tenant": "acme", "servers": ["first"]},
        {"key": "k-tool", "user": "too", "tenant": "acme", "servers": ["second__ec*"]},
        {"key": "k-other", "user": "oth", "tenant": "beta"},
    ]
    servers = {"first": stdio(), "second": stdio(tenants=["acme"])}
    async with serve(auth__required=True, auth__keys=keys, mcpServers=servers, embedding__source="none") as server:
        for name in servers:
            await running(server, name, "k-all")
        await call_tool(server, "second__echo", "k-all", text="x")
        assert server.desk.console is not None
        await server.desk.console.feed.sample()
        seen = {}
        for key in ("k-all", "k-one", "k-tool", "k-other"):
            listed = (await act(server, "servers", key=key))["servers"]
            metrics = await act(server, "metrics", key=key)
            breakers = set(metrics["samples"][-1]["breakers"])
            assert breakers == {f"downstream {each['name']}" for each in listed}
            tools = {tool["name"] for tool in metrics["tools"]}
            seen[key] = {each["name"]: len(each["tools"]) for each in listed}, "second__echo" in tools
            async with listening(server.http, **bearer(key)) as events:
                await events.until(lambda events: events.of("servers"))
                assert {each["name"] for each in events.of("servers")[0]["servers"]} == set(seen[key][0])
        every = seen["k-all"][0]["first"]
        assert seen == {
            "k-all": ({"first": every, "second": every}, True),
            "k-one": ({"first": every}, False),
            "k-tool": ({"second": 1}, True),
            "k-other": ({"first": every}, False),
        }


async def test_what_is_decided_counts_once_it_is_answered(serve: Serve, own: Callable[..., None]) -> None:
    own(tools=stdio(hold="new"))
    async with serve(embedding__source="none") as server:
        await running(server, "tools")
        await act(server, "approve", name="tools", tool="echo")
        answer = await server.http.post("/api/tools/tools__echo", json={"text": "x"})
        assert answer.status_code == 200, answer.text
        assert "tools__echo" in server.desk.registry.tools
        await act(server, "set_server", name="tools", enabled=False)
        assert "tools__echo" not in server.desk.registry.tools


async def test_a_server_is_listed_once_while_it_is_switched(serve: Serve, own: Callable[..., None]) -> None:
    own(tools=stdio())
    async with serve(embedding__source="none") as server:
        await running(server, "tools")
        assert server.desk.console is not None
        servers, seen = server.desk.console.servers, set()
        for enabled in (False, True):
            switching = asyncio.create_task(act(server, "set_server", name="tools", enabled=enabled))
            while not switching.done():
                seen.add(tuple(each["name"] for each in servers.list_states(ANONYMOUS)))
                await checkpoint()
            await switching
        assert seen == {("tools",)}


async def test_a_server_that_somebody_takes_away_meanwhile_is_not_there(serve: Serve, own: Callable[..., None]) -> None:
    own(tools=stdio())
    async with serve(embedding__source="none") as server:
        await running(server, "tools")
        console = server.desk.console
        assert console is not None
        fleet = console.servers.fleet
        history = History(server.desk.metrics, leave_out=CONSOLE)
        # Somebody else removes every server while one is switched.
        vanishing = OwnServers(server.desk.config, {}, lambda: fleet.apply({}))
        servers = Servers(fleet, vanishing, console.rights, can_reach, can_reach_any, history)
        call = Call(f"{CONSOLE}set_server", {"name": "tools", "enabled": True})
        with pytest.raises(InvalidArguments, match=r"name: no server named 'tools'$"):
            await servers.set_server(call)
