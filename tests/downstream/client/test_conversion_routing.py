"""Which tool converts what, and how long it may take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from refdesk.downstream.client.conversion_routing import (
    MAX_SENT_BYTES,
    TOOLS,
    ServerDocument,
    adapt_route,
    parse_conversion,
    parse_export,
    route,
    route_export,
)
from refdesk.downstream.client.error_mapping import map_error
from refdesk.downstream.client.mcp_client import ToolResult
from refdesk.errors import (
    CannotConvert,
    CannotFetch,
    CannotOpen,
    InvalidCall,
    ServerRefused,
    ServerTalksNonsense,
    UnknownTool,
)

MEGABYTE = 1024 * 1024

DESK = {*TOOLS.values(), "convert_url", "export_markdown", "export_html", "export_json"}
DOCLING = {"convert_document_into_docling_document", "export_docling_document_to_markdown", "save_docling_document"}


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("a.pdf", "convert_pdf"),
        ("A.PDF", "convert_pdf"),
        ("a.docx", "convert_docx"),
        ("a.tar.xlsx", "convert_xlsx"),
        ("a.pptx", "convert_pptx"),
    ],
)
def test_a_file_goes_by_its_extension(name: str, tool: str) -> None:
    found = route(name, 5)
    assert found.tool == tool
    assert found.arguments == {"file_path": str(Path.cwd() / name)}


@pytest.mark.parametrize(
    ("size", "seconds"),
    [
        (0, 60),
        (10 * MEGABYTE - 1, 60),
        (10 * MEGABYTE, 180),
        (50 * MEGABYTE - 1, 180),
        (50 * MEGABYTE, 300),
        (100 * MEGABYTE, 300),
    ],
)
def test_a_file_has_time_by_its_size(size: int, seconds: float) -> None:
    assert route("a.pdf", size).timeout_seconds == seconds


def test_a_file_of_more_than_100_megabytes_is_refused() -> None:
    with pytest.raises(CannotConvert, match=r"100 MB"):
        route("a.pdf", 100 * MEGABYTE + 1)


def test_the_size_is_looked_up_where_it_is_not_given(tmp_path: Path) -> None:
    large = tmp_path / "large.pdf"
    with large.open("wb") as file:
        file.truncate(11 * MEGABYTE)
    assert route(large).timeout_seconds == 180
    assert route(large.as_uri()).path == large


@pytest.mark.parametrize("url", ["https://example.com/a.pdf", "HTTP://example.com", "http://[::1]:80/x?y=z"])
def test_an_address_has_180_seconds(url: str) -> None:
    found = route(url)
    assert (found.tool, found.arguments, found.timeout_seconds) == ("convert_url", {"url": url}, 180)


@pytest.mark.parametrize("url", ["s3://bucket/a.pdf", "ftp://example.com/a.pdf", "https://", "http:///a.pdf"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(CannotFetch):
        route(url)


@pytest.mark.parametrize("name", ["a.exe", "a", ".pdf", "a.pdf.zip"])
def test_an_unknown_extension_is_told_the_known_ones(name: str) -> None:
    with pytest.raises(CannotConvert, match=r"\.pdf .*\.docx .*\.xlsx .*\.pptx"):
        route(name, 5)


def test_what_is_no_file_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen, match="There is no file"):
        route(tmp_path / "missing.pdf")
    (tmp_path / "folder.pdf").mkdir()
    with pytest.raises(CannotOpen, match="is a folder"):
        route(tmp_path / "folder.pdf")
    os.mkfifo(tmp_path / "pipe.pdf")
    with pytest.raises(CannotOpen, match="is not a regular file"):
        route(tmp_path / "pipe.pdf")
    with pytest.raises(CannotOpen):
        route("a\0b.pdf")
    with pytest.raises(CannotOpen):
        route("a" * 5000 + ".pdf")


@pytest.mark.parametrize("form", ["markdown", "html", "json"])
def test_exports_have_60_seconds(form: Any) -> None:
    by_handle = route_export("doc-1", form)
    assert (by_handle.tool, by_handle.arguments, by_handle.timeout_seconds) == (
        f"export_{form}",
        {"handle": "doc-1"},
        60,
    )
    assert route_export(ServerDocument("doc-1", ToolResult({})), form) == by_handle
    assert route_export({"schema_name": "DoclingDocument"}, form).arguments == {
        "document": {"schema_name": "DoclingDocument"}
    }


def test_an_unknown_form_is_told_the_known_ones() -> None:
    with pytest.raises(InvalidCall, match="markdown, html, json"):
        route_export("doc-1", "docx")  # type: ignore[arg-type]


def test_a_small_file_can_be_sent(tmp_path: Path) -> None:
    file = tmp_path / "a.pdf"
    file.write_bytes(b"%PDF")
    assert adapt_route(route(file), DESK, as_bytes=True).arguments == {
        "content_base64": "JVBERg==",
        "file_name": "a.pdf",
    }
    assert adapt_route(route(file), DESK, as_bytes=False).arguments == {"file_path": str(file)}


def test_a_large_file_cannot_be_sent() -> None:
    with pytest.raises(CannotConvert, match="can be sent"):
        adapt_route(route("a.pdf", MAX_SENT_BYTES + 1), DESK, as_bytes=True)


def test_docling_has_one_tool_for_everything(tmp_path: Path) -> None:
    convert = "convert_document_into_docling_document"
    file = adapt_route(route("/documents/a.xlsx", 20 * MEGABYTE), DOCLING, as_bytes=False)
    assert (file.tool, file.arguments, file.timeout_seconds) == (convert, {"source": "/documents/a.xlsx"}, 180)
    url = adapt_route(route("https://example.com"), DOCLING, as_bytes=False)
    assert (url.tool, url.arguments, url.timeout_seconds) == (convert, {"source": "https://example.com"}, 180)
    export = adapt_route(route_export("key", "markdown"), DOCLING, as_bytes=False)
    assert (export.tool, export.arguments) == ("export_docling_document_to_markdown", {"document_key": "key"})


@pytest.mark.parametrize("wanted", [route_export("key", "html"), route_export({"name": "x"}, "markdown")])
def test_what_docling_has_no_tool_for_is_told_with_what_it_has(wanted: Any) -> None:
    with pytest.raises(UnknownTool, match="export_docling_document_to_markdown"):
        adapt_route(wanted, DOCLING, as_bytes=False)


def test_a_server_that_converts_nothing_is_told_of() -> None:
    with pytest.raises(UnknownTool, match="it offers none"):
        adapt_route(route("a.pdf", 5), {"echo"}, as_bytes=False)


@pytest.mark.parametrize("structured", [{"handle": "doc-1"}, {"document_key": "doc-1", "from_cache": False}])
def test_the_handle_is_found_in_either_answer(structured: dict[str, Any]) -> None:
    assert parse_conversion("it", ToolResult({"content": [], "structuredContent": structured})).handle == "doc-1"


@pytest.mark.parametrize(
    "raw",
    [
        {"content": []},
        {"structuredContent": {"handle": 5}},
        {"content": [{"type": "text", "text": "no"}], "isError": True},
    ],
)
def test_an_answer_without_a_handle_is_a_failure(raw: dict[str, Any]) -> None:
    with pytest.raises((ServerRefused, ServerTalksNonsense)):
        parse_conversion("it", ToolResult(raw))


def test_an_export_is_text_in_either_answer() -> None:
    desk = {
        "content": [{"type": "text", "text": "# A", "_meta": {"nextCursor": "3"}}, {"type": "text", "text": "note"}]
    }
    assert parse_export("it", ToolResult(desk)) == ("# A", "3")
    docling = {"content": [{"type": "text", "text": "{}"}], "structuredContent": {"markdown": "# A"}}
    assert parse_export("it", ToolResult(docling)) == ("# A", None)


@pytest.mark.parametrize("raw", [{"content": []}, {"content": [{"type": "text", "text": "no"}], "isError": True}])
def test_an_export_without_text_is_a_failure(raw: dict[str, Any]) -> None:
    with pytest.raises((ServerRefused, ServerTalksNonsense)):
        parse_export("it", ToolResult(raw))


def test_a_failure_says_which_of_the_two_it_was() -> None:
    raw = {"content": [{"type": "text", "text": "It is locked."}], "isError": True}
    with pytest.raises(ServerRefused, match=r"It is locked\.") as caught:
        parse_conversion("it", ToolResult(raw))
    assert (caught.value.code, map_error(caught.value).code, map_error(caught.value).retryable) == (
        -32002,
        "E302",
        True,
    )
    with pytest.raises(ServerRefused) as caught:
        parse_export("it", ToolResult(raw))
    assert (caught.value.code, map_error(caught.value).code) == (-32003, "E303")
