"""Titles: stated by the file, shown by its first page, or the first heading."""

from __future__ import annotations

import pytest

from refdesk.documents.convert.pdf import convert
from refdesk.documents.convert.source import PageRange, SourceFile
from refdesk.documents.model import Heading
from tests.documents.convert.pdf.made import convert_pdf, lines, pdf, text

TITLE_PAGE = "\n".join(
    (
        text(50, 450, "The Lantern Handbook", font="F2", size=24),
        text(50, 300, "Ada Keeper, Harbour Office", font="F2", size=16),
        text(50, 250, "Dec 17, 2022", font="F2", size=16),
    )
)
CONTENTS = text(50, 550, "Table of Contents", font="F2", size=20)


def chapter(name: str) -> str:
    body = lines(*["The keeper lights the lantern at dusk, and not before."] * 12, top=500)
    return text(50, 550, name, font="F2", size=16) + "\n" + body


def book(*pages: str, stated: str = "", outlined: int) -> bytes:
    """Pages, and an outline of two chapters that start at the page with this place and at the next."""
    first = 10 + 4
    entries = [
        "<< /First 11 0 R /Last 12 0 R /Count 2 >>",
        f"<< /Title (Lighting) /Parent 10 0 R /Next 12 0 R /Dest [{first + 2 * outlined} 0 R /Fit] >>",
        f"<< /Title (Watching) /Parent 10 0 R /Prev 11 0 R /Dest [{first + 2 * outlined + 2} 0 R /Fit] >>",
        f"<< /Title ({stated}) >>",
    ]
    return pdf(pages, objects=entries, catalog="/Outlines 10 0 R", trailer="/Info 13 0 R")


CHAPTERS = (chapter("Lighting"), chapter("Watching"))


def headings(data: bytes) -> list[str]:
    return [block.text for block in convert_pdf(data).blocks if isinstance(block, Heading)]


def test_the_title_that_a_file_states_is_believed() -> None:
    assert convert_pdf(book(TITLE_PAGE, *CHAPTERS, stated="Stated", outlined=1)).title == "Stated"


@pytest.mark.parametrize("stated", ["", "Microsoft Word - final.doc", "untitled", "main.tex"])
def test_without_a_sensible_one_the_title_is_the_largest_text_of_the_first_page(stated: str) -> None:
    assert convert_pdf(book(TITLE_PAGE, *CHAPTERS, stated=stated, outlined=1)).title == "The Lantern Handbook"


def test_some_pages_of_a_book_have_the_title_of_the_book() -> None:
    data = book(TITLE_PAGE, *CHAPTERS, outlined=1)
    assert convert(SourceFile(data, "book.pdf", pages=PageRange(3, 3))).title == "The Lantern Handbook"


def test_a_long_title_is_taken_whole() -> None:
    page = lines("The Lantern", "Handbook", top=450, font="F2", size=24, step=28)
    assert convert_pdf(book(page, *CHAPTERS, outlined=1)).title == "The Lantern Handbook"


def test_a_heading_above_a_list_of_contents_is_no_title() -> None:
    assert convert_pdf(book(CONTENTS, *CHAPTERS, outlined=1)).title == "Lighting"


def test_author_and_date_on_a_title_page_are_no_headings_where_an_outline_names_those() -> None:
    assert headings(book(TITLE_PAGE, *CHAPTERS, outlined=1)) == ["Lighting", "Watching"]


def test_a_first_page_that_the_outline_names_is_no_title_page() -> None:
    data = book(*CHAPTERS, outlined=0)
    assert headings(data) == ["Lighting", "Watching"]
    assert convert_pdf(data).title == "Lighting"


def test_a_file_without_large_type_and_headings_is_called_by_its_name() -> None:
    assert convert_pdf(pdf([lines("Only a line of text, and another one.")]), "notes.pdf").title == "notes"
