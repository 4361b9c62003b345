"""The convert toolset on real files: by path, by bytes, by URL; within its roots, its bounds and its tenant."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from docling_core.types.doc.document import DoclingDocument

from refdesk.app import Desk, open_desk
from refdesk.calls import LOCAL, Answer, Call, Client, LogLevel
from refdesk.config.models import Config
from refdesk.errors import InvalidArguments, RateLimited
from refdesk.tools.registry import Tool
from tests.documents.web import answer, running_web
from tests.real_files import OFFICE, REAL_FILES, RealFile
from tests.tools.asking import OTHER, ask, failure

pytestmark = pytest.mark.anyio


def encode(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


@pytest.mark.parametrize("real", REAL_FILES, ids=lambda real: real.path.name)
async def test_a_file_of_each_format_is_converted_and_exported(shared_desk: Desk, real: RealFile) -> None:
    summary = await ask(shared_desk, real.tool, file_path=str(real.path.relative_to(real.path.parents[1])))
    assert summary["title"]
    assert summary["sections"] >= 1
    markdown = await shared_desk.call("export_markdown", {"handle": summary["handle"], "max_tokens": 100_000})
    assert real.words in markdown.text
    exported = await shared_desk.call("export_json", {"handle": summary["handle"], "max_tokens": 1_000_000})
    assert DoclingDocument.model_validate_json(exported.text).name == real.path.stem
    html = await shared_desk.call("export_html", {"handle": summary["handle"], "max_tokens": 100_000})
    assert html.text.startswith("<!DOCTYPE html>")


async def test_a_summary_says_what_the_document_is_and_how_to_read_on(shared_desk: Desk) -> None:
    answer = await shared_desk.call("convert_docx", {"file_path": "office/guide.docx"})
    summary = answer.structured
    assert summary["title"] == "The Guide"
    assert summary["format"] == "docx"
    assert summary["tables"] == 1
    assert {"id": "install", "title": "Install", "level": 2, "page": 1} in summary["outline"]
    assert "first" in summary["preview"]
    assert summary["handle"] in answer.text
    assert "read_doc_section" in answer.text


async def test_slides_and_sheets_are_pages(shared_desk: Desk) -> None:
    slides = await ask(shared_desk, "convert_pptx", file_path="office/deck.pptx")
    assert (slides["pages"], slides["page_kind"]) == (5, "slide")
    sheets = await ask(shared_desk, "convert_xlsx", file_path="office/book.xlsx")
    assert sheets["page_kind"] == "sheet"
    assert sheets["sections"] >= sheets["pages"] >= 1


async def test_formulas_are_exported_as_they_are(shared_desk: Desk) -> None:
    text = "# Sums\n\n" + r"The set $\{x_{1}, y^*\}$ and *its* $$\sum_{i}^*a_*$$ cost $5 and \*a\* and $6." + "\n"
    content = base64.b64encode(text.encode()).decode()
    summary = await ask(shared_desk, "convert_docx", content_base64=content, file_name="sums.md")
    exported = await shared_desk.call("export_markdown", {"handle": summary["handle"]})
    assert exported.text.startswith(text.strip())


async def test_bytes_are_as_good_as_a_path_and_are_not_converted_again(converting: Desk) -> None:
    by_path = await ask(converting, "convert_docx", file_path="office/guide.docx")
    by_bytes = await ask(
        converting, "convert_docx", content_base64=encode(OFFICE / "guide.docx"), file_name="other.docx"
    )
    assert (by_path["cached"], by_bytes["cached"]) == (False, True)
    assert by_bytes["handle"] == by_path["handle"]


async def test_the_same_bytes_wanted_twice_at_once_are_converted_once(converting: Desk) -> None:
    path = "office/guide.odt"
    both = await asyncio.gather(*(ask(converting, "convert_docx", file_path=path) for _ in range(5)))
    assert sorted(summary["cached"] for summary in both) == [False, True, True, True, True]


async def test_an_upload_and_a_file_uri_are_resources(converting: Desk, project: Path) -> None:
    by_uri = await ask(converting, "convert_docx", resource=(project / "office" / "guide.rtf").as_uri())
    async with converting.conversions.create_upload() as file:
        file.write((OFFICE / "guide.rtf").read_bytes())
        file.flush()
        uri = await converting.conversions.keep_upload(LOCAL.tenant, file, "guide.rtf")
    by_upload = await ask(converting, "convert_docx", resource=uri)
    assert by_upload["handle"] == by_uri["handle"]
    assert "no upload" in await failure(converting, "convert_docx", OTHER, resource=uri)


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are always UTF-8")
async def test_a_file_may_have_any_name(converting: Desk, project: Path) -> None:
    (project / os.fsdecode("Gr\xfc\n\x1be.txt".encode("cp1252"))).write_text("hello")
    made = await ask(converting, "convert_docx", resource=f"{project.as_uri()}/Gr%FC%0A%1Be.txt")
    assert (made["title"], made["preview"]) == ("Gre.txt", "hello")


async def test_another_tenant_does_not_find_the_document(converting: Desk) -> None:
    handle = (await ask(converting, "convert_docx", file_path="office/guide.docx"))["handle"]
    for tool in ("export_markdown", "export_html", "export_json"):
        unknown = await failure(converting, tool, OTHER, handle="doc-" + "a" * 26)
        theirs = await failure(converting, tool, OTHER, handle=handle)
        assert theirs.replace(handle, "?") == unknown.replace("doc-" + "a" * 26, "?")
    mine_again = await ask(converting, "convert_docx", OTHER, file_path="office/guide.docx")
    assert mine_again["cached"] is False
    assert mine_again["handle"] != handle


async def test_the_wrong_tool_names_the_right_one(shared_desk: Desk) -> None:
    said = await failure(shared_desk, "convert_pdf", file_path="office/guide.docx")
    assert said == "guide.docx is a Word document, not a PDF; call convert_docx for it."
    await ask(shared_desk, "convert_docx", file_path="office/guide.docx")
    assert await failure(shared_desk, "convert_pdf", file_path="office/guide.docx") == said


async def test_the_content_tells_the_format_not_the_name(converting: Desk, project: Path) -> None:
    (project / "office" / "guide.docx").rename(project / "report.pdf")
    summary = await ask(converting, "convert_docx", file_path="report.pdf")
    assert summary["format"] == "docx"


@pytest.mark.parametrize("name", ["notes.txt", "notes.md", "notes.html", "notes.csv"])
async def test_a_file_in_an_old_encoding_is_converted_with_a_warning(
    converting: Desk, project: Path, name: str
) -> None:
    text = "Резервное копирование; каждую ночь\nВосстановление; командой restore\n"
    marked = f"<html><body><p>{text}</p></body></html>" if name.endswith("html") else text
    (project / name).write_bytes(marked.encode("cp1251"))
    tool = "convert_xlsx" if name.endswith("csv") else "convert_docx"
    converted = await ask(converting, tool, file_path=name)
    assert "Восстановление" in converted["preview"]
    assert "Windows-1251" in converted["warnings"][0]


@pytest.mark.parametrize(
    "path", ["../secret.txt", "/etc/passwd", "link.txt", "file:///etc/passwd", "/proc/self/environ"]
)
async def test_no_file_outside_the_roots_is_read(converting: Desk, project: Path, path: str) -> None:
    (project.parent / "secret.txt").write_text("secret words")
    (project / "link.txt").symlink_to(project.parent / "secret.txt")
    missing = await failure(converting, "convert_docx", file_path="nowhere.txt")
    said = await failure(converting, "convert_docx", file_path=path)
    outside = path.startswith(("/", "file:"))
    assert ("add its folder" in said and "convert.roots" in said) if outside else said.startswith("There is no file")
    assert missing.startswith("There is no file")


async def test_the_desks_own_files_are_not_read(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = project / "refdesk.yaml"
    config.write_text("data_dir: ./data\nlogging:\n  file: desk.log\nauth:\n  keys:\n    - {key: s3cret, user: u}\n")
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(project.parent))
    async with open_desk(config) as desk:
        handle = (await ask(desk, "convert_docx", file_path="office/guide.docx"))["handle"]
        await desk.call("export_markdown", {"handle": handle})
        made = find_export(project, handle)
        for path in ("refdesk.yaml", str(made), str(made.relative_to(project)), "desk.log"):
            assert "There is no file" in await failure(desk, "convert_docx", file_path=path)


def find_export(project: Path, handle: str) -> Path:
    (path,) = project.glob(f"data/converted/*/{handle}.markdown")
    return path


async def test_a_blocked_keyword_is_not_exported(settings: Callable[..., Config], project: Path) -> None:
    for action in ("refuse", "redact"):
        config = settings(
            convert__roots=[str(project)], reader__blocklist_keywords="install", reader__blocklist_action=action
        )
        async with open_desk(config) as desk:
            answer = await desk.call("convert_docx", {"file_path": "office/guide.docx"})
            assert "Install" not in answer.text
            handle = answer.structured["handle"]
            for form in ("markdown", "html", "json"):
                exported = await desk.call(f"export_{form}", {"handle": handle, "max_tokens": 100_000})
                assert "Install" not in exported.text
                assert exported.is_error is (action == "refuse")


async def test_exports_count_towards_the_limits_of_a_document(settings: Callable[..., Config], project: Path) -> None:
    given = {"convert__roots": [str(project)], "embedding__source": "none"}
    async with open_desk(settings(reader__rate_limit_calls=2, **given)) as desk:
        handle = (await ask(desk, "convert_docx", file_path="office/guide.docx"))["handle"]
        await desk.call("export_markdown", {"handle": handle})
        await desk.handle(Call("resources/read", {"uri": f"document://{handle}/html"}, LOCAL))
        with pytest.raises(RateLimited, match="2 calls and 100000 tokens per minute"):
            await desk.call("read_doc_metadata", {"doc_id": handle})
        with pytest.raises(RateLimited):
            await desk.call("export_json", {"handle": handle})
        with pytest.raises(RateLimited):
            await desk.handle(Call("resources/read", {"uri": f"document://{handle}/html"}, LOCAL))
    async with open_desk(settings(reader__rate_limit_tokens=10, **given)) as desk:
        handle = (await ask(desk, "convert_docx", file_path="office/guide.docx"))["handle"]
        await desk.call("export_markdown", {"handle": handle})
        with pytest.raises(RateLimited):
            await desk.call("export_markdown", {"handle": handle})


async def test_local_files_can_be_switched_off(settings: Callable[..., Config], project: Path) -> None:
    async with open_desk(settings(convert__roots=[str(project)], convert__local_files=False)) as desk:
        assert "Send the bytes" in await failure(desk, "convert_docx", file_path="office/guide.docx")


class ClientWithRoots(Client):
    """A client that announces a folder, and hears of progress."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heard: list[tuple[float, float | None, str | None]] = []

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        self.heard.append((done, total, message))

    async def log(self, level: LogLevel, data: Any, logger: str | None = None) -> None:
        raise AssertionError("nothing is to be logged")

    async def ask(self, name: str, method: str, params: Any) -> dict[str, Any]:
        assert method == "roots/list"
        return {"roots": [{"uri": self.folder.as_uri()}]}


