from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from refdesk.documents.convert import rst
from refdesk.documents.convert.source import SourceFile
from refdesk.documents.model import Block, Code, Document, Heading, ListItem, Paragraph, Picture, Span, Table
from refdesk.errors import CannotConvert
from tests.waiting import PATIENCE_SECONDS

MANUAL = Path(__file__).parents[2] / "files" / "text" / "manual.rst"


def convert_rst(text: str) -> Document:
    return rst.convert(SourceFile(text.encode(), "page.rst"))


def blocks(text: str) -> tuple[Block, ...]:
    return convert_rst(text).blocks


@pytest.fixture(scope="module")
def manual() -> Document:
    return rst.convert(SourceFile(MANUAL.read_bytes(), "manual.rst"))


def join_texts(document: Document) -> str:
    return "\n".join(getattr(block, "text", "") for block in document.blocks)


def test_a_manual_keeps_headings_tables_lists_and_figures(manual: Document) -> None:
    assert manual.title == "Title"
    assert [block for block in manual.blocks if isinstance(block, Heading)] == [
        Heading("Title", 1, anchor="title"),
        Heading("Sub", 2, anchor="sub"),
    ]
    tables = [block.grid() for block in manual.blocks if isinstance(block, Table)]
    assert tables == [[["a", "b"], ["1", "2"]], [["a", "b"], ["1", "2"]]]
    assert ListItem("nested", depth=1) in manual.blocks
    assert Picture("The caption") in manual.blocks


def test_directives_are_known_whatever_the_line_ends() -> None:
    assert blocks("Text\r\n\r\n.. unseen-before::\r\n\r\n   Inside\r\n") == (Paragraph("Text"), Paragraph("Inside"))


def test_code_of_sphinx_keeps_its_language_whatever_its_options(manual: Document) -> None:
    assert Code("x = 1\n\ny = 2", "python") in manual.blocks


def test_roles_of_sphinx_show_what_a_reader_would_see(manual: Document) -> None:
    paragraph = next(block for block in manual.blocks if isinstance(block, Paragraph) and "Text with" in block.text)
    assert paragraph.text == "Text with foo and C and lit and x |today|."
    assert [paragraph.text[span.start : span.end] for span in paragraph.spans] == ["C", "lit", "x"]


def test_notices_are_quotes_with_their_version(manual: Document) -> None:
    quotes = [block.text for block in manual.blocks if isinstance(block, Paragraph) and block.role == "quote"]
    assert quotes == [
        "Note",
        "hi there",
        "New in version 3.1",
        "It came.",
        "Deprecated since version 2.0",
        "Use y.",
    ]


def test_directives_that_nobody_knows_keep_their_content(manual: Document) -> None:
    text = join_texts(manual)
    for kept in ("foo(a, b)", "foo(c)", "Does it.", "bar", "content bold", "One", "first", "Title B"):
        assert kept in text
    for markup in ("::", ":maxdepth:", "Unknown", ":noindex:", "system-message", ":opt:"):
        assert markup not in text


def test_nothing_is_brought_in_from_elsewhere(manual: Document) -> None:
    assert "root:" not in join_texts(manual)
    assert "What `include` directives bring in from elsewhere is left out." in manual.warnings


def test_a_footnote_stands_in_the_line_of_its_mark(manual: Document) -> None:
    assert Paragraph("[1] the note", (), "footnote") in manual.blocks


def test_broken_markup_is_text_and_says_nothing_on_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    assert blocks("Title\n==\n\nA ``b and *c and `d and e_ and |f|.\n")[-1] == Paragraph(
        "A ``b and *c and `d and e_ and |f|."
    )
    assert capfd.readouterr() == ("", "")


def test_links_and_literal_blocks_are_kept() -> None:
    assert blocks("See `here <https://a.example/>`_::\n\n   x\n     y\n") == (
        Paragraph("See here:", (Span(4, 8, "link", "https://a.example/"),)),
        Code("x\n  y"),
    )


def test_sphinx_options_do_not_lose_a_formula() -> None:
    assert blocks(".. math::\n   :label: eq\n\n   a^2\n") == (Code("a^2"),)


@pytest.mark.parametrize("text", ["", "\n\n", ".. a comment\n"])
def test_a_file_without_text_is_refused(text: str) -> None:
    with pytest.raises(CannotConvert, match="holds no text"):
        convert_rst(text)


def test_a_file_that_nests_too_deep_is_refused() -> None:
    with pytest.raises(CannotConvert, match="too deep"):
        convert_rst("".join(" " * depth + "x\n\n" for depth in range(800)))


@pytest.mark.parametrize("text", ["x\n" * rst.MAX_CHARACTERS, "x" * (rst.MAX_LINE + 1)])
def test_a_file_that_would_take_too_long_is_refused(text: str) -> None:
    with pytest.raises(CannotConvert, match="characters"):
        convert_rst(text)


def test_docutils_is_imported_only_when_it_is_used() -> None:
    program = (
        "import sys, refdesk.documents.jobs; from refdesk.documents.convert import convert\n"
        "convert(b'# Title', 'page.md'); sys.exit('docutils' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=PATIENCE_SECONDS).returncode == 0
