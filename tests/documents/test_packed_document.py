"""A shelved document is the document, and gives out parts of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings

from refdesk.documents.export.markdown import block_to_markdown
from refdesk.documents.jobs import chunk_and_pack
from refdesk.documents.model import Block, Chunk, Document, Heading, Paragraph, list_sections
from refdesk.documents.packed_document import ESTIMATED_PAGE, InvalidPackedDocument, PackedDocument, pack
from tests.documents.blocks import EVERY_KIND, documents


def chapter(number: int) -> list[Block]:
    sentences = [Paragraph(f"Sentence {n} of chapter {number} about owls. " * 8) for n in range(8)]
    return [Heading(f"Chapter {number}", 1), *sentences]


BOOK = Document("Book", tuple(block for number in range(1, 9) for block in chapter(number)), name="book.md")


@settings(max_examples=50, deadline=None)
@given(documents)
def test_what_is_packed_comes_back(document: Document) -> None:
    with PackedDocument.of(chunk_and_pack(document)) as shelf:
        assert shelf.document() == document
        assert [s.id for s in shelf.sections()] == [s.id for s in list_sections(document.blocks)]


def test_what_is_known_without_reading() -> None:
    with PackedDocument.of(chunk_and_pack(EVERY_KIND)) as shelf:
        about = shelf.about
        assert (about.title, about.pages, about.page_kind, about.tables) == ("The manual", 2, "page", 1)
        assert about.tags == ("setup",)
        assert about.warnings == ("Page 3 is a picture.",)
        assert about.preview.startswith("# The manual\n\nSee the [index page]")
        assert [section.id for section in about.outline] == ["the-manual", "install", "all-a"]


def test_a_document_without_pages_is_dealt_into_some() -> None:
    with PackedDocument.of(chunk_and_pack(BOOK)) as shelf:
        assert shelf.about.page_kind == "estimated"
        assert shelf.about.pages > 3
        read: list[Block] = []
        for page in range(1, shelf.about.pages + 1):
            blocks = list(shelf.page_blocks(page))
            assert sum(len(block_to_markdown(block)) for block in blocks) < ESTIMATED_PAGE * 2
            read += blocks
        assert tuple(read) == BOOK.blocks
        assert shelf.document().pages == ()


def test_a_search_finds_words_and_headings_and_takes_no_syntax() -> None:
    with PackedDocument.of(chunk_and_pack(BOOK)) as shelf:
        chunk, around, score = shelf.search("chapter 3 owls", 5)[0]
        assert chunk.section == "chapter-3"
        assert "owls" in around
        assert score > 0
        for query in ('"', "a AND", "NEAR(", "*", "col:x", "", "   "):
            shelf.search(query, 5)


def test_sections_and_chunks_keep_their_anchors() -> None:
    upper: list[Block] = [Heading("A", 1, anchor="top"), Paragraph("Owls. " * 50)]
    lower: list[Block] = [Heading("B", 2, anchor="sub"), Paragraph("Hares.")]
    with PackedDocument.of(chunk_and_pack(Document("Book", (*upper, *lower)))) as shelf:
        assert [section.anchors for section in shelf.sections()] == [("top",), ("top", "sub")]
        (chunk, _, _), *_ = shelf.search("hares", 1)
        assert (chunk.anchors, chunk.anchor) == (("top", "sub"), "sub")


def test_a_document_that_was_cut_up_before_keeps_its_pieces() -> None:
    pieces = [Chunk("c1", "The barn owl.", ("Owls", "Barn"), "barn", 1, 2, 4, ("", "#barn")),
              Chunk("c2", "The tawny owl.", (), "start", None, None, 4)]  # fmt: skip
    with PackedDocument.of(pack(BOOK, pieces=pieces)) as shelf:
        assert shelf.about.chunks == 2
        assert shelf.window("c1", 0, 5) == pieces
        assert [chunk for chunk, _, _ in shelf.search("barn", 5)] == pieces[:1]
        assert shelf.search("sentence", 5) == []
        assert shelf.document().blocks == BOOK.blocks
    with PackedDocument.of(pack(BOOK, pieces=[])) as shelf:
        assert shelf.about.chunks == 0


def test_a_window_stays_within_the_document() -> None:
    with PackedDocument.of(chunk_and_pack(BOOK)) as shelf:
        first = shelf.window("c1", 5, 1)
        assert first is not None
        assert [chunk.id for chunk in first] == ["c1", "c2"]
        for anchor in ("c0", "c99999", "x", "", "c1; DROP TABLE chunks"):
            assert shelf.window(anchor, 1, 1) is None


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + bytes(4000)])
def test_a_file_that_is_no_shelf_is_not_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(content)
    with pytest.raises(InvalidPackedDocument):
        PackedDocument.open(path)
