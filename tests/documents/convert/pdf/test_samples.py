"""What comes out of files that real programs made; their sources stand beside them in tests/files/pdf."""

from __future__ import annotations

import pytest

from refdesk.documents.model import Code, Document, Heading, ListItem, Paragraph, Table
from tests.documents.convert.pdf.made import sample


def headings(document: Document) -> list[tuple[int, str]]:
    return [(block.level, block.text) for block in document.blocks if isinstance(block, Heading)]


def items(document: Document) -> list[tuple[int, bool, str]]:
    return [(block.depth, block.ordered, block.text) for block in document.blocks if isinstance(block, ListItem)]


def paragraphs(document: Document) -> list[Paragraph]:
    return [block for block in document.blocks if isinstance(block, Paragraph)]


def code(document: Document) -> list[str]:
    return [block.text for block in document.blocks if isinstance(block, Code)]


def test_a_latex_manual_has_the_headings_of_its_outline_with_their_levels() -> None:
    assert headings(sample("manual.pdf")) == [
        (1, "Contents"),
        (1, "Chapter 1 Lighting"),
        (2, "1.1 Before dusk"),
        (2, "1.2 The command"),
        (1, "Chapter 2 Watching"),
        (2, "2.1 Signals"),
    ]


def test_a_latex_manual_keeps_its_paragraphs_apart_and_mends_their_hyphenation() -> None:
    texts = [paragraph.text for paragraph in paragraphs(sample("manual.pdf"))]
    first = next(text for text in texts if text.startswith("The keeper"))
    assert "an extraordinarily incomprehensible misunderstanding of responsibilities could follow" in first
    assert "A second paragraph starts with an indented line and is kept apart from the first one." in texts


def test_inline_code_is_a_span_of_its_paragraph() -> None:
    first = next(paragraph for paragraph in paragraphs(sample("manual.pdf")) if paragraph.text.startswith("The keeper"))
    assert [(span.kind, first.text[span.start : span.end]) for span in first.spans] == [("code", "lantern --light")]


def test_a_footnote_is_told_from_the_text() -> None:
    notes = [paragraph.text for paragraph in paragraphs(sample("manual.pdf")) if paragraph.role == "footnote"]
    assert notes == ["1 The short form is explained in the second chapter."]


def test_lists_keep_depth_and_kind() -> None:
    assert items(sample("manual.pdf")) == [
        (0, False, "the wick, which has to be trimmed on every single evening of the whole year before it is lit"),
        (0, False, "the oil"),
        (1, False, "in the tank"),
        (1, False, "in the can"),
        (0, True, "Open the lamp."),
        (0, True, "Close the lamp."),
    ]


def test_code_keeps_indentation_and_empty_lines() -> None:
    (text,) = code(sample("manual.pdf"))
    assert text == "def light(lantern):\n    if lantern.oil:\n\n        lantern.burn()\n    return lantern"


def test_a_ruled_table_is_read_by_its_rules() -> None:
    (table,) = (block for block in sample("manual.pdf").blocks if isinstance(block, Table))
    assert table.grid() == [
        ["Signal", "Meaning", "Seconds"],
        ["one flash", "all is well", "5"],
        ["two flashes", "a ship is near", "10"],
    ]
    assert table.header_rows() == 1


def test_running_heads_page_numbers_and_contents_lists_are_left_out() -> None:
    texts = [paragraph.text for paragraph in paragraphs(sample("manual.pdf"))]
    assert not [text for text in texts if text.isdigit() or "CHAPTER" in text or ". . ." in text]
    assert "And this is the very last one." in texts


def test_title_author_and_keywords_are_those_that_the_file_states() -> None:
    document = sample("manual.pdf")
    assert document.title == "The Lantern Manual"
    assert document.properties["author"] == "A. Keeper"
    assert document.tags == ("lantern", "light", "harbour")


def test_every_block_has_a_place_inside_of_its_page() -> None:
    document = sample("manual.pdf")
    pages = {page.number: page for page in document.pages}
    for block in document.blocks:
        assert block.place is not None
        assert block.place.box is not None
        left, top, right, bottom = block.place.box
        page = pages[block.place.page]
        assert 0 <= left <= right <= page.width
        assert 0 <= top <= bottom <= page.height


HARBOUR_TABLE = [
    ["Ship", "Berth", "Notes"],
    ["Aurora", "4", "leaves at dawn"],
    [
        "Borealis",
        "7",
        "stays for the whole of the winter, since its engine has to be taken out and mended by people who come from "
        "far away",
    ],
    ["Corvus", "9", "no notes"],
]


@pytest.mark.parametrize("name", ["tagged.pdf", "untagged.pdf"])
def test_a_web_page_that_was_printed_has_its_structure_back(name: str) -> None:
    document = sample(name)
    assert headings(document) == [(1, "Harbour notes"), (2, "Rules"), (3, "Commands")]
    assert [(depth, text) for depth, _, text in items(document)] == [
        (0, "Keep left"),
        (0, "Keep slow"),
        (1, "very slow in fog"),
        (0, "Moor"),
        (0, "Report"),
    ]
    assert [ordered for _, ordered, _ in items(document)] == [False, False, False, True, True]
    assert code(document) == ["dock --list\n  --all      # every ship\ndock --now"]
    assert [table.grid() for table in (block for block in document.blocks if isinstance(block, Table))] == [
        HARBOUR_TABLE
    ]
    assert document.title == "Harbour notes"
    assert document.properties["language"] == "en"


def test_a_file_of_a_word_processor_has_headings_by_size_without_outline_or_tags() -> None:
    document = sample("office.pdf")
    assert headings(document) == [(1, "Rules"), (2, "Commands")]
    assert [table.grid() for table in (block for block in document.blocks if isinstance(block, Table))] == [
        HARBOUR_TABLE
    ]
    assert code(document) == ["dock --list\n  --all      # every ship\ndock --now"]


def test_a_manual_page_has_headings_that_stand_out_to_the_left() -> None:
    assert headings(sample("groff.pdf")) == [
        (1, "NAME"),
        (1, "SYNOPSIS"),
        (1, "DESCRIPTION"),
        (2, "Exit status"),
    ]


def test_columns_are_read_one_after_the_other() -> None:
    texts = [paragraph.text for paragraph in paragraphs(sample("columns.pdf"))]
    assert len(texts) == 2
    for name, text in zip(("Remark", "Notice"), texts, strict=True):
        places = [text.index(f"{name} {number} says this.") for number in range(1, 6)]
        assert places == sorted(places)
        assert text.count("follow the lantern until they see the second light behind the pier.") == 5


def test_no_table_is_made_of_running_text() -> None:
    assert not [block for block in sample("columns.pdf").blocks if isinstance(block, Table)]
