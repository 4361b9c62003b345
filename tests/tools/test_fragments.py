"""Reading starts where an id points: chunks, sections, anchors and URLs, of indexed and of converted documents."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from refdesk.app import Desk
from refdesk.documents.chunking import chunks
from refdesk.documents.convert import html
from refdesk.documents.convert.source import SourceFile
from refdesk.documents.export.markdown import to_markdown
from refdesk.documents.packed_document import PackedDocument, pack
from refdesk.engines.base import IN_PROGRESS, NewDocument, TextSource
from refdesk.errors import InvalidArguments
from refdesk.tools.fragments import locate
from tests.tools.asking import ask, failure
from tests.tools.knowing import open_indexed_desk, somebody
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

ANN = somebody("ann")
ID = "acme/guide/copy.md"
COPY = "\n\n".join(
    [
        "# COPY {#SQL-COPY}",
        "Copies data, see [VACUUM](../vacuum.md), [itself](#PARAMS) and [nothing](gone.md).",
        "## Parameters {#PARAMS}",
        *(f"The parameter number {n} says how zebra {n} is copied. " * 8 for n in range(12)),
        "## Notes",
        "A note, see [VACUUM](../vacuum.md#FULL).",
    ]
)
PAGES = {
    "guide/copy.md": COPY,
    "vacuum.md": "# VACUUM\n\nCleans.\n",
    "example.org/docs/x.html": "# X\n\n## Why\n\nBecause.",
}


@pytest.fixture(scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    async with open_indexed_desk(tmp_path_factory.mktemp("data"), reader__rate_limit_calls=1000) as desk:
        await desk.engine.create_collection(ANN.tenant, "acme")
        sources = [TextSource(name, text, name) for name, text in PAGES.items()]
        statuses = await desk.engine.ingest(ANN.tenant, [NewDocument(source, "acme") for source in sources])
        with anyio.fail_after(PATIENCE_SECONDS):
            while any(status.status in IN_PROGRESS for status in statuses):
                statuses = await desk.engine.wait(ANN.tenant, [status.id for status in statuses], seconds=5)
        yield desk


@pytest.fixture(scope="module", params=["indexed", "converted"])
async def doc_id(desk: Desk, request: pytest.FixtureRequest) -> str:
    """The same document, in the collection and as a handle."""
    if request.param == "indexed":
        return ID
    content = base64.b64encode(COPY.encode()).decode()
    converted = await ask(desk, "convert_docx", ANN, content_base64=content, file_name="copy.md")
    return str(converted["handle"])


async def get(desk: Desk, document_id: str, **arguments: Any) -> tuple[str, str | None]:
    """The text of a page without its footer, and the cursor of the next."""
    answer = await desk.call("get_document", {"document_id": document_id, **arguments}, caller=ANN)
    assert not answer.is_error, answer.text
    return answer.text.rpartition("\n\n(Source:")[0], answer.result["content"][0]["_meta"].get("nextCursor")


async def test_reading_starts_at_a_chunk_and_pages_on_from_there(desk: Desk) -> None:
    window = await ask(desk, "read_chunk_window", ANN, doc_id=ID, anchor_chunk_id=f"{ID}#c3", radius=0)
    reference, arguments = f"{ID}#c3", dict[str, Any]()
    whole = ""
    while True:
        text, cursor = await get(desk, reference, max_tokens=200, **arguments)
        whole += text + "\n\n"
        if cursor is None:
            break
        arguments = {"cursor": cursor}
    lead, _, rest = whole.partition("\n\n")
    assert lead == "[… COPY › Parameters]"
    assert rest.startswith(window["chunks"][0]["text"][:100])
    top, _ = await get(desk, ID, max_tokens=20_000)
    assert top.split()[-len(rest.split()) :] == rest.split()
    assert "zebra 0" not in rest


@pytest.mark.parametrize(
    ("reference", "start"),
    [
        (f"{ID}#c1", "# COPY"),
        (f"{ID}#PARAMS", "## Parameters"),
        (f"{ID}#params", "## Parameters"),
        (f"{ID}#parameters", "## Parameters"),
        (f"{ID}#Parameters", "## Parameters"),
        (f"{ID}#notes", "## Notes"),
        (f"{ID}#", "# COPY"),
        (f"techdoc://{ID}#PARAMS", "## Parameters"),
        (f"r2r://document/{ID}", "# COPY"),
        ("acme/vacuum/../guide/./copy.md#notes", "## Notes"),
        ("https://example.org/docs/x.html", "# X"),
        ("https://example.org/docs/x.html#why", "## Why"),
    ],
)
async def test_a_document_is_read_from_where_a_reference_points(desk: Desk, reference: str, start: str) -> None:
    text, _ = await get(desk, reference)
    assert text.startswith(start)


@pytest.mark.parametrize(
    ("reference", "hint"),
    [
        (f"{ID}#c999", r"has no chunk 'c999'. Its chunks are c1 to c\d+;"),
        (
            f"{ID}#c0",
            "has no section or anchor 'c0'. Its sections are 'copy', 'parameters', 'notes', 'SQL-COPY', 'PARAMS'",
        ),
        (f"{ID}#PARMAS", "has no section or anchor 'PARMAS'. Did you mean 'PARAMS'"),
        (f"{ID}#note", "Did you mean 'notes'"),
        ("acme/guide/coppy.md#c1", f"There is no document .* Did you mean '{ID}'"),
        ("https://example.org/docs/y.html", "There is no document"),
        ("doc-" + "b" * 26, "There is no document .* read_doc_section reads handles"),
        ("https://[::1/x", "There is no document"),
    ],
)
async def test_what_a_reference_misses_is_said_and_what_exists(desk: Desk, reference: str, hint: str) -> None:
    assert re.search(hint, await failure(desk, "get_document", ANN, document_id=reference))


async def test_sections_are_read_by_id_anchor_and_chunk(desk: Desk, doc_id: str) -> None:
    for arguments in (
        {"doc_id": doc_id, "section_id": "parameters"},
        {"doc_id": doc_id, "section_id": "PARAMS"},
        {"doc_id": doc_id, "section_id": "c3"},
        {"doc_id": doc_id, "section_id": f"{doc_id}#c3"},
        {"doc_id": f"{doc_id}#c3"},
        {"doc_id": f"{doc_id}#PARAMS"},
        {"doc_id": f"{doc_id}#c1", "section_id": "parameters"},
    ):
        section = await ask(desk, "read_doc_section", ANN, **arguments)
        assert (section["doc_id"], section["section_id"]) == (doc_id, "parameters")
    with pytest.raises(InvalidArguments, match="section_id"):
        await desk.call("read_doc_section", {"doc_id": doc_id}, caller=ANN)
    assert "has no chunk 'c77'" in await failure(desk, "read_doc_section", ANN, doc_id=f"{doc_id}#c77")
    metadata = await ask(desk, "read_doc_metadata", ANN, doc_id=f"{doc_id}#c3", under="PARAMS")
    assert [section["id"] for section in metadata["sections"]] == ["parameters"]


async def test_sections_and_windows_are_read_by_the_url_of_a_page(desk: Desk) -> None:
    url = "https://example.org/docs/x.html"
    for doc_id in (url, "acme/example.org/docs/x.html"):
        section = await ask(desk, "read_doc_section", ANN, doc_id=doc_id, section_id=f"{url}#why")
        assert section["section_id"] == "why"
        window = await ask(desk, "read_chunk_window", ANN, doc_id=doc_id, anchor_chunk_id=f"{url}#c1")
        assert window["chunks"][0]["chunk_id"] == "acme/example.org/docs/x.html#c1"


async def test_windows_take_long_and_short_chunk_ids(desk: Desk, doc_id: str) -> None:
    shown = f"{doc_id}#c3" if doc_id == ID else "c3"
    for arguments in (
        {"doc_id": doc_id, "anchor_chunk_id": "c3"},
        {"doc_id": doc_id, "anchor_chunk_id": f"{doc_id}#c3"},
        {"doc_id": f"{doc_id}#c3", "anchor_chunk_id": f"{doc_id}#c3"},
        {"doc_id": f"{doc_id}#c3"},
    ):
        window = await ask(desk, "read_chunk_window", ANN, radius=0, **arguments)
        assert [chunk["chunk_id"] for chunk in window["chunks"]] == [shown]
    with pytest.raises(InvalidArguments, match="anchor_chunk_id"):
        await desk.call("read_chunk_window", {"doc_id": doc_id}, caller=ANN)
    for anchor in ("c999", f"{doc_id}#c999", "acme/vacuum.md#c1"):
        said = await failure(desk, "read_chunk_window", ANN, doc_id=doc_id, anchor_chunk_id=anchor)
        assert "Its chunks are c1 to c" in said


async def test_passages_of_a_document_have_ids_that_open(desk: Desk, doc_id: str) -> None:
    found = await ask(desk, "doc_local_search", ANN, doc_id=f"{doc_id}#c1", query="zebra 7")
    chunk_id = found["results"][0]["chunk_id"]
    window = await ask(desk, "read_chunk_window", ANN, doc_id=doc_id, anchor_chunk_id=chunk_id, radius=0)
    assert "zebra 7" in window["chunks"][0]["text"]
    if doc_id == ID:
        assert "zebra 7" in (await get(desk, chunk_id))[0]


async def test_every_reader_tool_keeps_to_a_budget(desk: Desk, doc_id: str) -> None:
    section = await ask(desk, "read_doc_section", ANN, doc_id=doc_id, section_id="parameters", max_tokens=100)
    assert len(section["text"]) <= 400
    rest = await ask(
        desk,
        "read_doc_section",
        ANN,
        doc_id=doc_id,
        section_id="parameters",
        max_tokens=100,
        cursor=section["next_cursor"],
    )
    assert rest["text"] not in section["text"]
    pages = await ask(desk, "read_doc_pages", ANN, doc_id=doc_id, page_start=1, page_end=1, max_tokens=100)
    assert pages["truncated"]
    window = await ask(desk, "read_chunk_window", ANN, doc_id=doc_id, anchor_chunk_id="c4", radius=1, max_tokens=100)
    assert window["truncated"]
    assert window["chunks"][0]["chunk_id"].endswith("c4")
    found = await ask(desk, "doc_local_search", ANN, doc_id=doc_id, query="zebra", max_tokens=100)
    assert (len(found["results"]), found["omitted"]) == (1, 4)


async def test_links_in_texts_open_or_are_dropped(desk: Desk) -> None:
    expected = "see [VACUUM](acme/vacuum.md), itself and nothing."
    assert expected in (await get(desk, ID))[0]
    assert expected in (await ask(desk, "read_doc_section", ANN, doc_id=ID, section_id="copy"))["text"]
    assert expected in (await ask(desk, "read_doc_pages", ANN, doc_id=ID, page_start=1, page_end=1))["text"]
    window = await ask(desk, "read_chunk_window", ANN, doc_id=f"{ID}#c1", radius=0)
    assert expected in window["chunks"][0]["text"]
    assert "[VACUUM](acme/vacuum.md#FULL)" in (await get(desk, f"{ID}#notes"))[0]
    assert (await get(desk, "acme/vacuum.md"))[0].startswith("# VACUUM")


def test_every_chunk_is_found_in_the_text_of_its_document() -> None:
    rows = "".join(f"<tr><td>row {n}</td><td>{'what it means ' * 12}</td></tr>" for n in range(20))
    code = "\n".join(f"call_{n % 7}(argument_{n % 5}, 'text {n}')" for n in range(120))
    items = "".join(f"<li>item {n}<ul><li>{'nested words ' * 20}{n}</li></ul></li>" for n in range(12))
    same = "<p>The same sentence stands in every section of the page.</p>"
    page = f"""<title>Page</title><h1>Page</h1><p>Short.</p><h2 id=t>Table</h2>{same}
        <table><tr><th>Name</th><th>Meaning</th></tr>{rows}</table>
        <h2>Code</h2>{same}<pre>{code}</pre><h2>List</h2>{same}<ul>{items}</ul>
        <h2>Prose</h2>{same}<p>{" ".join(f"Sentence {n} is about the number {n}." for n in range(150))}</p>
        <h2>Table</h2>{same}<table><tr><th>Name</th><th>Meaning</th></tr>{rows}</table>"""
    document = html.convert(SourceFile(page.encode(), "page.html"))
    pieces = chunks(document.blocks)
    text = to_markdown(document)
    assert len(pieces) > 20
    positions = []
    with PackedDocument.of(pack(document, pieces)) as packed:
        for piece in pieces:
            place = locate(packed, "page", piece.id, text)
            positions.append(place.start)
            shown = place.lead.partition("]\n\n")[2] + text[place.start :]
            at = squeeze(shown).find(squeeze(piece.text)[:80])
            assert 0 <= at < 60, piece.id
    assert positions == sorted(set(positions))


def squeeze(text: str) -> str:
    """A text without blanks, as a nested item is indented only in its document."""
    return re.sub(r"\s+", "", text)
