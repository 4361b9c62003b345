"""The client of one server, against servers that are processes of their own."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
from anyio import wait_all_tasks_blocked

import refdesk
from refdesk.client import (
    Client,
    Implementation,
    InitializeParams,
    JsonRpcNotification,
    JsonRpcRequest,
    ServerInfo,
    ToolCallParams,
    ToolCallResult,
    ToolDefinition,
    map_error,
)
from refdesk.errors import (
    BreakerOpen,
    ClientCannot,
    ConfigError,
    InvalidCall,
    ServerAway,
    ServerGone,
    ServerLacks,
    ServerRefused,
    ServerTooSlow,
    UnknownTool,
)
from tests.downstream.connecting import bad_stdio
from tests.downstream.contract import Belongings
from tests.downstream.servers import KINDS, Kind, Running, official, running_talkative, talkative
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio

T = TypeVar("T")

SILENT = [sys.executable, "-c", "import sys; sys.stdin.read()"]
"""Answers nothing, and ends with its input."""

RECORDING = Path(__file__).parents[1] / "servers" / "recording.py"


@pytest.fixture(scope="module")
async def shared() -> AsyncIterator[Running]:
    """The talkative server, with its network doors open."""
    async with running_talkative() as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
async def _warm(shared: Running, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is only loaded or opened once is there, before anybody counts what is left behind."""
    sent = tmp_path_factory.mktemp("warm") / "sent"
    for target in ([sys.executable, str(RECORDING), str(sent)], *(shared.url(kind) for kind in KINDS[1:])):
        async with refdesk.connect(target):
            pass


@asynccontextmanager
async def connect_client(kind: Kind, shared: Running, **more: Any) -> AsyncIterator[Client]:
    """A client of the talkative server, which leaves nothing behind."""
    before = Belongings.now()
    if kind == "stdio":
        async with talkative("stdio") as settings, refdesk.connect(settings, **more) as client:
            yield client
    else:
        async with refdesk.connect(shared.url(kind), **more) as client:
            yield client
    await before.are_all()


