from __future__ import annotations

import zipfile
from io import BytesIO

import pytest

from refdesk.documents.convert.number_format import compile_format
from refdesk.documents.convert.opendocument import MAX_REPEATS, convert_sheets
from refdesk.documents.convert.source import PageRange, SourceFile
from refdesk.documents.convert.xlsx import convert
from refdesk.documents.model import Block, Document, Heading, Paragraph, Place, Table
from refdesk.errors import CannotConvert
from tests.documents.convert.office import A, convert_file, pack_zip, relationships, source, workbook

C = "http://schemas.openxmlformats.org/drawingml/2006/chart"


def rows(*lines: str) -> str:
    """Rows of texts, cells between bars; an empty one is not written."""
    written = "".join(
        f'<row r="{at}">'
        + "".join(
            f'<c r="{chr(65 + column)}{at}" t="str"><v>{text}</v></c>'
            for column, text in enumerate(line.split("|"))
            if text
        )
        + "</row>"
        for at, line in enumerate(lines, 1)
        if line
    )
    return f"<sheetData>{written}</sheetData>"


def grids(document: Document) -> list[list[list[str]]]:
    return [block.grid() for block in document.blocks if isinstance(block, Table)]


@pytest.mark.parametrize("name", ["book.xlsx", "book.xls", "book.ods"])
def test_a_workbook_shows_its_cells_as_the_program_does(name: str) -> None:
    document = convert_file(name)

    assert document.page_kind == "sheet"
    assert document.blocks[0] == Heading("Sales", 2, Place(1))
    assert grids(document)[:2] == [
        [
            ["Region", "Share", "Amount", "When"],
            ["North", "25.6%", "1,234.50", "2024-05-01"],
            ["South", "1", "#DIV/0!", "2469"],
        ],
        [["Second", "Table"], ["1", "0.1"]],
    ]
    assert document.blocks[-1] == Paragraph("Plain link", place=document.blocks[-1].place)


@pytest.mark.parametrize("name", ["book.xlsx", "book.xls", "book.ods"])
def test_hidden_sheets_are_left_out_and_named(name: str) -> None:
    document = convert_file(name)

    assert "Secret" not in [block.text for block in document.blocks if isinstance(block, Heading)]
    assert document.warnings == ("Hidden sheets were left out: Secret.",)


def test_a_title_merged_across_a_table_is_its_caption() -> None:
    table = convert(source("book.xlsx")).blocks[1]
    assert isinstance(table, Table)
    assert table.caption == "Quarterly report"
    assert table.header_rows() == 1


def test_a_chart_is_read_as_its_data() -> None:
    points = '<c:pt idx="{}"><c:v>{}</c:v></c:pt>'
    names = "".join(points.format(at, text) for at, text in enumerate(("2019", "2020")))
    values = "".join(points.format(at, text) for at, text in enumerate(("120", "0.5")))
    chart = (
        f'<c:chartSpace xmlns:c="{C}" xmlns:a="{A}"><c:chart><c:title><a:t>Ducks</a:t></c:title><c:plotArea>'
        f"<c:ser><c:tx><c:strRef><c:strCache>{points.format(0, 'Seen')}</c:strCache></c:strRef></c:tx>"
        f"<c:cat><c:strRef><c:strCache>{names}</c:strCache></c:strRef></c:cat>"
        f"<c:val><c:numRef><c:numCache>{values}</c:numCache></c:numRef></c:val></c:ser>"
        "</c:plotArea></c:chart></c:chartSpace>"
    )
    data = workbook(rows("a|b")).data
    for name, content in (
        ("xl/worksheets/_rels/sheet1.xml.rels", relationships(drawing="../drawings/drawing1.xml")),
        ("xl/drawings/drawing1.xml", "<a/>"),
        ("xl/drawings/_rels/drawing1.xml.rels", relationships(chart="../charts/chart1.xml")),
        ("xl/charts/chart1.xml", chart),
    ):
        data = _with_part(data, name, content)
    table = convert(SourceFile(data, "x.xlsx")).blocks[-1]
    assert isinstance(table, Table)
    assert table.caption == "Ducks"
    assert table.grid() == [["", "Seen"], ["2019", "120"], ["2020", "0.5"]]


def test_only_the_sheets_asked_for_are_converted() -> None:
    whole = source("book.xlsx")
    document = convert(SourceFile(whole.data, whole.name, pages=PageRange(3, 3)))

    assert [page.number for page in document.pages] == [3]
    assert document.total_pages == 3
    assert document.blocks == (Heading("Notes", 2, Place(3)), Paragraph("Plain link", place=Place(3)))


