"""The client against servers that others use: this desk itself, docling-mcp, and the official one with everything."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

import refdesk
from refdesk.downstream.client.error_mapping import map_error
from refdesk.errors import CannotConvert, CannotOpen, ServerRefused, UnknownTool
from tests import forked
from tests.clients.npm import CACHE, Packages, Unavailable, suitable_node
from tests.conftest import Serve
from tests.processes import BY_WORDS, children
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parents[1]


# This desk.


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_desk_answers_over_http(version: str, serve: Serve) -> None:
    told: list[float] = []
    answer = {"action": "accept", "content": {"name": "Ada"}}
    async with (
        serve(embedding__source="none") as server,
        refdesk.connect(f"{server.url}/mcp", protocol_version=version, on_elicitation=lambda _: answer) as client,
    ):
        assert (client.server["name"], client.protocol_version) == ("refdesk", version)
        echoed = await client.call("echo", {"text": "hello", "loud": True})
        assert (echoed.text, echoed.structured) == ("HELLO", {"echoed": "HELLO", "length": 5})
        assert (await client.call("ask_name")).text == "Hello Ada"
        await client.call("report", progress=lambda done, *_: told.append(done))
        assert told == [1, 2, 3]
        assert (await client.call("missing")).is_error
        assert await client.resources()
        assert len(await client.prompts()) == 3


async def test_the_errors_of_a_desk_are_mapped_for_what_they_are(serve: Serve) -> None:
    async with serve(embedding__source="none") as server, refdesk.connect(f"{server.url}/mcp") as client:
        for tool, arguments, code in (
            ("down", {}, "E201"),
            ("broken", {}, "E201"),
            ("echo", {"text": 5}, "E203"),
            ("no_such_tool", {}, "E204"),
        ):
            with pytest.raises(ServerRefused) as caught:
                await client.call(tool, arguments)
            app = map_error(caught.value)
            assert (app.code, app.original_code) == (code, caught.value.code), tool


@pytest.mark.slow
async def test_a_desk_converts_what_it_is_sent_and_exports_all_of_it(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "long.md"
    file.write_text("# Title\n\n" + "\n\n".join(f"Paragraph number {number}." for number in range(30_000)), "utf-8")
    told: list[float] = []
    async with serve(embedding__source="none") as server, refdesk.connect(f"{server.url}/mcp") as client:
        document = await client.convert(file, progress=lambda done, *_: told.append(done))
        assert document.result.structured["title"] == "Title"
        markdown = await client.export(document)
        assert markdown.startswith("# Title")
        assert re.findall(r"number (\d+)\.", markdown) == [str(number) for number in range(30_000)]
        short = json.loads(await client.export(await client.convert(ROOT / "README.md"), "json"))
        assert short["schema_name"] == "DoclingDocument"
        assert "<h1" in await client.export(short, "html")
        with pytest.raises(ServerRefused) as caught:
            await client.export("doc-unknown")
        unknown = map_error(caught.value)
        assert (unknown.code, unknown.retryable, unknown.suggested_action) == ("E303", False, "Convert it again")
        assert unknown.original_code is None, "a failed tool has no code"
        broken = tmp_path / "broken.pdf"
        broken.write_bytes(b"%PDF-1.7 that is none")
        with pytest.raises(ServerRefused) as failed:
            await client.convert(broken)
        app = map_error(failed.value)
        assert (app.code, app.retryable) == ("E302", False), "a broken file stays broken"


@pytest.mark.slow
async def test_a_desk_that_is_started_by_a_command_opens_files_beneath_the_roots(tmp_path: Path) -> None:
    home, documents = tmp_path / "home", tmp_path / "documents"
    home.mkdir()
    documents.mkdir()
    (documents / "note.md").write_text("# A note\n\nOf two lines.\n", "utf-8")
    command = [*forked.refdesk(), "serve", "--stdio", "--data", str(tmp_path / "data")]
    before = children()  # with the fork server among them
    async with refdesk.connect(command, cwd=home, env={"HOME": str(home), **BY_WORDS}, on_roots=[documents]) as client:
        document = await client.convert(documents / "note.md", send="path")
        assert (await client.export(document, "markdown")).strip() == "# A note\n\nOf two lines."

        async def is_found() -> bool:
            found = await client.call("search_documentation", {"query": "How do I start the server?"})
            return "scripts/serve" in found.text

        await eventually(is_found)
    await eventually(lambda: children() <= before)


# docling-mcp.


@pytest.mark.slow
async def test_docling_converts_and_exports_by_its_own_tools(tmp_path: Path) -> None:
    file = tmp_path / "note.md"
    file.write_text("# A note\n", "utf-8")
    async with refdesk.connect([sys.executable, "-m", "tests.downstream.servers.docling"], cwd=ROOT) as client:
        document = await client.convert(file)
        assert document.result.structured == {"from_cache": False, "document_key": document.handle}
        assert await client.export(document) == "# A note\n"
        page = await client.convert("https://example.com/page")
        assert await client.export(page.handle, "markdown") == "https://example.com/page"
        with pytest.raises(UnknownTool, match="export_html"):
            await client.export(document, "html")
        with pytest.raises(ServerRefused):
            await client.export("nothing")
        file.with_name("bad.txt").write_bytes(b"\xff\xfe\xff")
        with pytest.raises(ServerRefused):
            await client.convert(file.with_name("bad.txt"))
        with pytest.raises(CannotOpen):
            await client.convert(tmp_path)
        with pytest.raises(CannotConvert, match="known are"):
            await client.convert(RECORDING)


RECORDING = HERE / "servers" / "recording.py"


# The official server with everything.


@pytest.fixture(scope="module")
async def everything() -> list[str]:
    """The command that starts it, without the way to it."""
    packages = Packages(HERE / "node", CACHE / "servers")
    try:
        await packages.install()
        node = await suitable_node(Packages(HERE.parent / "clients" / "node", CACHE / "clients"))
    except Unavailable as why:
        pytest.skip(str(why))
    script = packages.modules / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
    return [str(node), str(script)]


@asynccontextmanager
async def serve_http(command: list[str], way: str) -> AsyncIterator[str | list[str]]:
    """What a client is told to connect to."""
    if way == "stdio":
        yield [*command, "stdio"]
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *command, way, env={"PATH": os.environ["PATH"], "PORT": str(port)}, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            while str(port).encode() not in (line := await process.stderr.readline()):
                assert line, "the server ended before its port was open"
        yield f"http://127.0.0.1:{port}/{'sse' if way == 'sse' else 'mcp'}"
    finally:
        process.kill()
        await process.communicate()


@pytest.mark.slow
@pytest.mark.node
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["stdio", "sse", "streamableHttp"])
async def test_the_server_with_everything_finds_everything_in_the_client(
    way: Literal["stdio", "sse", "streamableHttp"], everything: list[str], tmp_path: Path
) -> None:
    steps: list[Any] = []
    handlers: dict[str, Any] = {
        "on_sampling": lambda params: f"sampled: {params['messages'][0]['content']['text']}",
        "on_elicitation": lambda _: {"action": "accept", "content": {"name": "Ada"}},
        "on_roots": [tmp_path],
        "on_progress": lambda *step: steps.append(step),
    }
    async with serve_http(everything, way) as target, refdesk.connect(target, **handlers) as client:
        assert (await client.call("echo", {"message": "hello"})).text == "Echo: hello"
        assert (await client.call("get-sum", {"a": 2, "b": 3})).text == "The sum of 2 and 3 is 5."
        assert "sampled: " in (await client.call("trigger-sampling-request", {"prompt": "hi"})).text
        assert "Name: Ada" in (await client.call("trigger-elicitation-request")).text
        assert tmp_path.as_uri() in (await client.call("get-roots-list")).text
        await client.call("trigger-long-running-operation", {"duration": 0.1, "steps": 2})
        assert [step[:2] for step in steps] == [(1, 2), (2, 2)]
        weather = await client.call("get-structured-content", {"location": "Chicago"})
        assert weather.structured.keys() == {"temperature", "conditions", "humidity"}
        assert (await client.call("get-tiny-image")).content[1]["type"] == "image"
        assert len(await client.prompts()) == 4
        uri = (await client.resources())[0]["uri"]
        assert (await client.read(uri))[0]["uri"] == uri
        ref = {"type": "ref/prompt", "name": "completable-prompt"}
        assert await client.complete(ref, "department", "E") == ["Engineering"]
        assert client.has_capability("tools.listChanged")
