"""The official Python SDK's client against a server process: over HTTP and stdio, in each of its modes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp_types import PromptReference, ResourceTemplateReference, TextContent, TextResourceContents

from tests import forked
from tests.processes import BY_WORDS, Server, environment
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

REVISIONS = {"auto": "2026-07-28", "legacy": "2025-11-25", "2026-07-28": "2026-07-28"}


@pytest.fixture(scope="module", params=REVISIONS)
def mode(request: pytest.FixtureRequest) -> str:
    """How the client finds out which revision to speak."""
    return str(request.param)


@pytest.fixture(scope="module", params=["http", "stdio"])
async def client(
    request: pytest.FixtureRequest, mode: str, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Client]:
    """A client that is connected."""
    target = f"{server.url}/mcp" if request.param == "http" else over_stdio(tmp_path_factory.mktemp("stdio"))
    async with Client(target, mode=mode, read_timeout_seconds=PATIENCE_SECONDS) as client:
        yield client


def over_stdio(folder: Path) -> StdioServerParameters:
    program, *arguments = forked.refdesk()
    return StdioServerParameters(
        command=program,
        args=[*arguments, "serve", "--stdio", "--data", str(folder / "data")],
        env=environment(folder, **BY_WORDS),
        cwd=folder,
    )


async def test_it_connects_and_agrees_on_the_newest_revision_of_its_mode(client: Client, mode: str) -> None:
    assert client.protocol_version == REVISIONS[mode]


@pytest.mark.parametrize("asking", ["auto", "legacy"])
async def test_a_client_that_asks_first_learns_who_the_server_is(asking: str, server: Server) -> None:
    async with Client(f"{server.url}/mcp", mode=asking, read_timeout_seconds=PATIENCE_SECONDS) as client:
        assert client.server_info is not None
        assert client.server_info.name == "refdesk"
        assert client.instructions


async def test_it_lists_the_tools(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert {"search_documentation", "get_document"} <= tools.keys()
    assert tools["search_documentation"].input_schema["required"] == ["query"]


async def test_a_search_finds_a_passage_of_the_manual(client: Client) -> None:
    result = await client.call_tool("search_documentation", {"query": "How do I start the server?", "max_results": 3})
    assert not result.is_error
    assert 1 <= len(result.content) <= 3
    texts = [item.text for item in result.content if isinstance(item, TextContent)]
    assert any("scripts/serve" in text and "Source: refdesk/" in text for text in texts)


async def test_it_reads_a_resource_that_was_listed_and_one_that_follows_the_template(client: Client) -> None:
    listed, *_ = (await client.list_resources()).resources
    (contents,) = (await client.read_resource(listed.uri)).contents
    assert isinstance(contents, TextResourceContents)
    assert "techdoc://refdesk/index.md" in contents.text
    (page,) = (await client.read_resource("techdoc://refdesk/index.md")).contents
    assert isinstance(page, TextResourceContents)
    assert page.text.startswith("# Refdesk")


async def test_it_gets_a_prompt_with_its_argument_filled_in(client: Client) -> None:
    assert "answer_from_docs" in [prompt.name for prompt in (await client.list_prompts()).prompts]
    got = await client.get_prompt("answer_from_docs", {"question": "How do I stop it?"})
    (message,) = got.messages
    assert isinstance(message.content, TextContent)
    assert "How do I stop it?" in message.content.text


async def test_it_completes_arguments_of_prompts_and_of_templates(client: Client) -> None:
    prompt = PromptReference(name="answer_from_docs")
    kinds = await client.complete(prompt, {"name": "doc_type", "value": "ref"})
    assert kinds.completion.values == ["refdesk"]
    template, *_ = (await client.list_resource_templates()).resource_templates
    paths = await client.complete(
        ResourceTemplateReference(uri=template.uri_template),
        {"name": "path", "value": "ind"},
        context_arguments={"doc_type": "refdesk"},
    )
    assert paths.completion.values == ["index.md"]
