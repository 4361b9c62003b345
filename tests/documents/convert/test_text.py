from __future__ import annotations

from pathlib import Path

import pytest

from refdesk.documents.convert import text
from refdesk.documents.convert.source import SourceFile
from refdesk.documents.model import Block, Code, Heading, ListItem, Paragraph, get_page
from refdesk.errors import CannotConvert

NOTES = Path(__file__).parents[2] / "files" / "text" / "notes.txt"


def blocks(content: str) -> tuple[Block, ...]:
    return text.convert(SourceFile(content.encode(), "page.txt")).blocks


def test_the_structure_that_its_author_made_visible_is_read() -> None:
    document = text.convert(SourceFile(NOTES.read_bytes(), "notes.txt"))
    assert document.title == "Release notes"
    assert document.blocks == (
        Heading("Release notes", 1),
        Heading("What is new", 2),
        Paragraph("This release reads plain text. Lines of a paragraph belong together."),
        ListItem("first thing goes on"),
        ListItem("second thing"),
        ListItem("below it", depth=1),
        ListItem("one", ordered=True, number=1),
        ListItem("two", ordered=True, number=2),
        Code('make install\nmake test && echo "$?" > out.log\n\nls -l'),
        Heading("KNOWN PROBLEMS", 3),
        Paragraph("Nothing is perfect."),
    )


def test_a_numbered_line_by_itself_is_a_heading_unless_another_follows() -> None:
    assert blocks("1. Introduction\n\nWords.\n\n1.1 Scope\n\nMore words.\n") == (
        Heading("1. Introduction", 1),
        Paragraph("Words."),
        Heading("1.1 Scope", 2),
        Paragraph("More words."),
    )
    assert not any(isinstance(block, Heading) for block in blocks("1. Mix it\n\n2. Bake it\n\n3. Eat it.\n"))


def test_a_shout_in_the_text_is_no_heading() -> None:
    assert blocks("STOP!\n\nWords.\n") == (Paragraph("STOP!"), Paragraph("Words."))


def test_prose_that_is_set_in_is_no_code() -> None:
    prose = "     It was the best of times, it was the worst of times, it was the age of wisdom.\n"
    assert isinstance(blocks("Dickens:\n\n" + prose + "\nA book.\nBy him.\n")[1], Paragraph)


def test_a_margin_around_the_whole_text_makes_no_code() -> None:
    assert blocks("      All of it.\n\n      is set in\n\n      by six\n") == (
        Paragraph("All of it."),
        Paragraph("is set in"),
        Paragraph("by six"),
    )


def test_form_feeds_part_pages() -> None:
    document = text.convert(SourceFile(b"one\n\ftwo\n\n\fthree\n\f", "page.txt"))
    assert [get_page(block) for block in document.blocks] == [1, 2, 3]
    assert [page.number for page in document.pages] == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "language"),
    [("a/b.PY", "python"), ("x.tsx", "tsx"), ("Makefile", "makefile"), ("main.c", "c"), ("run.sh", "bash")],
)
def test_source_code_is_one_block_in_its_language(name: str, language: str) -> None:
    content = b"\n# TITLE\r\n\tx = 1\n\n\ny\n"
    document = text.convert(SourceFile(content, name))
    assert document.blocks == (Code("# TITLE\n\tx = 1\n\n\ny", language),)
    assert document.title == name


def test_an_old_encoding_is_read_with_a_warning() -> None:
    document = text.convert(SourceFile("Größe".encode("cp1252"), "a.txt"))
    assert document.blocks == (Paragraph("Größe"),)
    assert len(document.warnings) == 1


@pytest.mark.parametrize("data", [b"", b" \n\n\t\n", b"\f\f"])
def test_a_file_without_text_is_refused(data: bytes) -> None:
    with pytest.raises(CannotConvert, match="holds no text"):
        text.convert(SourceFile(data, "a.txt"))


def test_a_file_that_is_too_large_is_refused() -> None:
    with pytest.raises(CannotConvert, match="split it"):
        text.convert(SourceFile(b"x" * (text.MAX_CHARACTERS + 1), "a.txt"))