@pytest.mark.parametrize(
    ("client_roots", "local", "opened"),
    [("local", True, True), ("local", False, False), ("all", False, True), ("none", True, False)],
)
async def test_the_roots_of_a_client_are_open_where_they_are_believed(
    settings: Callable[..., Config], project: Path, client_roots: str, local: bool, opened: bool
) -> None:
    downstream_resources = project.parent / "elsewhere"
    downstream_resources.mkdir()
    config = settings(convert__roots=[str(downstream_resources)], convert__client_roots=client_roots)
    async with open_desk(config) as desk:
        params = {"name": "convert_docx", "arguments": {"file_path": str(project / "office" / "guide.docx")}}
        call = Call("tools/call", params, replace(LOCAL, local=local), ClientWithRoots(project))
        assert (await desk.handle(call)).is_error is not opened


@pytest.mark.parametrize("roots", [None, "nonsense", ["nonsense", {}, {"uri": "file://["}]])
async def test_roots_that_make_no_sense_open_nothing(
    settings: Callable[..., Config], project: Path, roots: Any
) -> None:
    class ClientWithNonsense(ClientWithRoots):
        async def ask(self, name: str, method: str, params: Any) -> dict[str, Any]:
            return {"roots": roots}

    (elsewhere := project.parent / "elsewhere").mkdir()
    async with open_desk(settings(convert__roots=[str(elsewhere)], convert__client_roots="all")) as desk:
        params = {"name": "convert_docx", "arguments": {"file_path": str(project / "office" / "guide.docx")}}
        answer = await desk.handle(Call("tools/call", params, LOCAL, ClientWithNonsense(project)))
        assert "is outside the folders that are open to tools" in answer.text


