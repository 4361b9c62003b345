"""The wheel in an empty environment: everything works without an extra, and what needs one says how to get it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import httpx2
import pypdfium2 as pdfium
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from refdesk.version import __version__
from tests.packaging.conftest import Installation
from tests.packaging.programs import ROOT, run_uv
from tests.processes import environment, run
from tests.real_files import OFFICE, PDF
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

QUESTION = "How do I require an API key?"
ANSWER = "require-api-keys.md"


async def test_no_extra_is_there(installed: Installation) -> None:
    told = await run_uv("pip", "list", "--quiet", "--python", installed.bin / "python")
    packages = {line.split()[0] for line in told.out.splitlines() if line}
    assert "refdesk" in packages
    assert packages & {"redis", "rapidocr", "sentry-sdk", "opentelemetry-sdk", "psycopg", "pytest"} == set()


async def test_it_says_its_version(installed: Installation) -> None:
    assert (await installed("--version")).out.split() == ["refdesk", __version__]


async def test_it_runs_as_a_module(installed: Installation, tmp_path: Path) -> None:
    command = (installed.bin / "python", "-m", "refdesk", "--version")
    assert (await run(*command, cwd=tmp_path, env=environment(tmp_path))).out.split()[1] == __version__


async def test_it_answers_from_the_manual_at_the_first_search(installed: Installation) -> None:
    assert ANSWER in (await installed("search", QUESTION)).out


@pytest.mark.parametrize(("path", "words"), [(OFFICE / "guide.docx", "def f(x):"), (PDF / "manual.pdf", "Before dusk")])
async def test_it_converts_documents(installed: Installation, path: Path, words: str) -> None:
    converted = await installed("convert", path, "--to", "markdown")
    assert words in converted.out, converted.err


async def test_it_serves_searches_and_its_console_over_http(installed: Installation) -> None:
    async with (
        installed.serving() as server,
        httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE_SECONDS, verify=False) as http,
    ):
        found = await http.post("/api/tools/search_documentation", json={"query": QUESTION})
        page = await http.get("/console/")
    assert ANSWER in found.text
    if page.status_code != 404:
        assert page.headers["content-type"].startswith("text/html")
        assert "<html" in page.text


async def test_the_official_client_talks_to_it_on_standard_input(installed: Installation) -> None:
    env = environment(installed.home, REFDESK_DATA=str(installed.home / "stdio"))
    command = StdioServerParameters(command=str(installed.bin / "refdesk"), args=["serve", "--stdio"], env=env)
    async with Client(stdio_client(command)) as client:
        result = await client.call_tool("search_documentation", {"query": QUESTION})
    assert ANSWER in str(result.content)


async def test_it_installs_as_a_tool_with_a_command_of_its_own(
    wheel: Path, installed: Installation, tmp_path: Path
) -> None:
    """As `uv tool install` and `pipx install` do it, and `uvx` for one call."""
    places = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    await run_uv("tool", "install", "--quiet", "--python", sys.executable, wheel, **places)
    ended = await run(tmp_path / "bin" / "refdesk", "--version", cwd=tmp_path, env=environment(tmp_path))
    assert ended.out.split() == ["refdesk", __version__]


class Need(NamedTuple):
    """Something that an extra is needed for."""

    extra: str
    settings: dict[str, str]


NEEDS = {
    "a cache in Redis": Need("redis", {"REFDESK__CACHE__TYPE": "redis"}),
    "limits in Redis": Need("redis", {"REFDESK__RATE_LIMITS__TYPE": "redis"}),
    "traces": Need("otel", {"REFDESK__MONITORING__OPENTELEMETRY__ENABLED": "true"}),
    "reports of errors": Need(
        "sentry", {"REFDESK__MONITORING__SENTRY__ENABLED": "true", "SENTRY_DSN": "http://key@127.0.0.1:9/1"}
    ),
}


@pytest.mark.parametrize("need", NEEDS.values(), ids=NEEDS)
async def test_a_server_that_needs_an_extra_says_how_to_install_it(installed: Installation, need: Need) -> None:
    ended = await installed("serve", "--port", "0", **need.settings)
    assert ended.code == 2
    assert f"pip install 'refdesk[{need.extra}]'" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("command", [("check",), ("search", QUESTION)], ids=["check", "search"])
async def test_all_that_is_missing_is_told_at_once(installed: Installation, command: tuple[str, ...]) -> None:
    settings = {name: value for need in NEEDS.values() for name, value in need.settings.items()}
    ended = await installed(*command, **settings)
    assert ended.code == 2
    lines = [line for line in ended.err.splitlines() if "pip install" in line]
    assert [f"refdesk[{need.extra}]" in line for need, line in zip(NEEDS.values(), lines, strict=True)] == [True] * 4


async def test_a_scanned_page_says_how_to_install_recognition(installed: Installation, tmp_path: Path) -> None:
    scan = tmp_path / "scan.pdf"
    _scan(PDF / "manual.pdf", scan)
    ended = await installed("convert", scan, "--to", "markdown")
    assert "pip install 'refdesk[ocr]'" in ended.out + ended.err
    assert "Traceback" not in ended.err


async def test_every_extra_that_can_be_asked_for_is_offered(wheel: Path, installed: Installation) -> None:
    """An install line that names an extra which is not there would be a dead end."""
    code = "from importlib.metadata import metadata as of; print(*of('refdesk').get_all('Provides-Extra'))"
    ended = await run(installed.bin / "python", "-c", code, cwd=ROOT, env=environment(installed.home))
    assert {need.extra for need in NEEDS.values()} | {"ocr"} <= set(ended.out.split())


def _scan(source: Path, target: Path) -> None:
    """A page as a scanner would leave it: a picture, and not a letter."""
    with pdfium.PdfDocument(source) as sample, pdfium.PdfDocument.new() as made:
        page = sample[2]
        picture = pdfium.PdfImage.new(made)
        picture.set_bitmap(page.render(scale=200 / 72))
        picture.set_matrix(pdfium.PdfMatrix().scale(*page.get_size()))
        scan = made.new_page(*page.get_size())
        scan.insert_obj(picture)
        scan.gen_content()
        made.save(target)