def test_tables_are_cut_apart_at_blank_rows_and_columns() -> None:
    document = convert(workbook(rows("a|b||x|y", "1|2||3|4", "", "c|d", "5|6")))
    assert grids(document) == [[["a", "b"], ["1", "2"]], [["x", "y"], ["3", "4"]], [["c", "d"], ["5", "6"]]]


def test_cells_of_every_type_are_shown() -> None:
    cells = (
        '<c r="A1" t="s"><v>0</v></c><c r="B1" t="b"><v>1</v></c><c r="C1" t="e"><v>#REF!</v></c>'
        '<c r="D1" t="inlineStr"><is><r><t>rich</t></r><r><t> text</t></r></is></c><c r="E1" s="1"><v>0.5</v></c>'
        '<c r="F1"><f>1+1</f><v>2</v></c><c r="G1"><v>0.30000000000000004</v></c>'
    )
    shared = "<si><t>shared</t><rPh><t>reading aid</t></rPh></si>"
    styles = '<cellXfs><xf numFmtId="0"/><xf numFmtId="9"/></cellXfs>'
    document = convert(workbook(f'<sheetData><row r="1">{cells}</row></sheetData>', shared=shared, styles=styles))
    assert grids(document) == [[["shared", "TRUE", "#REF!", "rich text", "50%", "2", "0.3"]]]


def test_rows_and_cells_without_references_follow_one_another() -> None:
    cell = '<c t="str"><v>{}</v></c>'
    sheet = f"<sheetData><row>{cell.format('a')}{cell.format('b')}</row><row>{cell.format('c')}</row></sheetData>"
    assert grids(convert(workbook(sheet))) == [[["a", "b"], ["c", ""]]]


def test_a_merged_area_is_one_cell() -> None:
    merged = '<mergeCells count="1"><mergeCell ref="A1:B1"/></mergeCells>'
    (_, table) = convert(workbook(rows("wide||c", "1|2|3") + merged)).blocks
    assert isinstance(table, Table)
    assert table.cells[0].column_span == 2
    assert table.grid() == [["wide", "wide", "c"], ["1", "2", "3"]]


def test_a_row_of_numbers_is_no_header() -> None:
    cells = "".join(f'<row r="{at}"><c r="A{at}"><v>{at}</v></c><c r="B{at}"><v>2</v></c></row>' for at in (1, 2))
    (_, table) = convert(workbook(f"<sheetData>{cells}</sheetData>")).blocks
    assert isinstance(table, Table)
    assert table.header_rows() == 0


def test_two_cells_at_the_far_corners_of_a_merged_sheet_are_two_paragraphs() -> None:
    corners = (
        '<sheetData><row r="1"><c r="A1" t="str"><v>first</v></c></row>'
        '<row r="1048576"><c r="XFD1048576" t="str"><v>last</v></c></row></sheetData>'
        '<mergeCells><mergeCell ref="A1:XFD1048576"/></mergeCells>'
    )
    expected: tuple[Block, ...] = (
        Heading("A", 2, Place(1)),
        Paragraph("first", place=Place(1)),
        Paragraph("last", place=Place(1)),
    )
    assert convert(workbook(corners)).blocks == expected


def test_of_a_huge_sheet_the_beginning_is_kept_and_the_rest_named() -> None:
    most = 2_000
    count = most + 50
    lines = "".join(f'<row r="{at}"><c r="A{at}"><v>{at}</v></c></row>' for at in range(1, count + 1))
    book = workbook(f'<dimension ref="A1:A{count}"/><sheetData>{lines}</sheetData>', rows("after"))
    document = convert(book, max_cells=most)

    (_, table, *_) = document.blocks
    assert isinstance(table, Table)
    assert table.rows == most
    left_out = f"Sheet 'A' is too large: its rows from {most + 1}–{count} were left out."
    assert document.warnings[0] == left_out


def test_repeated_cells_of_an_opendocument_sheet_are_bounded() -> None:
    cell = '<table:table-cell table:number-columns-repeated="999999"><text:p>x</text:p></table:table-cell>'
    row = f'<table:table-row table:number-rows-repeated="999999999">{cell}</table:table-row>'
    names = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "table", "text")
    )
    sheet = f'<table:table table:name="A">{row * 3}</table:table>'
    body = f"<office:body><office:spreadsheet>{sheet}</office:spreadsheet></office:body>"
    parts = {
        "mimetype": "application/vnd.oasis.opendocument.spreadsheet",
        "content.xml": f"<office:document-content {names}>{body}</office:document-content>",
    }
    most = 20 * MAX_REPEATS
    document = convert_sheets(SourceFile(pack_zip(parts), "x.ods"), max_cells=most)

    assert sum(len(block.cells) for block in document.blocks if isinstance(block, Table)) == most
    assert document.warnings == ("Sheet 'A' is too large: its rows from 21 on were left out.",)