def read_sent(path: Path) -> list[dict[str, Any]]:
    """What the recording server was sent."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


# The handshake.


async def test_the_handshake_has_its_order_and_its_ids(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    async with refdesk.connect([sys.executable, str(RECORDING), str(sent)]) as client:
        await client.call("grow")
        assert client.server == {"name": "recording", "version": "1"}
    messages = read_sent(sent)
    methods = [message["method"] for message in messages]
    assert methods == ["initialize", "notifications/initialized", "tools/list", "tools/call"]
    assert "id" not in messages[1]
    ids = [message["id"] for message in messages if "id" in message]
    assert len(set(ids)) == 3
    for id in ids:
        assert str(uuid.UUID(id)) == id
        assert uuid.UUID(id).version == 4


async def test_a_server_without_tools_is_refused_before_the_handshake_is_completed(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    with pytest.raises(ServerLacks, match="tools") as caught:
        async with refdesk.connect([sys.executable, str(RECORDING), str(sent), '{"prompts": {}}']):
            raise AssertionError
    assert [message["method"] for message in read_sent(sent)] == ["initialize"]
    assert map_error(caught.value).code == "E205"


async def test_a_server_without_tools_will_do_where_none_are_required(tmp_path: Path) -> None:
    command = [sys.executable, str(RECORDING), str(tmp_path / "sent"), '{"completions": {}}']
    async with refdesk.connect(command, require_tools=False) as client:
        assert await client.tools() == ()
        assert await client.prompts() == []
        assert not client.has_capability("tools")
        assert client.has_capability("completions")
    assert [message["method"] for message in read_sent(tmp_path / "sent")] == [
        "initialize",
        "notifications/initialized",
    ]


async def test_only_what_there_is_a_handler_for_is_offered(tmp_path: Path) -> None:
    command = [sys.executable, str(RECORDING)]
    async with refdesk.connect([*command, str(tmp_path / "none")]):
        pass
    async with refdesk.connect([*command, str(tmp_path / "two")], on_roots=[], on_sampling=lambda _: "text"):
        pass
    assert read_sent(tmp_path / "none")[0]["params"]["capabilities"] == {}
    assert read_sent(tmp_path / "two")[0]["params"]["capabilities"].keys() == {"roots", "sampling"}


@pytest.mark.parametrize(
    ("wanted", "spoken", "is_warned"),
    [
        (None, "2025-06-18", False),
        ("2025-06-18", "2025-06-18", False),
        ("2025-06-18", "2025-03-26", True),
        (None, "2031-01-01", True),
        ("2031-01-01", "2031-01-01", True),
    ],
)
async def test_server_is_logged_with_its_revision(
    wanted: str | None, spoken: str, is_warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "refdesk")
    command = [sys.executable, str(RECORDING), str(tmp_path / "sent"), '{"tools": {}}', spoken]
    async with refdesk.connect(command, name="own", protocol_version=wanted) as client:
        assert client.protocol_version == spoken
    (connected,) = [vars(record)["fields"] for record in caplog.records if record.message == "downstream.connected"]
    assert connected == {"server": "own", "name": "recording", "version": "1", "revision": spoken}
    warned = [vars(record)["fields"]["spoken"] for record in caplog.records if record.levelname == "WARNING"]
    assert warned == ([spoken] if is_warned else [])


async def test_server_of_short_sessions_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "refdesk")
    target = {"command": sys.executable, "args": [str(RECORDING), str(tmp_path / "sent")], "session": "short"}
    async with refdesk.connect(target) as client:
        await client.call("grow")
        await client.call("grow")
    assert caplog.messages.count("downstream.connected") == 1


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_client_introduces_itself_with_the_given_name(tmp_path: Path, version: str) -> None:
    info: Implementation = {"name": "hx-docling-ui", "version": "1.0.0"}
    command = [sys.executable, str(RECORDING), str(tmp_path / "sent")]
    async with refdesk.connect(command, client_info=info, protocol_version=version) as client:
        assert client.capabilities == {"tools": {}}
    sent = read_sent(tmp_path / "sent")
    initialize = next(message["params"] for message in sent if message["method"] == "initialize")
    assert initialize["clientInfo"] == info
    for message in sent:
        if message["method"] == "server/discover":
            assert message["params"]["_meta"]["io.modelcontextprotocol/clientInfo"] == info


@pytest.mark.parametrize("info", [{}, {"name": "ui"}, {"name": "", "version": "1"}, {"name": "ui", "version": 1}])
async def test_client_without_name_or_version_is_rejected(info: Any) -> None:
    with pytest.raises(ConfigError, match="client_info needs a name and a version"):
        async with refdesk.connect(SILENT, client_info=info):
            raise AssertionError


async def test_messages_on_the_wire_have_the_keys_of_their_types(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    async with refdesk.connect([sys.executable, str(RECORDING), str(sent)]) as client:
        (tool,) = await client.tools()
        result = await client.call(tool["name"])
        server = client.server
    check_keys(server, ServerInfo)
    check_keys(tool, ToolDefinition)
    check_keys(result.raw, ToolCallResult)
    initialize, initialized, _, call = read_sent(sent)
    check_keys(initialize, JsonRpcRequest)
    check_keys(initialize["params"], InitializeParams)
    check_keys(initialized, JsonRpcNotification)
    check_keys(call, JsonRpcRequest)
    check_keys(call["params"], ToolCallParams)


def check_keys(message: Mapping[str, Any], kind: Any) -> None:
    """Whether a message has the required keys of its type, and no other than the optional ones."""
    assert kind.__required_keys__ <= message.keys() <= kind.__required_keys__ | kind.__optional_keys__, kind


async def test_the_revision_is_the_one_of_the_environment(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sent = tmp_path / "sent"
    environ = {"MCP_PROTOCOL_VERSION": "2024-11-05"}
    async with refdesk.connect([sys.executable, str(RECORDING), str(sent)], environ=environ) as client:
        assert client.protocol_version == "2025-11-25"
    assert read_sent(sent)[0]["params"]["protocolVersion"] == "2024-11-05"
    assert "downstream.version_mismatch" in caplog.messages


async def test_the_newest_revision_is_spoken_where_it_is_wanted(shared: Running) -> None:
    async with connect_client("http", shared, protocol_version="2026-07-28") as client:
        assert client.protocol_version == "2026-07-28"
        assert await client.ping() >= 0
        assert (await client.call("echo", {"text": "newest"})).text == "newest"


# What cannot be connected to.


@pytest.mark.parametrize(
    "target",
    [
        "",
        [],
        ["ls", 5],
        Path("server.py"),
        None,
        "ftp://example.com",
        "'unfinished",
        "http://",
        {},
        {"mcpServers": {}},
        {"mcpServers": {"a": {"command": "a"}, "b": {"command": "b"}}},
        {"mcpServers": {"a": {"command": "a", "comand": "b"}}},
        {"mcpServers": []},
    ],
    ids=str,
)
async def test_a_target_that_is_none_is_told_so(target: Any) -> None:
    with pytest.raises(ConfigError):
        async with refdesk.connect(target, connect_tries=1):
            raise AssertionError


@pytest.mark.parametrize("environ", [{"MCP_TOOL_CACHE_TTL": "soon"}, {"MCP_TOOL_CACHE_TTL": "-5"}])
async def test_an_environment_that_makes_no_sense_is_told_so(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        async with refdesk.connect("cat", environ=environ):
            raise AssertionError


async def test_no_secret_is_in_what_is_wrong_with_a_target() -> None:
    with pytest.raises(ConfigError) as caught:
        async with refdesk.connect({"url": "http://h/mcp", "headers": {"a b": "hunter2"}, "env": {"=": "hunter3"}}):
            raise AssertionError
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize("target", ["no-such-program-anywhere", "http://127.0.0.1:1/mcp", "ws://127.0.0.1:1/ws"])
async def test_a_server_that_is_away_is_told_so_after_the_tries(target: str) -> None:
    before = Belongings.now()
    seen: list[str] = []
    with pytest.raises(ServerAway) as caught:
        async with refdesk.connect(target, connect_tries=2, on_status=lambda status: seen.append(status.state)):
            raise AssertionError
    await before.are_all()
    assert seen[:4] == ["Starting", "Error", "Starting", "Error"]
    assert map_error(caught.value).code == "E201"


async def test_one_that_says_nothing_has_only_the_time_to_connect() -> None:
    with pytest.raises(ServerAway, match="did not answer the handshake within"):
        async with refdesk.connect(SILENT, connect_timeout=1, connect_tries=1):
            raise AssertionError


async def test_being_called_off_while_connecting_leaves_nothing_behind() -> None:
    before = Belongings.now()

    async def connect() -> None:
        async with refdesk.connect(SILENT):
            raise AssertionError

    connecting = asyncio.create_task(connect())
    await eventually(lambda: len(Belongings.now().children) > len(before.children))
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    await before.are_all()


# Ways to name one.


async def test_a_server_of_a_file_of_another_client_is_connected_to(tmp_path: Path) -> None:
    entry = {"command": "${PROGRAM}", "args": [str(RECORDING), str(tmp_path / "sent")]}
    servers = {"mcpServers": {"one": {"command": "nothing"}, "two": entry}}
    async with refdesk.connect(servers, name="two", environ={"PROGRAM": sys.executable}) as client:
        assert client.name == "two"
        assert (await client.call("grow")).text == "grown_1"
    async with refdesk.connect({"two": entry}, environ={"PROGRAM": sys.executable}) as client:
        assert client.name == "two"
    async with refdesk.connect(entry, environ={"PROGRAM": sys.executable}) as client:
        assert client.status.text == "Running"


async def test_what_is_given_goes_before_what_is_set_and_is_added_to_it(shared: Running) -> None:
    settings = shared.settings("http", headers={"X-One": "1", "X-Two": "2"}, call_timeout_seconds=0.001)
    async with refdesk.connect(settings, headers={"X-Two": "3"}, timeout=PATIENCE_SECONDS) as client:
        heard = (await client.call("headers")).structured["headers"]
    assert (heard["x-one"], heard["x-two"]) == ("1", "3")


async def test_a_command_may_be_one_text(tmp_path: Path) -> None:
    async with refdesk.connect(f"{sys.executable} {RECORDING} '{tmp_path / 'sent in a file'}'") as client:
        assert (await client.call("grow")).text == "grown_1"
    assert read_sent(tmp_path / "sent in a file")


async def test_a_short_session_is_made_anew_for_each_call(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    entry = {"command": sys.executable, "args": [str(RECORDING), str(sent)], "session": "short"}
    async with refdesk.connect(entry) as client:
        await client.tools()
        assert (await client.call("grow")).text == (await client.call("grow")).text == "grown_1"
    methods = [message["method"] for message in read_sent(sent) if "id" in message]
    assert methods == [*("initialize", "ping"), *("initialize", "tools/list"), *("initialize", "tools/call") * 2]


async def test_a_short_session_that_cannot_be_had_is_told_of() -> None:
    with pytest.raises(ServerAway):
        async with refdesk.connect({"command": "no-such-program", "session": "short"}, connect_tries=2):
            raise AssertionError


# The tools.


async def test_the_tools_are_asked_for_once_until_they_are_invalidated(tmp_path: Path) -> None:
    sent = tmp_path / "sent"

    def lists() -> int:
        return sum(message["method"] == "tools/list" for message in read_sent(sent))

    async with refdesk.connect([sys.executable, str(RECORDING), str(sent)]) as client:
        await asyncio.gather(client.tools(), client.tools(), client.tool("grow"))
        assert lists() == 1
        client.invalidate()
        await asyncio.gather(client.tools(), client.tools())
        assert lists() == 2
        await client.call("grow")
        assert (await client.tool_schema("grown_1")) == {"type": "object"}
        assert lists() == 3
        with pytest.raises(UnknownTool) as caught:
            await client.tool_schema("nothing")
        assert lists() == 4
        assert map_error(caught.value).code == "E204"


@pytest.mark.parametrize("given", [{"tool_cache_seconds": 0.0}, {"environ": {"MCP_TOOL_CACHE_TTL": "0"}}])
async def test_tools_that_are_too_old_are_asked_for_again(given: dict[str, Any], tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    async with refdesk.connect([sys.executable, str(RECORDING), str(sent)], **given) as client:
        await client.tools()
        await client.tools()
    assert [message["method"] for message in read_sent(sent)].count("tools/list") == 3


async def hear(changes: asyncio.Queue[T]) -> T | None:
    """Return the next change, or None after a while: a server may have announced it before it knew who listens."""
    try:
        async with asyncio.timeout(1):
            return await changes.get()
    except TimeoutError:
        return None


@pytest.mark.parametrize("version", [None, "2026-07-28"])
async def test_tools_that_changed_are_asked_for_again(version: str | None) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with (
        running_talkative() as running,
        refdesk.connect(
            running.url("http"), protocol_version=version, on_change=lambda method, _: heard.put_nowait(method)
        ) as client,
    ):
        assert client.has_capability("tools.listChanged")
        before = {tool["name"] for tool in await client.tools()}
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "grown_1" not in {tool["name"] for tool in await client.tools()}:
                await client.call("shrink")
                await client.call("grow")
                assert await hear(heard) in (None, "notifications/tools/list_changed")
        assert {tool["name"] for tool in await client.tools()} - before == {"grown_1"}


# Calls.


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_is_answered_over_every_way(kind: Kind, shared: Running) -> None:
    async with connect_client(kind, shared) as client:
        result = await client.call("structured", {"a": 5})
        assert (result.structured, result.is_error) == ({"a": 5}, False)
        assert result.content[0]["type"] == "text"
        assert json.loads(result.text) == {"a": 5}
        assert result.raw["_meta"] == {"vendor.example/result": 2}
        assert (await client.call("tool_error")).is_error
        with pytest.raises(ServerRefused) as caught:
            await client.call("rpc_error")
        assert (caught.value.code, caught.value.given) == (-32050, {"why": "because", "deep": {"list": [1, 2]}})
        assert [item["type"] for item in (await client.call("link")).content] == ["resource_link", "resource"]
        assert client.describe()["transport"] == kind


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_that_takes_too_long_is_called_off(kind: Kind, shared: Running) -> None:
    async with connect_client(kind, shared) as client:

        async def is_called_off() -> bool:
            # On a busy machine, a call may be overdue before the server has got it.
            with pytest.raises(ServerTooSlow) as caught:
                await client.call("cancel_me", timeout=0.2)
            assert map_error(caught.value).code == "E202"
            ended = await client.call("was_cancelled", {"wait_ms": 1000})
            return bool(ended.structured["cancelled"])

        await eventually(is_called_off)


async def test_the_time_of_calls_can_be_changed_while_it_runs(shared: Running) -> None:
    async with connect_client("stdio", shared) as client:
        client.set_timeouts(call=0.1, lists=5, connect=5)
        with pytest.raises(ServerTooSlow, match=r"0\.1 s"):
            await client.call("cancel_me")
        client.set_timeouts(call=PATIENCE_SECONDS)
        assert (await client.call("sleep_ms", {"ms": 200})).text == "slept"


async def test_arguments_that_are_no_json_are_told_of(shared: Running) -> None:
    async with connect_client("http", shared) as client:
        with pytest.raises(InvalidCall, match="JSON") as caught:
            await client.call("echo", {"text": object()})
        assert map_error(caught.value).code == "E203"


async def test_a_client_whose_block_is_over_says_so(shared: Running) -> None:
    async with connect_client("http", shared) as client:
        pass
    with pytest.raises(ServerAway, match="is stopped"):
        await client.call("echo")
    assert client.status.text == "Stopped"


@pytest.mark.parametrize("kind", KINDS)
async def test_progress_is_told_to_whoever_made_the_call(kind: Kind, shared: Running) -> None:
    of_all: list[Any] = []
    of_one: list[Any] = []

    async def hear(done: float, total: float | None, doing: str | None) -> None:
        of_one.append((done, total, doing))

    async with connect_client(kind, shared, on_progress=lambda *told: of_all.append(told)) as client:
        await client.call("progress", {"steps": 2}, progress=hear)
        assert of_one == [(1, 2, "step 1"), (2, 2, "step 2")]
        assert of_all == []
        await client.call("progress", {"steps": 1})
        assert of_all == [(1, 1, "step 1")]


@pytest.mark.parametrize("version", [None, "2026-07-28"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_asks_and_is_answered(kind: Kind, version: str | None, shared: Running, tmp_path: Path) -> None:
    asked: list[str] = []

    async def sample(params: Any) -> str:
        asked.append(params["messages"][0]["content"]["text"])
        return "Hello"

    def elicit(params: Any) -> dict[str, Any]:
        asked.append(params["message"])
        return {"action": "accept", "content": {"name": "Ada"}}

    handlers = {"on_sampling": sample, "on_elicitation": elicit, "on_roots": lambda: [tmp_path, "file:///else"]}
    async with connect_client(kind, shared, protocol_version=version, **handlers) as client:
        sampled = (await client.call("sample")).structured["answer"]
        assert (sampled["role"], sampled["content"]) == ("assistant", {"type": "text", "text": "Hello"})
        elicited = (await client.call("elicit")).structured["answer"]
        assert elicited == {"action": "accept", "content": {"name": "Ada"}}
        roots = (await client.call("roots")).structured["answer"]["roots"]
        assert roots == [{"uri": tmp_path.as_uri(), "name": tmp_path.name}, {"uri": "file:///else"}]
    assert asked == ["Say hello", "What is your name?"]


@pytest.mark.parametrize("answer", [5, [1], {"role": object()}, {"text": "\ud800"}], ids=repr)
async def test_an_answer_that_is_none_does_not_leave_the_server_waiting(answer: Any, shared: Running) -> None:
    async with connect_client("stdio", shared, on_sampling=lambda _: answer) as client:
        refused = (await client.call("sample", timeout=PATIENCE_SECONDS)).structured["answer"]["error"]
        assert refused["code"] == -32603


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("roots/list", {"result": {"roots": [{"uri": "file:///work"}]}}),
        ("sampling/createMessage", {"error": {"code": -32601}}),
    ],
)
async def test_what_is_asked_outside_of_calls_is_answered_too(
    question: str, answer: dict[str, Any], tmp_path: Path
) -> None:
    sent = tmp_path / "sent"
    command = [sys.executable, str(RECORDING), str(sent), '{"tools": {}}', "2025-11-25", question]
    async with refdesk.connect(command, on_roots=["file:///work"]):
        await eventually(lambda: any("method" not in message for message in read_sent(sent)))
    (told,) = [message for message in read_sent(sent) if "method" not in message]
    if "error" in told:
        told["error"] = {"code": told["error"]["code"]}
    assert told == {"jsonrpc": "2.0", "id": 1, **answer}


async def test_a_handler_that_declines_or_fails_does_not_leave_the_server_waiting(
    shared: Running, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("a mistake")

    async with connect_client(
        "http", shared, on_elicitation=lambda _: None, on_sampling=fail, on_progress=fail, on_log=fail
    ) as client:
        assert (await client.call("elicit")).structured["answer"] == {"action": "decline"}
        refused = (await client.call("sample", timeout=PATIENCE_SECONDS)).structured["answer"]["error"]
        assert (refused["code"], refused["message"]) == (
            -32603,
            "The client's handler of sampling/createMessage failed",
        )
        assert (await client.call("progress", {"steps": 3})).text == "done"
        assert (await client.call("log")).text == "logged"
    assert caplog.messages.count("client.handler_failed") == 5
    caplog.clear()


async def test_what_nobody_handles_is_refused(shared: Running) -> None:
    async with connect_client("http", shared) as client:
        for tool in ("sample", "elicit"):
            refused = (await client.call(tool, timeout=PATIENCE_SECONDS)).structured["answer"]["error"]
            assert refused["code"] == -32601
        assert (await client.call("roots")).structured["answer"] == {"roots": []}


async def test_what_nobody_handles_ends_a_call_of_the_newest_revision(shared: Running) -> None:
    async with connect_client("http", shared, protocol_version="2026-07-28") as client:
        for tool in ("sample", "elicit", "roots"):
            with pytest.raises(ClientCannot, match="no handler for"):
                await client.call(tool, timeout=PATIENCE_SECONDS)
        assert (await client.call("echo", {"text": "still there"})).text == "still there"


async def test_a_question_that_the_server_takes_back_ends_the_handler(shared: Running) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def never(_: Any) -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with connect_client("stdio", shared, on_elicitation=never) as client:
        changing = asyncio.create_task(client.call("change_mind"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asked.wait()
            await client.call("nudge")
            await ended.wait()
            await client.call("nudge")
            assert (await changing).text == "never mind"


async def test_a_call_that_is_cancelled_ends_its_handler_and_tells_the_server(shared: Running) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def hear(*_: Any) -> None:
        asked.set()

    async with connect_client("stdio", shared) as client:
        call = asyncio.create_task(client.call("cancel_me", progress=hear))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asked.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            ended.set()
        assert (await client.call("was_cancelled", {"wait_ms": 1000 * PATIENCE_SECONDS})).structured["cancelled"]


@pytest.mark.parametrize("version", [None, "2026-07-28"])
@pytest.mark.parametrize("kind", KINDS)
async def test_log_messages_are_heard(kind: Kind, version: str | None, shared: Running) -> None:
    heard: asyncio.Queue[tuple[str, Any, str | None]] = asyncio.Queue()
    async with connect_client(
        kind, shared, protocol_version=version, on_log=lambda *message: heard.put_nowait(message)
    ) as client:
        await client.call("log", {"level": "warning", "text": "beware"})
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await heard.get() == ("warning", "beware", "talkative")


# The rest of the protocol.


@pytest.mark.parametrize("version", [None, "2026-07-28"])
async def test_prompts_resources_and_completions(version: str | None, shared: Running) -> None:
    changes: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
    async with connect_client(
        "http", shared, protocol_version=version, on_change=lambda *change: changes.put_nowait(change)
    ) as client:
        prompts, resources, templates = (
            await client.prompts(),
            await client.resources(),
            await client.resource_templates(),
        )
        assert prompts
        assert templates
        assert (await client.prompt(prompts[0]["name"], {}))["messages"]
        assert (await client.read(resources[0]["uri"]))[0]["uri"] == resources[0]["uri"]
        ref = {"type": "ref/prompt", "name": prompts[0]["name"]}
        assert isinstance(await client.complete(ref, "name", "a", {"other": "b"}), list)
        assert await client.ping() >= 0
        await client.subscribe("talk://document/1")
        change = None
        async with asyncio.timeout(PATIENCE_SECONDS):
            while change is None or change[0] != "notifications/resources/updated":
                await client.call("touch", {"uri": "talk://document/1"})
                change = await hear(changes)
        assert change[1]["uri"] == "talk://document/1"
        await client.unsubscribe("talk://document/1")


# When it dies.


async def test_it_is_connected_again_by_itself() -> None:
    seen: list[str] = []
    async with talkative("stdio") as settings:
        async with refdesk.connect(settings, on_status=lambda status: seen.append(status.text)) as client:
            first = (await client.call("pid")).text
            with pytest.raises(ServerGone) as caught:
                await client.call("die")
            assert map_error(caught.value).retryable
            assert (await client.call("pid")).text != first
            assert client.status.text == "Running"
        await wait_all_tasks_blocked()
    assert seen == ["Starting", "Running", "Starting", "Running", "Stopped"]


async def test_the_tools_that_were_known_stay_while_the_server_is_away(tmp_path: Path) -> None:
    async with running_talkative() as running:
        url, port = running.url("http"), running.port
        async with refdesk.connect(url, tool_cache_seconds=0, connect_timeout=PATIENCE_SECONDS) as client:
            known = await client.tools()
            running.process.kill()
            await running.process.wait()
            assert await client.tools() == known
            client.invalidate()
            with pytest.raises((ServerAway, ServerGone, BreakerOpen)):
                await client.tools()
            async with running_talkative(port=port):
                await _answers(client)


async def _answers(client: Client) -> None:
    async def is_answered() -> bool:
        try:
            await client.call("echo", {"text": "back"})
        except (ServerAway, ServerGone, BreakerOpen):
            return False
        return True

    await eventually(is_answered)


async def test_a_server_that_only_fails_is_left_alone() -> None:
    async with refdesk.connect(bad_stdio()) as client:
        for _ in range(5):
            with pytest.raises(ServerTooSlow):
                await client.call("hang", timeout=0.05)
        assert client.breaker == "open"
        with pytest.raises(BreakerOpen) as caught:
            await client.call("echo")
        app = map_error(caught.value)
        assert (app.code, app.retryable) == ("E201", True)


async def test_breaker_has_the_given_threshold_cool_down_and_trials(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "refdesk")
    command = [sys.executable, str(RECORDING), str(tmp_path / "sent")]
    breaker: dict[str, Any] = {"breaker_failures": 2, "breaker_seconds": 0.2, "breaker_trials": 2}
    async with refdesk.connect(command, name="recording", **breaker) as client:
        for code in ("-32602", "-32001", "-32603", "-32602", "-32000"):
            assert client.breaker == "closed"
            with pytest.raises(ServerRefused):
                await client.call(code)
        assert client.breaker == "open"
        with pytest.raises(BreakerOpen):
            await client.call("grow")
        await eventually(lambda: client.breaker == "half_open")
        trial = asyncio.create_task(client.call("ignore"))
        await wait_all_tasks_blocked()
        await client.call("grow")
        assert client.breaker == "closed"
        trial.cancel()
    changes = [(record.levelname, vars(record)["fields"]) for record in caplog.records if "breaker" in record.message]
    assert [(level, fields["before"], fields["state"]) for level, fields in changes] == [
        ("WARNING", "closed", "open"),
        ("INFO", "open", "half_open"),
        ("INFO", "half_open", "closed"),
    ]
    assert {fields["dependency"] for _, fields in changes} == {"downstream recording"}


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_the_official_server_talks_to_it(kind: Literal["stdio", "http"]) -> None:
    told: list[float] = []
    name = {"action": "accept", "content": {"name": "Ada"}}
    async with official(kind) as settings, refdesk.connect(settings, on_elicitation=lambda _: name) as client:
        assert client.server["name"] == "official"
        assert (await client.call("greet")).text == "Hello Ada"
        await client.call("steps", {"count": 2}, progress=lambda done, *_: told.append(done))
    assert told == [1, 2]
