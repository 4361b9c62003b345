from __future__ import annotations

import pytest

from refdesk.documents.convert import csv
from refdesk.documents.convert.source import SourceFile
from refdesk.documents.model import Document, Heading, Table
from refdesk.errors import CannotConvert


def convert_csv(content: str | bytes, name: str = "data/prices.csv") -> Document:
    return csv.convert(SourceFile(content.encode() if isinstance(content, str) else content, name))


def table(content: str | bytes) -> Table:
    _, found = convert_csv(content).blocks
    assert isinstance(found, Table)
    return found


def test_a_file_is_one_table_under_its_name() -> None:
    document = convert_csv("name,price\ntea,2.50\ncoffee,3\n")
    assert document.title == "prices"
    assert document.blocks[0] == Heading("prices", 1)
    found = table("name,price\ntea,2.50\ncoffee,3\n")
    assert found.grid() == [["name", "price"], ["tea", "2.50"], ["coffee", "3"]]
    assert found.header_rows() == 1


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found(delimiter: str) -> None:
    rows = [["name", "note"], ["tea", '"1,5; or\t|more"'], ["coffee", "black"]]
    content = "\r\n".join(delimiter.join(row) for row in rows)
    assert table(content).grid() == [["name", "note"], ["tea", "1,5; or |more"], ["coffee", "black"]]


def test_decimal_commas_do_not_hide_the_semicolons() -> None:
    assert table("a;b\n1,5;2,5\n3,5;4,5\n").grid()[1] == ["1,5", "2,5"]


def test_a_stated_delimiter_is_no_row() -> None:
    assert table("sep=;\na;b\n1;2\n").grid() == [["a", "b"], ["1", "2"]]


@pytest.mark.parametrize("content", ["1,2\n3,4\n", "a,a\n1,2\n", "only,one row\n", "2024-01-05,x\n2024-01-06,y\n"])
def test_a_first_row_that_names_nothing_is_no_header(content: str) -> None:
    assert table(content).header_rows() == 0


def test_ragged_rows_empty_rows_and_breaks_inside_of_cells_are_mended() -> None:
    found = table('a,b,c\n\n1\n,,\n"two\nlines",2,3,4\n')
    assert found.grid() == [["a", "b", "c", ""], ["1", "", "", ""], ["two lines", "2", "3", "4"]]


def test_a_quotation_mark_that_is_not_closed_is_taken_as_text() -> None:
    document = convert_csv('a,b\n"5 inch,1\n' + "x,2\n" * 50_000)
    assert "quotation mark" in document.warnings[0]
    found = document.blocks[1]
    assert isinstance(found, Table)
    assert found.grid()[1] == ['"5 inch', "1"]


def test_what_is_beyond_the_bounds_is_told() -> None:
    document = convert_csv("a,b\n" * csv.MAX_CELLS)
    left = csv.MAX_CELLS - csv.MAX_CELLS // 2
    assert document.warnings == (f"Only the first {csv.MAX_CELLS // 2:,} rows were read; {left:,} more are left out.",)
    wide = convert_csv("a," * (csv.MAX_COLUMNS + 5))
    assert wide.warnings == (f"1 rows were cut after {csv.MAX_COLUMNS:,} columns.",)


def test_a_mark_of_the_encoding_is_no_part_of_the_first_cell() -> None:
    assert table("\ufeffa,b\n1,2\n").grid()[0] == ["a", "b"]
    assert table("a\tb\n1\t2\n".encode("utf-16")).grid()[1] == ["1", "2"]


@pytest.mark.parametrize("content", ["", "\n\n", ",,,\n"])
def test_a_file_without_rows_is_refused(content: str) -> None:
    with pytest.raises(CannotConvert, match="no rows"):
        convert_csv(content)
