"""Reading a document some blocks at a time, from wherever one begins."""

from __future__ import annotations

from typing import Any

import pytest

from refdesk.console.params import ReadParams
from refdesk.console.reader_page import MAX_BLOCKS, MAX_CHARACTERS, MAX_OUTLINE_ENTRIES, describe_contents, read
from refdesk.documents.jobs import chunk_and_pack
from refdesk.documents.model import Block, Code, Document, Heading, ListItem, Page, Paragraph, Place, table_from_rows
from refdesk.documents.packed_document import PackedDocument
from refdesk.errors import DocumentNotFound, InvalidArguments


def shelf_of(*blocks: Block, pages: int = 0) -> PackedDocument:
    return PackedDocument.of(chunk_and_pack(Document("Book", blocks, pages=tuple(map(Page, range(1, pages + 1))))))


def ask(shelf: PackedDocument, **params: Any) -> dict[str, Any]:
    return read(shelf, ReadParams.model_validate({"id": "book.md", **params}))


def texts(answer: dict[str, Any]) -> list[str]:
    return ["".join(part["text"] for part in block.get("inlines") or block["text"]) for block in answer["blocks"]]


def hits(answer: dict[str, Any]) -> list[str]:
    return texts({"blocks": [block for block in answer["blocks"] if block.get("hit")]})


LONG = [Paragraph(f"Paragraph {n}.") for n in range(3 * MAX_BLOCKS + 7)]


def chapter(number: int) -> list[Block]:
    return [Heading(f"Chapter {number}", 1), *(Paragraph(f"Part {n} of {number}. " * 9) for n in range(6))]


CHAPTERS = [block for number in range(1, 5) for block in chapter(number)]


def test_going_on_reads_every_block_once_and_back_again() -> None:
    with shelf_of(*LONG) as shelf:
        answer = ask(shelf)
        assert "previous" not in answer
        found, previous = texts(answer), []
        while "next" in answer:
            assert len(answer["blocks"]) <= MAX_BLOCKS
            answer = ask(shelf, cursor=answer["next"])
            found += texts(answer)
            previous.append(answer["previous"])
        assert found == [block.text for block in LONG]
        assert texts(ask(shelf, cursor=previous[-1])) == [block.text for block in LONG[2 * MAX_BLOCKS : 3 * MAX_BLOCKS]]
        assert texts(ask(shelf, cursor=previous[0])) == [block.text for block in LONG[:MAX_BLOCKS]]


def test_an_answer_is_bounded_by_its_length_too() -> None:
    with shelf_of(*(Paragraph("x" * 40_000) for _ in range(20))) as shelf:
        answer = ask(shelf)
        assert len(answer["blocks"]) * 40_000 <= MAX_CHARACTERS + 40_000
        assert answer["next"] == str(len(answer["blocks"]))


def test_a_section_is_read_with_what_is_below_it_and_reading_goes_on_behind_it() -> None:
    with shelf_of(*CHAPTERS) as shelf:
        answer = ask(shelf, section="chapter-2")
        assert answer["section"] == "chapter-2"
        assert answer["blocks"][0] == {
            "type": "heading",
            "level": 1,
            "id": "chapter-2",
            "text": [{"text": "Chapter 2"}],
        }
        assert len(answer["blocks"]) == 7
        assert ask(shelf, cursor=answer["next"])["section"] == "chapter-3"
        assert ask(shelf, cursor=answer["previous"])["section"] == "chapter-1"
        with pytest.raises(InvalidArguments, match="no section 'chapter-22'; did you mean 'chapter-2'"):
            ask(shelf, section="chapter-22")


def test_a_page_is_read_by_its_number() -> None:
    blocks = [Paragraph(f"On page {n}.", place=Place(n)) for n in (1, 1, 2, 4)]
    with shelf_of(*blocks, pages=4) as shelf:
        assert (texts(ask(shelf, page=1)), ask(shelf, page=1)["page"]) == (["On page 1.", "On page 1."], 1)
        assert ask(shelf, page=2)["page"] == 2
        assert texts(ask(shelf, page=3)) == []
        assert (texts(ask(shelf, page=4)), ask(shelf, page=4)["page"]) == (["On page 4."], 4)
        with pytest.raises(InvalidArguments, match="the document has 4 pages"):
            ask(shelf, page=5)


