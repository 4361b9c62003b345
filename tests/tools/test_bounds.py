"""No answer over its budget, no word past the blocklist, no age that is not its own: what a stranger would try."""

from __future__ import annotations

import asyncio
import base64
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from refdesk.app import Desk, open_desk
from refdesk.calls import LOCAL, WINDOW_METHOD, Call, TenantId
from refdesk.config.models import Config
from refdesk.documents.chunking import chunks
from refdesk.documents.conversion_store import Bounds, Store
from refdesk.documents.jobs import chunk_and_pack
from refdesk.documents.model import Document, Paragraph
from refdesk.documents.packed_document import PACKED_DOCUMENT_VERSION, InvalidPackedDocument, PackedDocument
from refdesk.tools.budget import Blocklist, TextBlocked
from tests.tools.asking import ask

pytestmark = pytest.mark.anyio
BUDGET = 20_500


async def convert_text(desk: Desk, text: str, name: str = "x.md") -> dict[str, Any]:
    content = base64.b64encode(text.encode()).decode()
    return await ask(desk, "convert_docx", content_base64=content, file_name=name)


DOCLING = {
    "schema_name": "DoclingDocument",
    "name": "x",
    "origin": {"mimetype": "application/pdf", "binary_hash": 1, "filename": "x.pdf"},
    "body": {"children": [{"$ref": "#/texts/0"}]},
    "texts": [{"label": "text", "text": "hello"}],
}


async def test_the_same_docling_document_is_exported_twice(shared_desk: Desk) -> None:
    for _ in range(2):
        answer = await shared_desk.call("export_markdown", {"document": DOCLING})
        assert answer.text == "hello\n"


async def test_a_summary_stays_within_the_budget(shared_desk: Desk) -> None:
    made = await shared_desk.call(
        "convert_docx",
        {
            "content_base64": base64.b64encode("\n\n".join(f"# {'t' * 990} {n}" for n in range(45)).encode()).decode(),
            "file_name": "x.md",
        },
    )
    assert len(made.text.encode()) <= BUDGET


async def test_metadata_stay_within_the_budget(shared_desk: Desk) -> None:
    kept = {"properties": {f"k{n}": "v" * 1000 for n in range(100)}, "warnings": ["w" * 500] * 100}
    body = {"children": [{"$ref": "#/texts/0"}], "meta": {"refdesk__properties": kept}}
    made = await convert_text(shared_desk, orjson.dumps({**DOCLING, "body": body}).decode(), "x.json")
    answer = await shared_desk.call("read_doc_metadata", {"doc_id": made["handle"]})
    assert len(answer.text.encode()) <= BUDGET


def test_a_word_without_end_is_cut_into_chunks() -> None:
    assert max(len(chunk.text) for chunk in chunks([Paragraph("a" * 100_000)])) < 5_000


async def test_search_and_windows_stay_within_the_budget_whatever_the_path(shared_desk: Desk) -> None:
    headings = "".join(f"{'#' * level} {'ü' * 3000}{level}\n\n" for level in range(1, 7))
    made = await convert_text(shared_desk, headings + "\n\n".join(f"needle {'word ' * 200}" for _ in range(12)))
    found = await shared_desk.call("doc_local_search", {"doc_id": made["handle"], "query": "needle"})
    window = {"doc_id": made["handle"], "anchor_chunk_id": "c8", "radius": 5}
    read_around = await shared_desk.call("read_chunk_window", window)
    assert max(len(found.text.encode()), len(read_around.text.encode())) <= BUDGET


async def test_an_export_of_chinese_stays_within_the_budget(shared_desk: Desk) -> None:
    made = await convert_text(shared_desk, "漢" * 40_000, "x.txt")
    answer = await shared_desk.call("export_markdown", {"handle": made["handle"]})
    assert len(answer.text.encode()) <= BUDGET


async def test_a_blocked_word_is_not_handed_out_in_two_halves(settings: Callable[..., Config]) -> None:
    async with open_desk(settings(reader__blocklist_keywords=["zebra"], reader__max_text_bytes=40)) as desk:
        made = await convert_text(desk, "w " * 18 + "zebra end", "x.txt")
        given = {"doc_id": made["handle"], "section_id": "start"}
        answer = await desk.call("read_doc_section", given)
        assert answer.is_error or not answer.text.partition("\n\n(")[0].endswith("zebr")
        answer = await desk.call("read_doc_section", {**given, "cursor": "37"})
        assert answer.is_error or "ebra" not in answer.text


async def test_a_blocked_word_is_in_no_id_and_no_path(settings: Callable[..., Config]) -> None:
    async with open_desk(settings(reader__blocklist_keywords=["zebra"])) as desk:
        made = await convert_text(desk, "# The zebra plan\n\nneedle\n")
        assert "zebra" not in str(made)
        found = await desk.call("doc_local_search", {"doc_id": made["handle"], "query": "needle"})
        assert "zebra" not in str(found.result)


