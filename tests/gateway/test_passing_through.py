"""Whatever a server and a client can say to each other, they can say through the desk: clients of the official SDK in
both its modes, servers of both eras, over every transport. F44 of the table in this package."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import anyio
import mcp
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

from refdesk.config.models import Config
from tests.downstream.servers import official, running_talkative
from tests.gateway.desks import Gateway, serving_in, talkative
from tests.servers import running_server
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio

SERVERS = (
    "stdio_legacy", "stdio_modern", "http_legacy", "http_modern", "sse_legacy", "websocket_legacy", "websocket_modern",
)  # fmt: skip
MODES = {"legacy": "2025-11-25", "auto": "2026-07-28"}


@dataclass
class Person:
    """Who is asked by a client, and what they were told."""

    told: list[Any] = field(default_factory=list)
    logged: list[tuple[str, Any]] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def elicit(self, context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def sample(self, context: Any, params: Any) -> types.CreateMessageResult:
        hello = types.TextContent(type="text", text="hello")
        return types.CreateMessageResult(role="assistant", content=hello, model="m")

    async def roots(self, context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri="file:///home/ada")])

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.told.append((progress, total, message))
        self.news.set()

    async def log(self, params: Any) -> None:
        self.logged.append((params.level, params.data))

    async def notice(self, message: Any) -> None:
        self.methods.append(getattr(message, "method", ""))

    def client(self, url: str, mode: Any) -> mcp.Client:
        return mcp.Client(
            url,
            mode=mode,
            log_level="debug" if mode == "auto" else None,
            elicitation_callback=self.elicit,
            sampling_callback=self.sample,
            list_roots_callback=self.roots,
            logging_callback=self.log,
            message_handler=self.notice,
        )


@pytest.fixture(scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """All servers behind one desk."""
    async with AsyncExitStack() as stack:
        servers: dict[str, Any] = {"stdio_legacy": talkative("legacy"), "stdio_modern": talkative("modern")}
        eras: tuple[Any, ...] = ("legacy", "modern")
        for era in eras:
            running = await stack.enter_async_context(running_talkative(era=era))
            for kind in ("http", "sse", "websocket") if era == "legacy" else ("http", "websocket"):
                servers[f"{kind}_{era}"] = {"type": kind, "url": running.url(kind)}
        serve = serving_in(tmp_path_factory.mktemp("passing"))
        desk = Gateway((await stack.enter_async_context(serve(mcpServers=servers))).http)
        await desk.offers(*SERVERS)
        yield desk


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def person() -> Person:
    return Person()


@pytest.fixture(scope="module")
async def client(desk: Gateway, person: Person, mode: str) -> AsyncIterator[mcp.Client]:
    async with person.client(desk.url, mode) as client:
        assert client.protocol_version == MODES[mode]
        if mode == "legacy":
            with pytest.warns(MCPDeprecationWarning):
                await client.set_logging_level("debug")
        yield client


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def result_of(client: mcp.Client, tool: str, **arguments: Any) -> Any:
    async with asyncio.timeout(PATIENCE_SECONDS):
        result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return result.structured_content


async def text_of(client: mcp.Client, tool: str, **arguments: Any) -> str:
    async with asyncio.timeout(PATIENCE_SECONDS):
        result = await client.call_tool(tool, arguments)
    return str(getattr(result.content[0], "text", None))


async def test_f44_the_eras_of_the_servers_are_what_they_are_meant_to_be(desk: Gateway, server: str) -> None:
    version = (await desk.describe(server))["version"]
    assert (version == "2026-07-28") == server.endswith("modern")


async def test_f44_calls_answers_and_errors(client: mcp.Client, server: str) -> None:
    assert await result_of(client, f"{server}__structured", a=7) == {"a": 7}
    with pytest.raises(MCPError) as caught:
        await client.call_tool(f"{server}__rpc_error", {})
    assert caught.value.error.code == -32050
    assert caught.value.error.data["deep"] == {"list": [1, 2]}


async def test_elicitation(client: mcp.Client, server: str) -> None:
    answer = await result_of(client, f"{server}__elicit")
    assert answer == {"answer": {"action": "accept", "content": {"name": "Ada"}}}


async def test_sampling(client: mcp.Client, server: str) -> None:
    answer = await result_of(client, f"{server}__sample")
    assert answer["answer"]["content"] == {"type": "text", "text": "hello"}
    assert answer["answer"]["model"] == "m"


async def test_roots(client: mcp.Client, server: str) -> None:
    assert await result_of(client, f"{server}__roots") == {"answer": {"roots": [{"uri": "file:///home/ada"}]}}


async def test_progress(client: mcp.Client, person: Person, server: str) -> None:
    person.told.clear()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await client.call_tool(f"{server}__progress", {"steps": 3}, progress_callback=person.progress)
    assert person.told == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


async def test_log_messages(client: mcp.Client, person: Person, server: str) -> None:
    person.logged.clear()
    await client.call_tool(f"{server}__log", {"text": f"from {server}", "level": "warning"})
    await eventually(lambda: ("warning", f"from {server}") in person.logged)


async def test_cancellation(client: mcp.Client, person: Person, server: str) -> None:
    await result_of(client, f"{server}__roots")  # from now on, calls at the same time have sessions of their own
    before = len((await result_of(client, f"{server}__was_cancelled"))["cancelled"])
    person.news.clear()
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                await client.call_tool(f"{server}__cancel_me", {}, progress_callback=person.progress)

            tasks.start_soon(call)
            await person.news.wait()
            tasks.cancel_scope.cancel()
    after = await result_of(client, f"{server}__was_cancelled", wait_ms=20_000, at_least=before + 1)
    assert len(after["cancelled"]) == before + 1


async def test_resources_prompts_and_templates(client: mcp.Client, server: str) -> None:
    read = await client.read_resource("talk://document/3")
    assert getattr(read.contents[0], "text", "") == "The text of talk://document/3"
    prompts = {prompt.name for prompt in (await client.list_prompts()).prompts}
    assert any(name.startswith(f"{server}__") for name in prompts)


@pytest.mark.slow
async def test_f44_servers_of_the_official_sdk(settings: Callable[..., Config]) -> None:
    async with official("stdio") as stdio, official("http") as http:
        assert http.url is not None
        servers = {
            "stdio": {"command": stdio.command, "args": list(stdio.args), "cwd": str(stdio.cwd)},
            "http": {"url": http.url.get_secret_value()},
        }
        async with running_server(settings(mcpServers=servers)) as running:
            desk = Gateway(running.http)
            await desk.offers(*servers)
            for mode in MODES:
                person = Person()
                async with person.client(desk.url, mode) as client:
                    for name in servers:
                        assert await text_of(client, f"{name}__greet") == "Hello Ada"
                        await client.call_tool(f"{name}__steps", {"count": 2}, progress_callback=person.progress)
                assert [done for done, *_ in person.told] == [1, 2, 1, 2]
