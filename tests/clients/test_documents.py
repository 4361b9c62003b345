"""All tools of conversion and reading through the official client, over HTTP and stdio, on files of each format."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pypdfium2
import pytest
from mcp import Client, StdioServerParameters
from mcp_types import TextContent

from tests import forked
from tests.documents.web import answer, running_web
from tests.processes import BY_WORDS, environment, started_server
from tests.real_files import FILES, PDF, REAL_FILES, RealFile
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ALLOWED = {"REFDESK__CONVERT__ALLOW_NETWORKS": "127.0.0.0/8"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(FILES, tmp_path_factory.mktemp("project") / "files"))


@pytest.fixture(scope="module", params=["http newest", "http session", "stdio newest", "stdio session"])
async def client(
    request: pytest.FixtureRequest, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Client]:
    transport, revision = request.param.split()
    mode = "auto" if revision == "newest" else "legacy"
    folder = tmp_path_factory.mktemp("home")
    variables = {"REFDESK__CONVERT__ROOTS": str(project), "REFDESK__READER__RATE_LIMIT_CALLS": "1000", **ALLOWED}
    if transport == "http":
        async with (
            started_server(folder, **variables) as server,
            Client(f"{server.url}/mcp", mode=mode, read_timeout_seconds=PATIENCE_SECONDS) as client,
        ):
            yield client
        return
    program, *arguments = forked.refdesk()
    target = StdioServerParameters(
        command=program,
        args=[*arguments, "serve", "--stdio", "--data", str(folder / "data")],
        env=environment(folder, **BY_WORDS, **variables),
        cwd=folder,
    )
    async with Client(target, mode=mode, read_timeout_seconds=PATIENCE_SECONDS) as client:
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool; its structured result, or its text where it has none."""
    result = await client.call_tool(tool, arguments)
    texts = "\n\n".join(item.text for item in result.content if isinstance(item, TextContent))
    assert not result.is_error, texts
    return dict(result.structured_content or {"text": texts})


@pytest.mark.parametrize("real", REAL_FILES, ids=lambda real: real.path.name)
async def test_every_tool_works_on_a_file_of_each_format(client: Client, real: RealFile) -> None:
    summary = await call(client, real.tool, file_path=str(real.path.relative_to(FILES)))
    doc_id = summary["handle"]
    assert real.words in (await call(client, "export_markdown", handle=doc_id, max_tokens=100_000))["text"]
    assert "<body>" in (await call(client, "export_html", handle=doc_id))["text"]
    assert '"DoclingDocument"' in (await call(client, "export_json", handle=doc_id))["text"]
    metadata = await call(client, "read_doc_metadata", doc_id=doc_id)
    section = metadata["sections"][-1]["id"]
    assert (await call(client, "read_doc_section", doc_id=doc_id, section_id=section))["text"]
    assert "text" in await call(client, "read_doc_pages", doc_id=doc_id, page_start=1, page_end=1)
    window = await call(client, "read_chunk_window", doc_id=doc_id, anchor_chunk_id="c1", radius=1)
    word = window["chunks"][0]["text"].split()[0]
    assert "results" in await call(client, "doc_local_search", doc_id=doc_id, query=word)


async def test_a_page_is_converted_by_its_url(client: Client) -> None:
    async with running_web() as web:
        web.pages["/guide"] = answer(
            b"<html><main><h1>Fetched</h1><p>Words.</p></main></html>", content_type="text/html"
        )
        summary = await call(client, "convert_url", url=web.url("/guide"))
    assert summary["title"] == "Fetched"


async def test_the_tools_are_listed(client: Client) -> None:
    names = {tool["name"] for tool in (await call(client, "list_available_tools"))["tools"]}
    assert names == {tool.name for tool in (await client.list_tools()).tools}
    assert len(names) == 22


async def test_progress_of_a_long_conversion_is_reported(client: Client, project: Path) -> None:
    heard: list[tuple[float, float | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total))

    pages = long_pdf(project / "long.pdf")
    result = await client.call_tool("convert_pdf", {"file_path": "long.pdf"}, progress_callback=hear)
    assert not result.is_error
    assert heard
    assert all(total == pages and done <= pages for done, total in heard)
    assert heard == sorted(heard)


def long_pdf(path: Path) -> int:
    """The manual many times over, differently each time, so that it is not known yet; answers its pages."""
    with pypdfium2.PdfDocument(PDF / "manual.pdf") as manual, pypdfium2.PdfDocument.new() as long:
        for _ in range(40):
            long.import_pages(manual)
        long.save(path)
        pages = len(long)
    with path.open("ab") as file:
        file.write(b"\n%" + uuid4().hex.encode())
    return pages
