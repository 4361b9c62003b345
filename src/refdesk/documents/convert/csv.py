"""CSV, with comma, semicolon, tab or bar as delimiter."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import PurePosixPath
from statistics import median
from typing import Literal

from refdesk.documents.model import Block, Document, Heading, table_from_rows
from refdesk.errors import CannotConvert

from .source import SourceFile, decode

MAX_CELLS = 200_000
"""More than anyone reads in a table; larger data files belong into a database."""

MAX_COLUMNS = 2_000
"""More than real spreadsheets have; a longer row is most likely not a row."""

_SAMPLE_LINES = 50
_DELIMITERS = ",;\t|"
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_NUMBER = re.compile(r"[-+(]?[$€£]?\s?\d[\d\s.,']*%?\)?|\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}.*")


def convert(source: SourceFile) -> Document:
    """Convert a file of separated values to one table."""
    decoded = decode(source.data, source.charset)
    rows, warnings = _read_rows(decoded.text)
    if not rows:
        raise CannotConvert("The file holds no rows.")
    title = PurePosixPath(source.name).stem or source.name
    heading: tuple[Block, ...] = (Heading(title, 1),) if title else ()
    return Document(
        title=title,
        blocks=(*heading, table_from_rows(rows, header_rows=int(_has_header(rows)))),
        warnings=(*decoded.warnings, *warnings),
    )


def _read_rows(text: str) -> tuple[list[list[str]], list[str]]:
    """Return the rows and warnings; unbalanced quotes are read as text."""
    try:
        return _parse_rows(text, csv.QUOTE_MINIMAL)
    except csv.Error:
        warning = "A quotation mark is not closed; all of them were taken as text."
    try:
        rows, warnings = _parse_rows(text, csv.QUOTE_NONE)
    except csv.Error as error:
        raise CannotConvert(
            f"The file cannot be read as separated values ({error}); if it is no table, name it .txt."
        ) from error
    return rows, [warning, *warnings]


def _parse_rows(text: str, quoting: Literal[0, 3]) -> tuple[list[list[str]], list[str]]:
    """Return the rows with content and warnings; a first line `sep=` that names the delimiter is skipped."""
    delimiter = detect_delimiter(text)
    if text[:4].lower() == "sep=":
        text = text.partition("\n")[2]
    lines = text.splitlines(keepends=True)
    rows: list[list[str]] = []
    cells, cut, left_out = 0, 0, 0
    for row in filter(any, csv.reader(lines, delimiter=delimiter, quoting=quoting, skipinitialspace=True)):
        cells += min(len(row), MAX_COLUMNS)
        if cells > MAX_CELLS:
            left_out += 1
            continue
        cut += len(row) > MAX_COLUMNS
        rows.append([" ".join(cell.split()) for cell in row[:MAX_COLUMNS]])
    warnings = [f"{cut:,} rows were cut after {MAX_COLUMNS:,} columns."] if cut else []
    if left_out:
        warnings.append(f"Only the first {len(rows):,} rows were read; {left_out:,} more are left out.")
    return rows, warnings


def detect_delimiter(text: str) -> str:
    """Return the delimiter that most lines have equally often, by default a comma."""
    stated = re.match(r"sep=([,;\t|])\r?\n", text, re.IGNORECASE)
    if stated is not None:
        return stated[1]
    sample = _QUOTED.sub("", text[:100_000])
    lines = [line for line in islice(sample.splitlines(), _SAMPLE_LINES) if line.strip()]

    def rate(delimiter: str) -> tuple[float, float]:
        """Return the share of lines with the usual number of delimiters, then that number."""
        counts = [line.count(delimiter) for line in lines]
        usual = median(counts) if counts else 0
        return (sum(count == usual for count in counts) / len(counts), usual) if usual >= 1 else (0.0, 0.0)

    return max(_DELIMITERS, key=rate)


def _has_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns: text only, without duplicates."""
    first = [cell for cell in rows[0] if cell]
    if len(rows) < 2 or not first or len(set(first)) < len(first):
        return False
    return not any(map(_NUMBER.fullmatch, first))
