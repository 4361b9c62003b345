"""Our DoclingDocument JSON is what docling-core itself accepts, and comes back as the document it was."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest
from docling_core.types.doc.document import DoclingDocument
from hypothesis import given, settings

from refdesk.documents.convert.docling import LANGUAGES, VERSION, convert, to_json
from refdesk.documents.convert.source import SourceFile
from refdesk.documents.model import Document, Heading, ListItem, Paragraph, Place, Table
from refdesk.errors import CannotConvert
from tests.documents.blocks import EVERY_KIND, documents


def read_by_docling(document: Document) -> DoclingDocument:
    return DoclingDocument.model_validate_json(to_json(document))


def test_docling_reads_a_document_of_every_kind_of_block() -> None:
    read = read_by_docling(EVERY_KIND)
    labels = [item.label.value for item, _ in read.iterate_items() if hasattr(item, "label")]
    for label in ("title", "text", "section_header", "list_item", "code", "table", "footnote", "picture"):
        assert label in labels
    assert read.version == DoclingDocument(name="new").version == VERSION
    assert read.origin is not None
    assert read.origin.binary_hash == int("ab" * 8, 16)


def test_blocks_keep_their_pages_and_boxes() -> None:
    read = read_by_docling(EVERY_KIND)
    assert {number: (page.size.width, page.size.height) for number, page in read.pages.items()} == {
        1: (595, 842),
        2: (595, 842),
    }
    table = read.tables[0]
    assert (table.prov[0].page_no, table.prov[0].bbox.as_tuple()) == (2, (72, 130, 400, 200))


def test_docling_sees_our_table_with_its_spans_and_caption() -> None:
    read = read_by_docling(EVERY_KIND)
    table = read.tables[0]
    assert [[cell.text for cell in row] for row in table.data.grid] == [["Name", "Both", "Both"], ["a|b", "1", "2"]]
    assert table.caption_text(read) == "Table 1: sizes"


def test_docling_writes_the_same_words_in_its_own_markdown() -> None:
    markdown = read_by_docling(EVERY_KIND).export_to_markdown()
    for words in ("# The manual", "## Install", "1. first", "```", "Table 1: sizes"):
        assert words in markdown


def test_every_language_name_is_one_that_the_schema_knows() -> None:
    from docling_core.types.doc.labels import CodeLanguageLabel

    assert set(LANGUAGES) <= {label.value for label in CodeLanguageLabel}


@settings(max_examples=150, deadline=None)
@pytest.mark.slow
@given(documents)
def test_any_document_is_valid_and_comes_back_as_it_was(document: Document) -> None:
    content = to_json(document)
    DoclingDocument.model_validate_json(content)
    back = convert(SourceFile(content, "back.json"))
    whole_page = (0.0, 0.0, 600.0, 800.0)
    expected = [
        replace(block, place=Place(block.place.page, block.place.box or whole_page) if block.place else None)
        for block in document.blocks
    ]
    assert list(back.blocks) == expected
    assert (back.title, back.pages) == (document.title, document.pages)


def test_a_document_built_by_docling_is_brought_in() -> None:
    made = DoclingDocument(name="made")
    made.add_title("Guide")
    made.add_heading("Setup", level=1)
    outer = made.add_list_group()
    item = made.add_list_item("one", enumerated=True, marker="1.", parent=outer)
    inner = made.add_list_group(parent=item)
    made.add_list_item("deep", parent=inner)
    group = made.add_inline_group()
    from docling_core.types.doc.labels import DocItemLabel

    made.add_text(DocItemLabel.TEXT, "Call", parent=group)
    made.add_code("run()", parent=group)
    document = convert(SourceFile(orjson.dumps(made.export_to_dict()), "made.json"))
    assert document.title == "Guide"
    assert list(document.blocks[:2]) == [Heading("Guide", 1), Heading("Setup", 2)]
    assert [(b.text, b.depth) for b in document.blocks if isinstance(b, ListItem)] == [("one", 0), ("deep", 1)]
    paragraph = document.blocks[-1]
    assert isinstance(paragraph, Paragraph)
    assert paragraph.text == "Call run()"
    assert [(span.kind, paragraph.text[span.start : span.end]) for span in paragraph.spans] == [("code", "run()")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not JSON"),
        (b"[]", "no DoclingDocument"),
        (b'{"schema_name": "Other"}', "no DoclingDocument"),
        (b'{"schema_name": "DoclingDocument"}', "does not follow its schema"),
        (b'{"schema_name": "DoclingDocument", "body": {"children": [{"$ref": "#/texts/9"}]}, "texts": []}', "schema"),
        (b'{"schema_name": "DoclingDocument", "body": {"children": [{"$ref": "nonsense"}]}}', "schema"),
    ],
)
def test_json_that_is_no_docling_document_gets_a_clear_error(content: bytes, said: str) -> None:
    with pytest.raises(CannotConvert, match=said):
        convert(SourceFile(content, "x.json"))


def test_a_loop_of_references_ends() -> None:
    group = {"self_ref": "#/groups/0", "label": "list", "name": "list", "children": [{"$ref": "#/groups/0"}]}
    content = {
        "schema_name": "DoclingDocument",
        "name": "x",
        "body": {"children": [{"$ref": "#/groups/0"}]},
        "groups": [group],
    }
    assert convert(SourceFile(orjson.dumps(content), "x.json")).blocks == ()


def test_a_cell_that_claims_a_billion_columns_is_refused() -> None:
    content = orjson.loads(to_json(Document("t", (Table((), 1, 1),))))
    content["tables"][0]["data"] = {
        "num_rows": 1,
        "num_cols": 10**9,
        "table_cells": [],
    }
    with pytest.raises(CannotConvert, match="schema"):
        convert(SourceFile(orjson.dumps(content), "x.json"))
