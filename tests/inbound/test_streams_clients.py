"""The official client: whatever a tool tells or asks reaches it, in either era."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.client.context import ClientRequestContext

from refdesk.calls import Call
from refdesk.tools.prompts import Prompt
from tests.inbound.streaming import ELICIT, SAMPLE, ask_name, offer
from tests.servers import RunningServer
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

MODES = ["legacy", "2026-07-28"]


@pytest.fixture
def server(server: RunningServer) -> RunningServer:
    offer(server, "ask", ask_name)
    offer(server, "steps", report)
    offer(server, "sample", sample)
    offer(server, "roots", roots)
    return server


async def report(call: Call) -> str:
    for done in (1, 2, 3):
        await call.client.progress(done, 3, f"step {done}")
    await call.client.log("warning", "almost done", "report")
    return "reported"


async def sample(call: Call) -> str:
    answer = await call.client.ask("sample", "sampling/createMessage", SAMPLE)
    return str(answer["content"]["text"])


async def roots(call: Call) -> str:
    answer = await call.client.ask("roots", "roots/list", {})
    return str(answer["roots"][0]["uri"])


def answer_with(name: str) -> Any:
    async def on_elicitation(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": name})

    return on_elicitation


async def on_sampling(
    context: ClientRequestContext, params: types.CreateMessageRequestParams
) -> types.CreateMessageResult:
    return types.CreateMessageResult(role="assistant", content=types.TextContent(text="Hi yourself"), model="m")


async def on_roots(context: ClientRequestContext) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri="file:///work")])


def text_of(result: Any) -> str:
    assert isinstance(result, types.CallToolResult)
    assert isinstance(result.content[0], types.TextContent)
    return result.content[0].text


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("tool", "answer"), [("ask", "Hello Ann"), ("sample", "Hi yourself"), ("roots", "file:///work")]
)
async def test_the_client_answers_what_it_is_asked(server: RunningServer, mode: Any, tool: str, answer: str) -> None:
    async with Client(
        f"{server.url}/mcp",
        mode=mode,
        elicitation_callback=answer_with("Ann"),
        sampling_callback=on_sampling,
        list_roots_callback=on_roots,
    ) as client:
        assert text_of(await client.call_tool(tool, {})) == answer
        assert text_of(await client.call_tool(tool, {})) == answer


@pytest.mark.parametrize("mode", MODES)
async def test_the_client_hears_of_progress_and_logs(server: RunningServer, mode: Any) -> None:
    steps: list[tuple[float, float | None, str | None]] = []
    logs: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total, message))

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        logs.append((params.level, params.data, params.logger))

    async with Client(f"{server.url}/mcp", mode=mode, logging_callback=on_log, log_level="info") as client:
        assert text_of(await client.call_tool("steps", {}, progress_callback=on_progress)) == "reported"
    assert steps == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
    assert logs == [("warning", "almost done", "report")]


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_gives_up_on_a_stream_stops_the_work(server: RunningServer, mode: Any) -> None:
    told, stopped = asyncio.Event(), asyncio.Event()

    async def work(call: Call) -> str:
        await call.client.progress(1)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.set()

    offer(server, "work", work)
    async with Client(f"{server.url}/mcp", mode=mode) as client:
        call = asyncio.create_task(client.call_tool("work", {}, progress_callback=on_progress))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await told.wait()
            call.cancel()
            await stopped.wait()
        assert text_of(await client.call_tool("whoami", {})) == "default/anonymous"


@pytest.mark.parametrize("mode", MODES)
async def test_clients_that_count_alike_are_told_apart(server: RunningServer, mode: Any) -> None:
    """All number their requests from one, and are in the middle of a call at the same time."""
    names = [f"client {number}" for number in range(8)]
    all_there = asyncio.Barrier(len(names)) if mode == "legacy" else None

    async def meet_and_ask(call: Call) -> str:
        await call.client.progress(1)
        if all_there is not None:
            await all_there.wait()
        return await ask_name(call)

    async def one(name: str) -> str:
        async with Client(f"{server.url}/mcp", mode=mode, elicitation_callback=answer_with(name)) as client:
            return text_of(await client.call_tool("meet", {}, progress_callback=ignore))

    async def ignore(progress: float, total: float | None, message: str | None) -> None:
        return

    offer(server, "meet", meet_and_ask)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await asyncio.gather(*map(one, names)) == [f"Hello {name}" for name in names]


async def test_questions_at_the_same_time_get_each_its_own_answer(server: RunningServer) -> None:
    async def ask_twice(call: Call) -> str:
        first, second = await asyncio.gather(
            *(call.client.ask(who, "elicitation/create", {**ELICIT, "message": who}) for who in ("Ann", "Bob"))
        )
        return f"{first['content']['name']} {second['content']['name']}"

    async def echo(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": params.message})

    offer(server, "ask_twice", ask_twice)
    async with Client(f"{server.url}/mcp", mode="legacy", elicitation_callback=echo) as client:
        assert text_of(await client.call_tool("ask_twice", {})) == "Ann Bob"


async def test_what_is_no_tool_can_talk_as_well(server: RunningServer) -> None:
    async def write(arguments: Mapping[str, str], call: Call) -> Mapping[str, Any]:
        await call.client.log("info", "writing")
        greeting = {"type": "text", "text": await ask_name(call)}
        return {"messages": [{"role": "user", "content": greeting}]}

    logs: list[Any] = []

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        logs.append(params.data)

    server.desk.registry.add_prompt(Prompt("greet", "Greet", "Greets.", "docs", (), write))
    async with Client(
        f"{server.url}/mcp", mode="legacy", elicitation_callback=answer_with("Ann"), logging_callback=on_log
    ) as client:
        prompt = await client.get_prompt("greet", {})
    assert isinstance(prompt, types.GetPromptResult)
    assert isinstance(prompt.messages[0].content, types.TextContent)
    assert (prompt.messages[0].content.text, logs) == ("Hello Ann", ["writing"])