async def test_a_blocked_word_is_not_handed_out_half_bold(settings: Callable[..., Config]) -> None:
    async with open_desk(settings(reader__blocklist_keywords=["zebra", "R&D"])) as desk:
        for text, form in (("a zeb**ra** here", "markdown"), ("our R&D here", "html")):
            made = await convert_text(desk, text)
            assert (await desk.call(f"export_{form}", {"handle": made["handle"]})).is_error


async def test_the_internal_window_hands_out_no_blocked_word(settings: Callable[..., Config]) -> None:
    async with open_desk(settings(reader__blocklist_keywords=["zebra"])) as desk:
        made = await convert_text(desk, "a zebra here", "x.txt")
        given = {"doc_id": made["handle"], "anchor_chunk_id": "c1"}
        with pytest.raises(TextBlocked):
            await desk.handle(Call(WINDOW_METHOD, given, LOCAL))


def test_a_blocklist_may_hold_the_word_that_stands_for_what_was_cut() -> None:
    assert Blocklist(["redacted"], "redact").screen("this was redacted") == "this was [redacted]"


async def test_tokens_are_counted_for_calls_at_the_same_time_too(settings: Callable[..., Config]) -> None:
    async with open_desk(settings(reader__rate_limit_tokens=10_000)) as desk:
        made = await convert_text(desk, "some words of text here " * 5000, "x.txt")
        given = {"doc_id": made["handle"], "section_id": "start"}
        calls = (desk.call("read_doc_section", given) for _ in range(50))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        spent = sum(answer.structured["token_estimate"] for answer in answers if not isinstance(answer, BaseException))
        assert spent <= 15_000


def test_an_export_does_not_outlive_its_document(tmp_path: Path) -> None:
    store, tenant = Store(tmp_path, Bounds(seconds=100_000)), TenantId("t")
    handle = store.handle(tenant, "digest")
    for form, data in (("sqlite", chunk_and_pack(Document("t", (Paragraph("x"),)))), ("markdown", b"x")):
        with store.writing() as file:
            file.write(data)
            file.flush()
            store.keep(tenant, handle, file, form)
    (document,) = tmp_path.glob("*/*.sqlite")
    os.utime(document, (time.time() - 200_000,) * 2)
    assert store.open_file(tenant, handle, "markdown") is None


def test_an_upload_that_is_used_is_young_again(tmp_path: Path) -> None:
    store, tenant = Store(tmp_path, Bounds(seconds=100_000)), TenantId("t")
    handle = store.handle(tenant, "digest")
    with store.writing() as file:
        store.keep(tenant, handle, file, "upload")
    (upload,) = tmp_path.glob("*/*.upload")
    os.utime(upload, (time.time() - 90_000,) * 2)
    used = store.open_file(tenant, handle, "upload")
    assert used is not None
    used.close()
    assert time.time() - upload.stat().st_mtime < 50_000


def test_a_view_in_a_shelf_is_not_run(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "x.sqlite")
    database.executescript(
        "CREATE VIEW about AS WITH RECURSIVE c(body) AS (SELECT 1 UNION ALL SELECT body + 1 FROM c LIMIT 50000000) "
        f"SELECT count(*) AS body FROM c; PRAGMA user_version = {PACKED_DOCUMENT_VERSION};"
    )
    database.close()
    with pytest.raises(InvalidPackedDocument, match="it holds view"):
        PackedDocument.open(tmp_path / "x.sqlite")


async def test_a_text_may_speak_of_pdf(shared_desk: Desk) -> None:
    await convert_text(shared_desk, "# About\n\nA PDF begins with %PDF-1.7.\n")


async def test_pages_that_are_not_in_a_row_can_be_read(shared_desk: Desk) -> None:
    box = {"l": 0, "t": 0, "r": 1, "b": 1}
    texts = [{"label": "text", "text": str(n), "prov": [{"page_no": n, "bbox": box}]} for n in (1, 100)]
    pages = {str(n): {"page_no": n, "size": {"width": 1, "height": 1}} for n in (1, 100)}
    body = {"children": [{"$ref": "#/texts/0"}, {"$ref": "#/texts/1"}]}
    document = orjson.dumps({**DOCLING, "body": body, "texts": texts, "pages": pages}).decode()
    handle = (await convert_text(shared_desk, document, "x.json"))["handle"]
    read = await ask(shared_desk, "read_doc_pages", doc_id=handle, page_start=100, page_end=100)
    assert read["text"] == "100"


async def test_hidden_names_are_not_suggested(converting: Desk, project: Path) -> None:
    (project / ".env.production").write_text("x")
    answer = await converting.call("convert_docx", {"file_path": ".env.productio"})
    assert ".env.production'" not in answer.text
