"""Chunks respect the document's structure, lose nothing, and fit the model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from refdesk.documents.chunking import MAX_TOKENS, chunks
from refdesk.documents.model import (
    Block,
    Code,
    Document,
    Heading,
    ListItem,
    Paragraph,
    Place,
    Span,
    list_sections,
    table_from_rows,
)
from refdesk.documents.tokens import count_tokens
from tests.documents.blocks import documents

SENTENCE = "The planner reads the statistics of each column before it chooses an index. "


def words(count: int) -> Paragraph:
    return Paragraph((SENTENCE * count).strip(), place=Place(1))


def test_a_chunk_does_not_cross_a_heading_of_its_level() -> None:
    blocks: list[Block] = [Heading("A", 1), words(5), Heading("B", 1), words(5)]
    assert [(chunk.path, chunk.section) for chunk in chunks(blocks)] == [(("A",), "a"), (("B",), "b")]


def test_a_section_with_little_text_goes_on_into_its_subsection_which_the_chunk_then_belongs_to() -> None:
    blocks: list[Block] = [Heading("A", 1), Paragraph("Short."), Heading("A1", 2), words(3), Heading("B", 1), words(3)]
    first, second = chunks(blocks)
    assert first.text.startswith("Short.\n\n## A1\n\nThe planner")
    assert (first.path, first.section) == (("A", "A1"), "a1")
    assert second.path == ("B",)


def test_a_chunk_that_is_mostly_of_the_upper_section_belongs_to_it() -> None:
    blocks: list[Block] = [Heading("A", 1, anchor="top"), words(2), Heading("A1", 2, anchor="sub"), Paragraph("Short.")]
    (chunk,) = chunks(blocks)
    assert (chunk.path, chunk.section, chunk.anchors) == (("A",), "a", ("top",))


def test_a_section_with_text_of_its_own_does_not_go_on() -> None:
    blocks: list[Block] = [Heading("A", 1), words(5), Heading("A1", 2), words(3)]
    assert [chunk.path for chunk in chunks(blocks)] == [("A",), ("A", "A1")]


def test_code_and_tables_that_fit_stay_whole() -> None:
    code = Code("\n".join(f"line {n}" for n in range(20)), "text")
    table = table_from_rows([["Name", "Size"], *([f"n{n}", str(n)] for n in range(15))])
    texts = [chunk.text for chunk in chunks([Heading("A", 1), words(12), code, words(12), table])]
    assert sum(text.count("```text") for text in texts) == 1
    assert sum(text.count("| --- |") for text in texts) == 1
    whole_code = next(text for text in texts if "```text" in text)
    assert all(f"line {n}\n" in whole_code for n in range(20))


@pytest.mark.parametrize(
    "lead",
    [
        Paragraph("polls/admin.py", (Span(0, 14, "code"),)),
        Paragraph("Where should it live?", (Span(0, 21, "strong"),)),
        Paragraph("Write the two commands next to each other, e.g."),
        Paragraph("Some options take two values. For example,"),
        ListItem("Write the two commands as follows."),
    ],
    ids=lambda lead: lead.text[-12:],
)
def test_a_file_name_and_a_lead_in_without_a_colon_stay_with_their_code(lead: Block) -> None:
    code = Code("\n".join(f"statement_{n} = run()" for n in range(22)))
    _, second = chunks([Heading("A", 1), words(10), lead, code])
    assert second.text.endswith("statement_21 = run()\n```")
    assert isinstance(lead, Paragraph | ListItem)
    assert lead.text in second.text.replace("`", "").replace("*", "")


def test_a_list_item_stays_with_its_second_paragraph() -> None:
    item, detail = ListItem(words(2).text, has_more=True), Paragraph(f"{words(3).text} Functions have been renamed.")
    items = [part for _ in range(7) for part in (item, detail)]
    found = [chunk.text for chunk in chunks([Heading("Changes", 1), *items])]
    assert len(found) > 2
    assert all(text.startswith("- ") and text.endswith("Functions have been renamed.") for text in found)


def test_a_long_table_is_cut_between_rows_under_its_header() -> None:
    table = table_from_rows([["Name", "Size"], *([f"name-{n}", str(n)] for n in range(200))])
    made = chunks([Heading("A", 1), table])
    assert len(made) > 3
    assert all(chunk.text.startswith("| Name | Size |\n| --- | --- |\n") for chunk in made)
    rows = [line for chunk in made for line in chunk.text.splitlines()[2:]]
    assert rows == [f"| name-{n} | {n} |" for n in range(200)]


def test_long_code_is_cut_between_lines_and_fenced_again() -> None:
    code = Code("\n".join(f"    value_{n} = {n}" for n in range(200)), "python")
    made = chunks([Heading("A", 1), code])
    assert all(chunk.text.startswith("```python\n") and chunk.text.endswith("\n```") for chunk in made)
    lines = [line for chunk in made for line in chunk.text.splitlines()[1:-1]]
    assert lines == code.text.split("\n")


def test_a_chunk_knows_its_pages_and_its_place() -> None:
    blocks: list[Block] = [
        Heading("A", 1, Place(3)),
        Paragraph("On three.", place=Place(3)),
        Paragraph("On four.", place=Place(4)),
    ]
    (chunk,) = chunks(blocks)
    assert (chunk.id, chunk.first_page, chunk.last_page, chunk.text) == ("c1", 3, 4, "On three.\n\nOn four.")


def test_items_of_a_list_stand_close() -> None:
    (chunk,) = chunks([Heading("A", 1), ListItem("one"), ListItem("two"), Paragraph("After.")])
    assert chunk.text == "- one\n- two\n\nAfter."


def test_a_heading_without_anything_below_is_found_too() -> None:
    assert [chunk.text for chunk in chunks([Heading("Only a title", 1)])] == ["# Only a title"]


def test_a_word_without_end_is_cut() -> None:
    made = chunks([Paragraph("x1" * 5000)])
    assert max(chunk.tokens for chunk in made) <= MAX_TOKENS
    assert "".join(chunk.text for chunk in made).replace(" ", "") == "x1" * 5000


@settings(max_examples=60, deadline=None)
@given(documents)
def test_no_chunk_is_longer_than_the_model_reads_and_none_crosses(document: Document) -> None:
    made = chunks(document.blocks, max_tokens=40)
    by_id = {section.id: section for section in list_sections(document.blocks)}
    for chunk in made:
        assert chunk.tokens <= 40
        assert abs(count_tokens(chunk.text) - chunk.tokens) <= 12
        assert by_id[chunk.section].path == chunk.path
    assert [chunk.id for chunk in made] == [f"c{number}" for number in range(1, len(made) + 1)]