def test_a_cross_of_cells_that_no_grid_could_hold_is_cut_into_tables_that_can_be_written() -> None:
    wide = "".join(f'<c r="{_letters(column)}1" t="str"><v>x</v></c>' for column in range(3000))
    tall = "".join(f'<row r="{at}"><c r="A{at}" t="str"><v>y</v></c></row>' for at in range(2, 3000))
    document = convert(workbook(f'<sheetData><row r="1">{wide}</row>{tall}</sheetData>'))

    found = [block for block in document.blocks if isinstance(block, Table)]
    assert all(table.rows * table.columns <= 2_000_000 for table in found)
    lone = [block for block in document.blocks if isinstance(block, Paragraph)]
    assert sum(len(table.cells) for table in found) + len(lone) == 3000 + 2998


def _letters(column: int) -> str:
    return (_letters(column // 26 - 1) if column >= 26 else "") + chr(65 + column % 26)


@pytest.mark.parametrize(
    ("code", "value", "shown"),
    [
        ("0.0%", 0.256, "25.6%"),
        ("#,##0.00", 1234.5, "1,234.50"),
        ("#,##0", -1234567, "-1,234,567"),
        ("0000", 42, "0042"),
        ("0.##", 1.5, "1.5"),
        ("#,##0.00;(#,##0.00)", -5, "(5.00)"),
        ("[$€-407] #,##0.00;[Red]-[$€-407] #,##0.00", -3.5, "-€ 3.50"),
        ('"approx. "0.0', 2.25, "approx. 2.2"),
        ('0;-0;"none"', 0, "none"),
        ("0.00E+00", 12345, "1.23E+04"),
        ("# ?/?", 1.5, "1 1/2"),
        ('[>=1000]0.0,"k";0', 2500, "2.5k"),
        ('[>=1000]0.0,"k";0', 25, "25"),
        ("yyyy-mm-dd", 45413, "2024-05-01"),
        ("d mmm yyyy", 45413, "1 May 2024"),
        ("dddd", 45413, "Wednesday"),
        ("yyyy-mm-dd hh:mm", 45413.75, "2024-05-01 18:00"),
        ("h:mm AM/PM", 0.75, "6:00 PM"),
        ("mm:ss", 0.0007060185, "01:01"),
        ("[h]:mm", 1.5, "36:00"),
        ("yyyy", 1, "1900"),
        ("yyyy-mm-dd", -1, "-1"),
        ("General", 1e20, "1E+20"),
        ("@", 5, "5"),
    ],
)
def test_numbers_are_shown_in_their_format(code: str, value: float, shown: str) -> None:
    assert compile_format(code)(value) == shown


def test_some_workbooks_count_their_days_from_1904() -> None:
    assert compile_format("yyyy-mm-dd", from_1904=True)(0) == "1904-01-01"


def test_a_sheet_that_declares_a_dtd_is_refused() -> None:
    data = workbook(rows("a")).data
    broken = _with_part(data, "xl/worksheets/sheet1.xml", '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>')
    with pytest.raises(CannotConvert, match="declares a DTD"):
        convert(SourceFile(broken, "x.xlsx"))


def test_a_sheet_that_is_not_well_formed_is_named() -> None:
    broken = _with_part(workbook(rows("a")).data, "xl/worksheets/sheet1.xml", "<worksheet><sheetData>")
    broken = _with_part(broken, "xl/worksheets/sheet1.xml", "<worksheet></sheetData>")
    with pytest.raises(CannotConvert, match="not well-formed"):
        convert(SourceFile(broken, "x.xlsx"))


def test_an_old_workbook_that_is_cut_off_is_refused() -> None:
    with pytest.raises(CannotConvert):
        convert_file("book.xls", share=0.5)


def _with_part(data: bytes, name: str, content: str) -> bytes:
    with zipfile.ZipFile(BytesIO(data)) as archive:
        parts = {entry: archive.read(entry) for entry in archive.namelist()}
    return pack_zip({**parts, name: content.encode()})


def test_a_formula_without_a_saved_value_is_shown_with_a_warning() -> None:
    cells = '<c r="A1"><v>1</v></c><c r="B1"><f>A1*2</f></c><c r="C1" t="str"><f>""</f><v></v></c>'
    row = '<row r="2"><c r="A2"><v>2</v></c><c r="B2"><f>A2*2</f><v>4</v></c></row>'
    document = convert(workbook(f'<sheetData><row r="1">{cells}</row>{row}</sheetData>'))
    (table,) = [block for block in document.blocks if isinstance(block, Table)]
    assert table.grid() == [["1", "=A1*2"], ["2", "4"]]
    assert document.warnings == (
        "Sheet 'A' has formulas without saved values (1), which are shown as formulas; "
        "open it in a spreadsheet program and save it.",
    )
