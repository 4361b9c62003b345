"""The reader toolset: on converted files and on the bundled manual alike, never over its budget."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from refdesk.app import Desk, open_desk
from refdesk.config.models import Config
from refdesk.errors import InvalidArguments, RateLimited
from tests.tools.asking import OTHER, ask, failure
from tests.tools.knowing import open_indexed_desk

pytestmark = pytest.mark.anyio

LONG = "\n\n".join(
    ["# The book", "Words before the chapters."]
    + [
        f"## Chapter {chapter}\n\n"
        + "\n\n".join(f"Sentence {n} of chapter {chapter}, on fööd and zebras. " * 4 for n in range(20))
        for chapter in range(1, 6)
    ]
)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """A desk whose manual is indexed."""
    async with open_indexed_desk(tmp_path) as desk:
        yield desk


async def convert_document(desk: Desk, text: str = LONG) -> str:
    """Convert a text and return its handle."""
    content = base64.b64encode(text.encode()).decode()
    handle: str = (await ask(desk, "convert_docx", content_base64=content, file_name="book.md"))["handle"]
    return handle


async def test_a_section_is_read_with_its_subsections(shared_desk: Desk) -> None:
    result = await ask(
        shared_desk, "read_doc_section", doc_id=await convert_document(shared_desk), section_id="chapter-2"
    )
    assert result["text"].startswith("## Chapter 2\n\nSentence 0 of chapter 2")
    assert "chapter 3" not in result["text"].lower()
    assert (result["section_id"], result["title"], result["truncated"]) == ("chapter-2", "Chapter 2", False)
    assert 500 < result["token_estimate"] < 3000


async def test_text_is_cut_on_a_character_and_goes_on_from_there(settings: Callable[..., Config]) -> None:
    async with open_desk(settings(reader__max_text_bytes=1000, reader__rate_limit_calls=1000)) as desk:
        doc_id = await convert_document(desk)
        whole = ""
        arguments: dict[str, Any] = {"doc_id": doc_id, "section_id": "the-book"}
        while True:
            part = await ask(desk, "read_doc_section", **arguments)
            assert len(part["text"].encode()) <= 1000
            assert not (whole[-1:].isalnum() and part["text"][0].isalnum()), "cut within a word"
            whole += part["text"]
            assert part["truncated"] is ("next_cursor" in part)
            if not part["truncated"]:
                break
            arguments["cursor"] = part["next_cursor"]
        assert "\ufffd" not in whole
        assert [line.strip() for line in whole.splitlines()] == [line.strip() for line in LONG.splitlines()]
        with pytest.raises(InvalidArguments, match="cursor"):
            await desk.call("read_doc_section", {"doc_id": doc_id, "section_id": "chapter-1", "cursor": "999999"})


async def test_windows_and_snippets_end_with_a_whole_word(shared_desk: Desk) -> None:
    doc_id = await convert_document(shared_desk, f"# Beasts\n\n{'hippopotamus ' * 150}")
    for tokens in (100, 101):
        window = await ask(shared_desk, "read_chunk_window", doc_id=doc_id, anchor_chunk_id="c1", max_tokens=tokens)
        assert window["truncated"]
        assert set(window["chunks"][0]["text"].split()) == {"hippopotamus"}
    found = await ask(shared_desk, "doc_local_search", doc_id=doc_id, query="hippopotamus")
    assert {word.strip("…") for word in found["results"][0]["text"].split()} == {"hippopotamus"}


async def test_pages_are_read_some_at_a_time(shared_desk: Desk) -> None:
    doc_id = await convert_document(shared_desk)
    metadata = await ask(shared_desk, "read_doc_metadata", doc_id=doc_id)
    assert metadata["pages"] > 3
    first = await ask(shared_desk, "read_doc_pages", doc_id=doc_id, page_start=1, page_end=1)
    both = await ask(shared_desk, "read_doc_pages", doc_id=doc_id, page_start=1, page_end=2)
    assert both["text"].startswith(first["text"])
    assert len(both["text"]) > len(first["text"])
    with pytest.raises(InvalidArguments, match="at most 5 pages a call"):
        await shared_desk.call("read_doc_pages", {"doc_id": doc_id, "page_start": 1, "page_end": 6})
    with pytest.raises(InvalidArguments, match="must not be before"):
        await shared_desk.call("read_doc_pages", {"doc_id": doc_id, "page_start": 2, "page_end": 1})
    said = await failure(shared_desk, "read_doc_pages", doc_id=doc_id, page_start=900, page_end=901)
    assert said == f"The document has pages 1 to {metadata['pages']}; choose some of them."


async def test_slides_are_read_as_pages(shared_desk: Desk) -> None:
    doc_id = (await ask(shared_desk, "convert_pptx", file_path="office/deck.pptx"))["handle"]
    slide = await ask(shared_desk, "read_doc_pages", doc_id=doc_id, page_start=2, page_end=2)
    assert "First slide" in slide["text"]
    assert "Numbers" not in slide["text"]


async def test_metadata_lists_sections_tags_and_tenant(shared_desk: Desk) -> None:
    doc_id = (await ask(shared_desk, "convert_docx", file_path="office/guide.docx"))["handle"]
    metadata = await ask(shared_desk, "read_doc_metadata", doc_id=doc_id)
    assert metadata["title"] == "The Guide"
    assert metadata["tags"] == ["alpha", "beta"]
    assert metadata["tenant"] == "default"
    assert {"id": "install", "title": "Install", "level": 2, "page": 1} in metadata["sections"]


async def test_titles_of_several_lines_are_listed(shared_desk: Desk) -> None:
    lines = [{"label": "title", "text": "Two\nlines"}, {"label": "section_header", "level": 1, "text": "A\nB"}]
    body = {"children": [{"$ref": "#/texts/0"}, {"$ref": "#/texts/1"}]}
    document = orjson.dumps({"schema_name": "DoclingDocument", "name": "x", "body": body, "texts": lines})
    content = base64.b64encode(document).decode()
    converted = await ask(shared_desk, "convert_docx", content_base64=content, file_name="x.json")
    metadata = await ask(shared_desk, "read_doc_metadata", doc_id=converted["handle"])
    assert [section["id"] for section in metadata["sections"]] == ["two-lines", "a-b"]


async def test_a_table_of_contents_stays_within_the_budget(settings: Callable[..., Config]) -> None:
    parts = (f"# Part {p}\n\n" + "\n\n".join(f"## Point {p}.{n}" for n in range(50)) for p in range(8))
    async with open_desk(settings(reader__max_text_bytes=2000)) as desk:
        doc_id = await convert_document(desk, "\n\n".join(parts))
        metadata = await ask(desk, "read_doc_metadata", doc_id=doc_id)
        assert [section["title"] for section in metadata["sections"]] == [f"Part {p}" for p in range(8)]
        assert metadata["sections_omitted"] == 400
        under = await ask(desk, "read_doc_metadata", doc_id=doc_id, under="part-3")
        assert under["sections"][0]["title"] == "Part 3"
        assert len(under["sections"]) + under["sections_omitted"] == 51


async def test_passages_are_found_within_a_document(shared_desk: Desk) -> None:
    doc_id = await convert_document(shared_desk)
    found = await ask(shared_desk, "doc_local_search", doc_id=doc_id, query="sentence 7 chapter 4", max_results=3)
    assert 1 <= len(found["results"]) <= 3
    best = found["results"][0]
    assert best["section_id"] == "chapter-4"
    assert best["section"] == "The book › Chapter 4"
    assert best["page"] >= 1
    read_around = await ask(shared_desk, "read_chunk_window", doc_id=doc_id, anchor_chunk_id=best["chunk_id"], radius=1)
    assert best["chunk_id"] in [chunk["chunk_id"] for chunk in read_around["chunks"]]
    nothing = await shared_desk.call("doc_local_search", {"doc_id": doc_id, "query": "wombat"})
    assert nothing.structured["results"] == []
    assert "read_doc_metadata" in nothing.text


async def test_a_window_has_so_many_chunks_on_each_side(shared_desk: Desk) -> None:
    doc_id = await convert_document(shared_desk)

    async def ids(**sides: Any) -> list[str]:
        window = await ask(shared_desk, "read_chunk_window", doc_id=doc_id, anchor_chunk_id="c5", **sides)
        return [chunk["chunk_id"] for chunk in window["chunks"]]

    assert await ids() == ["c4", "c5", "c6"]
    assert await ids(radius=2) == ["c3", "c4", "c5", "c6", "c7"]
    assert await ids(radius=0) == ["c5"]
    assert await ids(window_before=3) == ["c2", "c3", "c4", "c5"]
    assert await ids(window_before=0, window_after=1) == ["c5", "c6"]
    for sides, name in (({"radius": 6}, "radius"), ({"window_after": 9}, "window_after")):
        with pytest.raises(InvalidArguments, match=f"{name}.*at most 5"):
            await ids(**sides)
    with pytest.raises(InvalidArguments, match="either radius or"):
        await ids(radius=1, window_after=1)
    assert "no chunk" in await failure(shared_desk, "read_chunk_window", doc_id=doc_id, anchor_chunk_id="c9999")


async def test_the_manual_can_be_read_in_parts_too(desk: Desk) -> None:
    metadata = await ask(desk, "read_doc_metadata", doc_id="refdesk/index.md")
    section = metadata["sections"][-1]["id"]
    text = (await ask(desk, "read_doc_section", doc_id="refdesk/index.md", section_id=section))["text"]
    assert text
    hit = (await desk.call("search_documentation", {"query": "configuration file"})).result["content"][0]["_meta"]
    window = await ask(
        desk, "read_chunk_window", doc_id=hit["metadata"]["source"], anchor_chunk_id=hit["chunk_id"], radius=1
    )
    assert hit["chunk_id"] in [chunk["chunk_id"] for chunk in window["chunks"]]
    assert 1 <= len(window["chunks"]) <= 3


async def test_what_is_not_there_is_told_with_the_nearest_name(shared_desk: Desk) -> None:
    doc_id = await convert_document(shared_desk)
    assert "Did you mean 'refdesk/index.md'" in await failure(
        shared_desk, "read_doc_metadata", doc_id="refdesk/indx.md"
    )
    said = await failure(shared_desk, "read_doc_section", doc_id=doc_id, section_id="chapter-22")
    assert "Did you mean 'chapter-" in said


async def test_another_tenants_document_answers_as_one_that_does_not_exist(shared_desk: Desk) -> None:
    doc_id, unknown = await convert_document(shared_desk), "doc-" + "b" * 26
    for tool, arguments in (
        ("read_doc_metadata", {}),
        ("read_doc_section", {"section_id": "chapter-1"}),
        ("read_doc_pages", {"page_start": 1, "page_end": 1}),
        ("doc_local_search", {"query": "zebras"}),
        ("read_chunk_window", {"anchor_chunk_id": "c1"}),
    ):
        theirs = await failure(shared_desk, tool, OTHER, doc_id=doc_id, **arguments)
        nobodys = await failure(shared_desk, tool, OTHER, doc_id=unknown, **arguments)
        assert theirs.replace(doc_id, "?") == nobodys.replace(unknown, "?")


async def test_a_document_can_be_read_only_so_often(settings: Callable[..., Config]) -> None:
    async with open_desk(settings(reader__rate_limit_calls=2)) as desk:
        doc_id = await convert_document(desk)
        for _ in range(2):
            await ask(desk, "read_doc_metadata", doc_id=doc_id)
        with pytest.raises(RateLimited) as refused:
            await desk.call("read_doc_metadata", {"doc_id": doc_id})
        assert refused.value.code == -32004
        assert 0 < (refused.value.retry_after or 0) <= 60
        await ask(desk, "read_doc_metadata", doc_id="refdesk/index.md")


async def test_snippets_stay_within_the_size_limit(settings: Callable[..., Config]) -> None:
    async with open_desk(settings(reader__max_text_bytes=40)) as desk:
        doc_id = await convert_document(desk)
        found = (await desk.call("doc_local_search", {"doc_id": doc_id, "query": "food"})).structured
        assert 0 < sum(len(hit["text"].encode()) for hit in found["results"]) <= 40


async def test_a_blocked_keyword_is_not_handed_out(settings: Callable[..., Config]) -> None:
    for action in ("refuse", "redact"):
        config = settings(reader__blocklist_keywords="zebras", reader__blocklist_action=action)
        async with open_desk(config) as desk:
            doc_id = await convert_document(desk)
            for tool, arguments in (
                ("read_doc_section", {"section_id": "chapter-1"}),
                ("read_doc_pages", {"page_start": 1, "page_end": 1}),
                ("doc_local_search", {"query": "food"}),
                ("read_chunk_window", {"anchor_chunk_id": "c2"}),
            ):
                answer = await desk.call(tool, {"doc_id": doc_id, **arguments})
                assert "zebras" not in answer.text
                assert answer.is_error is (action == "refuse"), tool


async def test_the_tools_that_a_caller_may_use_are_listed(shared_desk: Desk) -> None:
    names = {tool["name"] for tool in (await ask(shared_desk, "list_available_tools"))["tools"]}
    assert {"list_available_tools", "convert_pdf", "search_documentation"} <= names
    assert names == set(shared_desk.registry.tools)