async def test_exactly_one_source_is_wanted(shared_desk: Desk) -> None:
    for arguments in ({}, {"file_path": "a", "resource": "b"}):
        with pytest.raises(InvalidArguments, match="exactly one"):
            await shared_desk.call("convert_docx", arguments)
    with pytest.raises(InvalidArguments, match="base64"):
        await shared_desk.call("convert_docx", {"content_base64": "no base64!"})


async def test_a_long_export_comes_in_parts_that_join_to_the_whole(converting: Desk, project: Path) -> None:
    words = "\n\n".join(f"Paragraph {number} has some words in it." for number in range(1000))
    (project / "long.md").write_text(f"# Long\n\n{words}\n")
    handle = (await ask(converting, "convert_docx", file_path="long.md"))["handle"]
    text, cursor = "", None
    for _ in range(20):
        arguments = {"handle": handle} | ({"cursor": cursor} if cursor else {})
        part = await converting.call("export_markdown", arguments)
        assert len(part.text) < 9000
        item = part.result["content"][0]
        text += item["text"]
        cursor = item["_meta"].get("nextCursor")
        if cursor is None:
            break
        link = part.result["content"][-1]
        assert link["type"] == "resource_link"
    assert text == (project / "long.md").read_text()
    whole = await converting.handle(Call("resources/read", {"uri": link["uri"]}, LOCAL))
    assert whole.result["contents"][0]["text"] == text


