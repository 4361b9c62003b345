"""Workbooks out of the tables of a manual, and of numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from lxml.html import HtmlElement
from office_oxide import XlsxWriter

from .programs import convert_by_libreoffice
from .sources import postgres_pages
from .truth import text_of

PAGES = """datatype-numeric datatype-datetime datatype-character functions-math functions-bitstring functions-array
sql-createtype multibyte catalog-pg-class errcodes-appendix functions-geometry datatype-geometric functions-net
view-pg-locks runtime-config-short"""
MOST_ROWS = 60
Value = str | int | float
Rows = tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class Workbook:
    """Sheets by name."""

    name: str
    sheets: tuple[tuple[str, Rows], ...]


def workbooks() -> Iterator[Workbook]:
    """Tables of words, one page a workbook, then tables of numbers."""
    for page in postgres_pages(PAGES.split()):
        tables = [_rows(table) for element in page.main_elements() for table in element.iter("table")]
        fitting = [rows[:MOST_ROWS] for rows in tables if len(rows) > 2 and len({*map(len, rows)}) == 1]
        if fitting:
            yield Workbook(page.name, tuple((f"Table {at}", rows) for at, rows in enumerate(fitting[:4], start=1)))
    for number in range(1, 5):
        yield Workbook(
            f"numbers-{number}", tuple((f"Region {at}", _numbers(number, at)) for at in range(1, number + 1))
        )


def truth(workbook: Workbook) -> str:
    """A heading and a table for each sheet."""
    return "\n".join(f"## {name}\n\n{_pipe_table(rows)}\n" for name, rows in workbook.sheets)


def write_by_office_oxide(workbook: Workbook, target: Path) -> None:
    """Strings inside of the cells, no styles."""
    writer = XlsxWriter()
    for name, rows in workbook.sheets:
        sheet = writer.add_sheet(name)
        for at, row in enumerate(rows):
            for column, value in enumerate(row):
                writer.set_cell(sheet, at, column, value)
    writer.save(str(target))


def write_by_libreoffice(workbook: Workbook, target: Path) -> None:
    """Shared strings, styles, and everything else that an office suite adds."""
    source = target.with_name("book.fods")
    source.write_text(_open_document(workbook), "utf-8")
    convert_by_libreoffice(source, target)


def _rows(table: HtmlElement) -> Rows:
    if any(cell.get("rowspan") or cell.get("colspan") for cell in table.iter("td", "th")):
        return ()
    return tuple(tuple(text_of(cell) for cell in row.iter("td", "th")) for row in table.iter("tr"))


def _numbers(seed: int, sheet: int) -> Rows:
    chance = random.Random(seed * 100 + sheet)
    head: tuple[Value, ...] = ("Product", "Units", "Price", "Revenue")
    lines = [
        (f"Item {at}", chance.randint(1, 9000), round(chance.uniform(1, 99), 1)) for at in range(chance.randint(5, 40))
    ]
    return (head, *((name, units, price, round(units * price + 0.25, 2)) for name, units, price in lines))


def _pipe_table(rows: Rows) -> str:
    head, *body = ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def _cell(value: Value) -> str:
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    for special in "\\`*_[]<>#|~&":
        text = text.replace(special, f"\\{special}")
    return text


def _open_document(workbook: Workbook) -> str:
    """A flat OpenDocument file, which LibreOffice reads."""
    names = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "table", "text")
    )
    tables = "".join(
        f'<table:table table:name="{escape(name)}">{"".join(map(_open_row, rows))}</table:table>'
        for name, rows in workbook.sheets
    )
    kind = 'office:mimetype="application/vnd.oasis.opendocument.spreadsheet" office:version="1.3"'
    body = f"<office:body><office:spreadsheet>{tables}</office:spreadsheet></office:body>"
    return f'<?xml version="1.0" encoding="UTF-8"?><office:document {names} {kind}>{body}</office:document>'


def _open_row(row: tuple[Value, ...]) -> str:
    return f"<table:table-row>{''.join(map(_open_cell, row))}</table:table-row>"


def _open_cell(value: Value) -> str:
    if isinstance(value, str):
        kind = 'office:value-type="string"'
    else:
        kind = f'office:value-type="float" office:value="{value}"'
    return f"<table:table-cell {kind}><text:p>{escape(str(value))}</text:p></table:table-cell>"
