"""The decisions that need no page."""

from __future__ import annotations

import pytest

from refdesk.documents.convert.pdf.boilerplate import BoilerplateDetector
from refdesk.documents.convert.pdf.headings import parse_depth
from refdesk.documents.convert.pdf.layout import Line, group_rows, join_words
from refdesk.documents.convert.pdf.lists import parse_marker
from refdesk.documents.convert.pdf.metadata import parse_date
from refdesk.documents.convert.pdf.page_reader import Word
from refdesk.documents.convert.pdf.pdfium import Font
from refdesk.documents.convert.pdf.pipeline import choose_sample
from refdesk.documents.convert.pdf.text import join_lines

ROMAN = Font(bold=False, italic=False, fixed=False)


def line(text: str, *, page: int = 1, base: float = 100, left: float = 50) -> Line:
    words = []
    for word in text.split():
        words.append(Word(word, left, left + 5 * len(word), base, 10, ROMAN, -1))
        left += 5 * len(word) + 3
    return Line(words, page)


@pytest.mark.parametrize(
    ("upper", "lower", "vocabulary", "whole"),
    [
        ("a misunder-", "standing of it", set(), "a misunderstanding of it"),
        ("a command-", "line tool", {"command-line"}, "a command-line tool"),
        ("a well-", "known tool", {"well", "known"}, "a well-known tool"),
        ("an under-", "stood tool", {"under", "stood", "understood"}, "an understood tool"),
        ("an x86-", "64 machine", set(), "an x86-64 machine"),
        ("Jean-", "Luc came", set(), "Jean-Luc came"),
        ("so it is -", "or is not", set(), "so it is - or is not"),
    ],
)
def test_a_hyphen_at_a_line_end_is_dropped_only_where_it_divides_one_word(
    upper: str, lower: str, vocabulary: set[str], whole: str
) -> None:
    assert join_lines([line(upper), line(lower, base=112)], vocabulary)[0] == whole


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1. one", {1}),
        ("(b) two", {2}),
        ("iv) four", {4}),
        ("i. first", {1, 9}),
        ("• dot", set()),
        ("12) twelve", {12}),
    ],
)
def test_markers_are_read_in_every_way_that_they_can_be(text: str, numbers: set[int]) -> None:
    marker = parse_marker(line(text))
    assert marker is not None
    assert marker.numbers == numbers


@pytest.mark.parametrize("text", ["1.5 litres", "Mr. Keeper", "A lamp", "2024) was"])
def test_what_only_looks_like_a_marker_is_none(text: str) -> None:
    assert parse_marker(line(text)) is None


@pytest.mark.parametrize(
    ("text", "depth"), [("3 Oil", 1), ("3.1 Oil", 2), ("A.2.4 Oil", 3), ("Oil", 0), ("1984was a year", 0)]
)
def test_a_headings_number_tells_its_depth(text: str, depth: int) -> None:
    assert parse_depth(text) == depth


@pytest.mark.parametrize(
    ("stated", "date"),
    [
        ("D:20230120164927Z", "2023-01-20T16:49:27Z"),
        ("D:20221217024144-00'00'", "2022-12-17T02:41:44-00:00"),
        ("D:2020", "2020"),
        ("yesterday", ""),
    ],
)
def test_dates_are_told_as_everybody_writes_them(stated: str, date: str) -> None:
    assert parse_date(stated) == date


def test_a_raised_word_stays_in_its_line() -> None:
    words = [Word("text", 50, 70, 100, 10, ROMAN, -1), Word("2", 70, 73, 96.5, 7, ROMAN, -1, glued=True)]
    words.append(Word("below", 50, 75, 112, 10, ROMAN, -1))
    assert [join_words(row) for row in group_rows(words)] == ["text2", "below"]


def test_words_of_a_script_that_runs_to_the_left_are_read_so() -> None:
    words = [Word("עולם", 50, 70, 100, 10, ROMAN, -1), Word("שלום", 75, 95, 100, 10, ROMAN, -1)]
    assert [join_words(row) for row in group_rows(words)] == ["שלום עולם"]


def test_heads_that_change_with_the_chapter_are_known_by_their_page_number() -> None:
    furniture = BoilerplateDetector()
    heads = {
        page: line(f"Chapter {page // 3}: Name {page * 7} {page + 10}", page=page, base=30) for page in range(1, 8)
    }
    pages = {page: [head, line("Text.", page=page, base=400)] for page, head in heads.items()}
    for lines in pages.values():
        furniture.learn(800, lines)
    assert all(furniture.find_lines(800, pages[page]) == {id(heads[page])} for page in heads)


def test_a_line_that_stands_on_one_page_alone_is_no_furniture() -> None:
    furniture = BoilerplateDetector()
    alone = line("The first sentence of a page.", base=30)
    for lines in ([alone], *([line("x" * page, page=page, base=30)] for page in (2, 3, 4, 5))):
        furniture.learn(800, lines)
    assert furniture.find_lines(800, [alone]) == set()


def test_one_page_of_a_long_manual_is_understood_from_a_few() -> None:
    sample = choose_sample(900, 900, 2_400)
    assert 900 in sample
    assert len(sample) < 25
    assert sample == sorted(set(sample))
