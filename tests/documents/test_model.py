"""Sections, their ids and their ends; tables as grids."""

from __future__ import annotations

from refdesk.documents.model import (
    Block,
    Cell,
    Heading,
    Paragraph,
    Place,
    Table,
    list_sections,
    slug_of,
    table_from_rows,
)


def heading(text: str, level: int, page: int | None = None) -> Heading:
    return Heading(text, level, Place(page) if page else None)


def test_a_section_lasts_to_the_next_heading_of_its_level_or_a_higher_one() -> None:
    blocks: list[Block] = [
        Paragraph("Before."),
        heading("A", 1, 2),
        Paragraph("a"),
        heading("A1", 2),
        Paragraph("a1"),
        heading("A2", 3),
        heading("B", 1),
    ]
    found = [(s.id, s.level, s.page, s.path, s.start, s.end) for s in list_sections(blocks)]
    assert found == [
        ("start", 0, None, (), 0, 1),
        ("a", 1, 2, ("A",), 1, 6),
        ("a1", 2, None, ("A", "A1"), 3, 6),
        ("a2", 3, None, ("A", "A1", "A2"), 5, 6),
        ("b", 1, None, ("B",), 6, 7),
    ]


def test_a_notice_opens_no_section() -> None:
    blocks: list[Block] = [heading("A", 1), Heading("Note", 3, is_notice=True), Paragraph("x")]
    assert [(s.id, s.end) for s in list_sections(blocks)] == [("a", 3)]


def test_a_section_knows_the_anchors_above_it_even_where_some_are_missing() -> None:
    blocks = [Heading("A", 1, anchor="a"), Heading("B", 2), Heading("C", 3, anchor="c"), Heading("D", 1)]
    assert [(s.anchors, s.anchor) for s in list_sections(blocks)] == [
        (("a",), "a"),
        (("a", ""), ""),
        (("a", "", "c"), "c"),
        (("",), ""),
    ]
    assert list_sections([Paragraph("x")])[0].anchor == ""


def test_ids_are_unique_even_where_titles_are_made_to_clash() -> None:
    titles = ["Install", "Install", "install-2", "Install", "start", "***", "…"]
    ids = [section.id for section in list_sections([heading(title, 1) for title in titles])]
    assert len(set(ids)) == len(ids)
    assert ids[:2] == ["install", "install-2"]


def test_a_title_in_any_script_gives_an_id() -> None:
    assert slug_of("Глава 1: Обзор") == "глава-1-обзор"
    assert len(slug_of("word " * 100)) <= 60


def test_a_cell_that_spans_is_read_at_each_of_its_places() -> None:
    table = Table((Cell("a", 0, 0, row_span=2), Cell("b", 0, 1, column_span=9), Cell("c", 1, 1)), 2, 3)
    assert table.grid() == [["a", "b", "b"], ["a", "c", ""]]


def test_header_rows_are_those_at_the_top() -> None:
    assert table_from_rows([["h"], ["x"]]).header_rows() == 1
    assert table_from_rows([["x"], ["y"]], header_rows=0).header_rows() == 0
    assert Table((), 0, 0).header_rows() == 0


def test_many_headings_take_no_more_than_linear_time() -> None:
    found = list_sections([heading(f"H{n}", n % 6 + 1) for n in range(50_000)])
    assert len(found) == 50_000
