"""Every example does what it says, against a real desk."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.examples.running import EXAMPLES, ROOT, run_example, run_program
from tests.processes import BY_WORDS, Server
from tests.programs import needs

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_the_plain_client_lists_tools_searches_and_reads_on(server: Server, home: Path) -> None:
    out = await run_example("plain_client.py", home=home, REFDESK_URL=server.url)
    assert re.match(r"\d+ tools: .*search_documentation.*r2r_search", out)
    assert "### Require API keys › Require one API key" in out
    assert re.search(r"refdesk/how-to/require-api-keys\.md has [2-9] pages", out)


async def test_the_short_client_gets_the_same_from_a_server_and_from_a_desk_of_its_own(
    server: Server, home: Path
) -> None:
    data = str(home / "own")
    out = await run_example("short_client.py", home=home, REFDESK_URL=server.url, REFDESK_DATA=data, **BY_WORDS)
    first, second = re.findall(r"### .*?\(1 result, about \d+ tokens\)", out, re.DOTALL)
    # Their manuals may be indexed on different days.
    assert re.sub(r"indexed [\d-]+", "indexed", first) == re.sub(r"indexed [\d-]+", "indexed", second)


@needs("curl")
async def test_curl_lists_searches_and_reads(server: Server, home: Path) -> None:
    out = await run_program(str(EXAMPLES / "curl.sh"), home=home, REFDESK_URL=server.url)
    tools, found, page = map(json.loads, out.splitlines())
    assert "search_documentation" in {tool["name"] for tool in tools["tools"]}
    assert "Source: refdesk/" in found["content"][0]["text"]
    assert page["content"][0]["text"].startswith("# Require API keys")


async def test_the_demo_shows_the_client_and_the_loop(server: Server, home: Path, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/demo", tmp_path / "scripts/demo")
    # The environment is the one that the tests run in: nothing is to be set up.
    (tmp_path / "scripts/setup").symlink_to("/bin/true")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    out = await run_program(str(tmp_path / "scripts/demo"), home=home, REFDESK_URL=server.url)
    assert out.index("pages of at most 500 tokens") < out.index("· calls search_documentation")


async def test_the_workflow_finds_what_it_brought_in_and_did_not_find_before(server: Server, home: Path) -> None:
    out = await run_example("workflow.py", home=home, REFDESK_URL=server.url)
    before, after = re.findall(r"^(?:before|after): (.*)$", out, re.MULTILINE)
    assert "No answer found in your documents" in before
    assert "looked after by Ada. [1]" in after
    assert "success: 100%" in out
    assert "[1] house-notes/espresso-machine" in out


async def test_two_tenants_with_the_same_names_see_only_their_own(server: Server, home: Path) -> None:
    out = await run_example("two_tenants.py", home=home, **BY_WORDS)
    assert "red finds The code of the door of team red is 3-RED. and has ['house/door', 'house/plan']" in out
    assert "blue finds The code of the door of team blue is 4-BLUE. and has ['house/door']" in out
    assert "blue reads house/plan: There is no document 'house/plan'." in out


async def test_the_gateway_searches_both_servers_and_outlives_one_of_them(server: Server, home: Path) -> None:
    out = await run_example("gateway/gateway.py", home=home, **BY_WORDS)
    assert "tools: notes__search, tickets__search, tickets__count" in out
    assert "- Backups | notes" in out
    assert "- T-17 | https://tickets.example.com/T-17" in out
    assert "(3 of 3 sources answered)" in out
    assert "tickets is down: The server 'tickets' cannot be connected to" in out
    assert "(2 of 3 sources answered (tickets: " in out
    assert out.endswith("tickets is back: 2\n")


async def test_the_scripted_model_answers_in_words_of_the_passages_that_it_cites(server: Server, home: Path) -> None:
    out = await run_example("llm_loop.py", home=home, REFDESK_URL=server.url)
    assert '· calls search_documentation {"query": "How do I require an API key?"}' in out
    manual = (ROOT / "docs/how-to/require-api-keys.md").read_text(encoding="utf-8")
    answer = out.split("\n\n")[1]
    cited = re.findall(r"(.+?) \[(\d+)\]", answer)
    assert cited
    words = " ".join(manual.split())
    assert all(" ".join(sentence.split()) in words for sentence, _ in cited)
    assert "[1] Require API keys › Require one API key" in out


async def test_an_endpoint_takes_the_place_of_the_script(server: Server, home: Path) -> None:
    call = {"id": "c1", "function": {"name": "search_documentation", "arguments": '{"query": "change the port"}'}}
    replies: list[dict[str, Any]] = [{"content": None, "tool_calls": [call]}, {"content": "Set server.port [1]."}]
    async with endpoint(replies) as (url, requests):
        more = {"OPENAI_BASE_URL": url, "OPENAI_MODEL": "any", "REFDESK_URL": server.url}
        out = await run_example("llm_loop.py", "Which port?", home=home, **more)
    assert "Set server.port [1]." in out
    assert "search_documentation" in {tool["function"]["name"] for tool in requests[0]["tools"]}
    assert requests[1]["messages"][-1]["content"].startswith("[1] ### ")


async def test_an_answer_that_cites_what_is_not_there_is_refused(server: Server, home: Path) -> None:
    async with endpoint([{"content": "Trust me [7]."}]) as (url, _):
        more = {"OPENAI_BASE_URL": url, "OPENAI_MODEL": "any", "REFDESK_URL": server.url}
        with pytest.raises(AssertionError, match="this is not grounded"):
            await run_example("llm_loop.py", home=home, **more)


@asynccontextmanager
async def endpoint(replies: list[dict[str, Any]]) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """An OpenAI-compatible endpoint that gives one message after the other, and what it was sent."""
    requests: list[dict[str, Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = re.search(r"content-length: (\d+)", head)
        assert length is not None
        requests.append(json.loads(await reader.readexactly(int(length[1]))))
        body = json.dumps({"choices": [{"message": replies[len(requests) - 1]}]}).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", requests