def test_the_blocks_of_a_chunk_are_marked_among_those_around_it() -> None:
    with shelf_of(*CHAPTERS) as shelf:
        chunk = next(c for c in shelf.window("c1", 0, 99) or () if "Part 2 of 3." in c.text)
        answer = ask(shelf, chunk=f"book.md#{chunk.id}", before=1, after=1)
        assert answer["section"] == "chapter-3"
        found = hits(answer)
        assert found
        assert all(text.strip() in chunk.text for text in found)
        assert len(found) < len(answer["blocks"])
        number = int(chunk.id[1:])
        assert answer["chunk_ids"] == [f"book.md#c{n}" for n in (number - 1, number, number + 1)]
        with pytest.raises(DocumentNotFound, match="has no chunk"):
            ask(shelf, chunk="book.md#c999")


def test_every_chunk_of_every_kind_of_block_is_found_again() -> None:
    rows = [["Number", "Square"], *([f"number {n}", f"square {n * n}"] for n in range(300))]
    blocks: list[Block] = [
        Heading("Long things", 1),
        Paragraph(" ".join(f"Sentence {n} says something of its own." for n in range(200))),
        Heading("Code", 2),
        Code("\n".join(f"value_{n} = compute({n})  # line {n}" for n in range(200)), "python"),
        Heading("Table", 2),
        table_from_rows(rows),
        Heading("List", 2),
        *(ListItem(f"Item {n} of the list, which is not short.") for n in range(60)),
    ]
    with shelf_of(*blocks) as shelf:
        chunks = shelf.window("c1", 0, shelf.about.chunks) or []
        assert len(chunks) > 20
        for chunk in chunks:
            answer = ask(shelf, chunk=f"book.md#{chunk.id}", before=0, after=0)
            assert '"hit": True' in repr(answer["blocks"]).replace("'", '"'), chunk.text


def test_the_same_words_elsewhere_are_not_taken_for_the_chunk() -> None:
    same = Paragraph("See also.")
    blocks = [same, *(Paragraph(f"Owl number {n} sits in tree number {n} and waits. " * 12) for n in range(9)), same]
    with shelf_of(*blocks) as shelf:
        last = (shelf.window("c1", 0, 99) or [])[-1]
        answer = ask(shelf, chunk=f"book.md#{last.id}", before=0, after=0)
        assert hits(answer)[-1] == "See also."
        assert len(hits(answer)) == len(answer["blocks"])


def test_a_chunk_far_from_those_around_it_is_shown_itself() -> None:
    with shelf_of(*(Paragraph(f"{n}") for n in range(5 * MAX_BLOCKS))) as shelf:
        last = (shelf.window("c1", 0, 99) or [])[-1]
        alone = ask(shelf, chunk=f"book.md#{last.id}", before=0, after=0)
        answer = ask(shelf, chunk=f"book.md#{last.id}", before=10, after=0)
        assert len(answer["chunk_ids"]) > 1
        assert hits(answer) == hits(alone) != []


def test_the_contents_are_bounded() -> None:
    with shelf_of(*(Heading(f"Chapter {n}", 1) for n in range(MAX_OUTLINE_ENTRIES + 1))) as shelf:
        found = describe_contents(shelf)
        assert [entry["id"] for entry in found["outline"]] == [f"chapter-{n}" for n in range(MAX_OUTLINE_ENTRIES)]
        assert found["outline_omitted"] == 1
        assert found["pages"] == shelf.about.pages


def test_a_document_without_blocks_can_be_read() -> None:
    with shelf_of() as shelf:
        assert ask(shelf) == {"blocks": [], "section": None, "page": None, "chunk_ids": []}
        assert ask(shelf, cursor="500")["blocks"] == []