async def test_a_docling_document_from_elsewhere_is_exported(shared_desk: Desk) -> None:
    made = DoclingDocument(name="made")
    made.add_title("From elsewhere")
    answer = await shared_desk.call("export_markdown", {"document": made.export_to_dict()})
    assert answer.text == "# From elsewhere\n"
    said = await failure(shared_desk, "export_html", document={"schema_name": "Other"})
    assert "not a DoclingDocument" in said
    with pytest.raises(InvalidArguments, match="either handle or document"):
        await shared_desk.call("export_json", {})


async def test_a_page_is_fetched_converted_and_not_sent_again_while_it_is_the_same(
    settings: Callable[..., Config],
) -> None:
    page = (
        b"<html><head><title>Guide</title></head><body><nav>Menu</nav><main><h1>Guide</h1><p>Words.</p></main></body>"
    )
    async with running_web() as web, open_desk(settings(convert__allow_networks="127.0.0.0/8")) as desk:
        web.pages["/robots.txt"] = answer(b"")
        web.pages["/guide.html"] = answer(page, etag='"1"', content_type="text/html")
        first = await ask(desk, "convert_url", url=web.url("/guide.html"))
        assert (first["title"], first["cached"]) == ("Guide", False)
        assert "Menu" not in first["preview"]
        web.pages["/guide.html"] = answer(status="304 Not Modified", etag='"1"')
        again = await ask(desk, "convert_url", url=web.url("/guide.html"))
        assert (again["handle"], again["cached"]) == (first["handle"], True)
        assert 'if-none-match: "1"' in web.requests[-1].lower()


async def test_no_internal_address_is_fetched(shared_desk: Desk) -> None:
    async with running_web() as web:
        web.pages["/"] = answer(b"kept to itself")
        said = await failure(shared_desk, "convert_url", url=web.url("/"))
        assert "kept to itself" not in said
        assert web.requests == []


async def test_progress_of_a_long_conversion_is_heard(converting: Desk, project: Path) -> None:
    client = ClientWithRoots(project)
    params = {"name": "convert_pptx", "arguments": {"file_path": "office/deck.pptx"}}
    answer: Answer = await converting.handle(Call("tools/call", params, LOCAL, client))
    assert not answer.is_error
    assert all(total is None or done <= total for done, total, _ in client.heard)


async def test_every_tool_has_the_deadline_of_its_work(shared_desk: Desk) -> None:
    seconds = {name: tool.seconds for name, tool in shared_desk.registry.tools.items() if isinstance(tool, Tool)}
    assert seconds["convert_url"] == 180
    assert seconds["export_json"] == 60
    assert json.dumps([seconds[name] for name in ("convert_pdf", "convert_docx")]) == "[330.0, 330.0]"
