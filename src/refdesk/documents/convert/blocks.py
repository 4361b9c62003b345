"""Parts of converters of office formats: text composed of runs, the list of blocks, notes and limits of tables."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Final, TypeGuard

from refdesk.documents.model import (
    MAX_HEADING_LEVEL,
    Block,
    Cell,
    Code,
    Heading,
    ListItem,
    Paragraph,
    Picture,
    Place,
    Span,
    SpanKind,
    Table,
)
from refdesk.errors import CannotConvert


class BlockBuilder:
    """Collects blocks and joins what formats separate: lines of code, paragraphs of an item, table captions."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._continuations: list[tuple[str, tuple[Span, ...]]] = []
        """Continuations of the last block, joined once it is complete to avoid quadratic copying."""
        self._blank_lines = 0
        self._titles: list[int] = []
        self._line_of_code: str | None = None
        """The last block as code, if it is a paragraph in a monospaced font."""

    def add(self, block: Block) -> None:
        last = self._blocks[-1] if self._blocks else None
        is_below_picture = len(self._blocks) > 1 and isinstance(self._blocks[-2], Picture)
        if isinstance(block, Code) and isinstance(last, Code):
            self._continuations.append(("\n" * (self._blank_lines + 1) + block.text, ()))
        else:
            self._flush()
            if isinstance(block, Table) and _is_caption(last) and not is_below_picture:
                block = replace(block, caption=last.text)
                self._blocks.pop()
            elif _is_caption(block) and isinstance(last, Picture) and last.caption == block.text:
                self._blocks[-1] = replace(last, caption="")
            self._blocks.append(block)
        self._blank_lines = 0
        self._line_of_code = None

    def add_table(self, cells: tuple[Cell, ...], rows: int, place: Place | None = None) -> None:
        """Append a table unless it is empty. If it declares no header, the first row becomes one."""
        if any(cell.text for cell in cells):
            columns = max(cell.column + cell.column_span for cell in cells)
            if not any(cell.header for cell in cells):
                cells = tuple(replace(cell, header=True) if cell.row == 0 else cell for cell in cells)
            self.add(check_size(Table(cells, rows, columns, place=place)))

    def add_heading(self, text: str, level: int) -> None:
        self.add(Heading(text, min(level, MAX_HEADING_LEVEL)))

    def add_title(self, text: str, level: int = 1) -> None:
        """Append the document title, which is dropped if a later heading repeats it."""
        self._titles.append(len(self._blocks))
        self.add_heading(text, level)

    def add_monospaced(self, lines: str, paragraph: Paragraph, *, sure: bool = False) -> None:
        """Append a monospaced paragraph: a single line may be a name, several are code."""
        if sure or "\n" in lines or self._line_of_code is not None:
            if self._line_of_code is not None:
                self._blocks[-1] = Code(self._line_of_code, place=paragraph.place)
            self.add(Code(lines, place=paragraph.place))
        elif self._blocks and isinstance(self._blocks[-1], Code):
            self.add(Code(lines, place=paragraph.place))
        else:
            self.add(paragraph)
            self._line_of_code = lines

    def add_blank_line(self) -> None:
        """Record an empty paragraph, which matters only between lines of code."""
        self._blank_lines += 1

    @property
    def is_in_list(self) -> bool:
        """Whether the last block is a list item."""
        return bool(self._blocks) and isinstance(self._blocks[-1], ListItem)

    def continue_item(self, text: str, spans: tuple[Span, ...] = ()) -> None:
        """Append a paragraph to the last list item."""
        self._continuations.append((f"\n\n{text}", _shift_spans(spans, 2)))

    def _flush(self) -> None:
        if not self._continuations:
            return
        last = self._blocks[-1]
        assert isinstance(last, Code | ListItem)
        texts: list[str] = []
        spans: list[Span] = []
        length = len(last.text)
        for text, text_spans in self._continuations:
            spans += _shift_spans(text_spans, length)
            texts.append(text)
            length += len(text)
        self._continuations.clear()
        text = last.text + "".join(texts)
        if isinstance(last, ListItem):
            last = replace(last, spans=(*last.spans, *spans))
        self._blocks[-1] = replace(last, text=text)

    def build(self) -> tuple[Block, ...]:
        self._flush()
        repeated = {at for at in (0, *self._titles) if self._is_repeated(at)}
        return tuple(block for at, block in enumerate(self._blocks) if at not in repeated)

    def _is_repeated(self, at: int) -> bool:
        """Whether the next heading repeats a title, to which exporters may add the name of a site or book.

        A paragraph at the start may be a title as well, but only if the heading repeats it exactly.
        """
        title = self._blocks[at] if at < len(self._blocks) else None
        following = (block for block in self._blocks[at + 1 :] if isinstance(block, Heading))
        heading = next(following, None)
        if heading is None or not isinstance(title, Heading | Paragraph):
            return False
        if isinstance(title, Paragraph) or at not in self._titles:
            return isinstance(title, Paragraph) and title.text == heading.text
        long, short = sorted((_normalize_words(title.text), _normalize_words(heading.text)), key=len, reverse=True)
        return bool(short) and f" {short} " in f" {long} "


class NoteCollector:
    """Footnotes and endnotes, numbered by first reference."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._pending: deque[str] = deque()

    def cite(self, note_id: str) -> str:
        """Return the reference mark of a note."""
        if note_id not in self._numbers:
            self._numbers[note_id] = len(self._numbers) + 1
            self._pending.append(note_id)
        return f"[{self._numbers[note_id]}]"

    def take(self, read_text: Callable[[str], str]) -> Iterator[Paragraph]:
        """Yield the notes referenced since the last call, and those that they reference."""
        while self._pending:
            note_id = self._pending.popleft()
            yield Paragraph(f"{self.cite(note_id)} {read_text(note_id)}", role="footnote")


def _shift_spans(spans: Iterable[Span], by: int) -> tuple[Span, ...]:
    return tuple(replace(span, start=span.start + by, end=span.end + by) for span in spans)


def _is_caption(block: Block | None) -> TypeGuard[Paragraph]:
    return isinstance(block, Paragraph) and block.role == "caption"


def _normalize_words(text: str) -> str:
    return " ".join("".join(char if char.isalnum() else " " for char in text.lower()).split())


MAX_COLUMNS: Final = 1_000
"""Columns of a table in a text or on a slide; Word's own limit is 63."""

MAX_GRID_CELLS: Final = 2_000_000
"""Rows times columns, the size of a rendered table."""


def check_size(table: Table) -> Table:
    """Return the table, or raise if it is too large to render."""
    if table.columns > MAX_COLUMNS or table.rows * table.columns > MAX_GRID_CELLS:
        raise CannotConvert(f"A table of {table.rows} rows and {table.columns} columns is too large; split the file")
    return table


FIXED_PITCH_FONTS = tuple(
    "andale mono,cascadia,consolas,courier,dejavu sans mono,fira code,fira mono,hack,ibm plex mono,inconsolata,"
    "jetbrains mono,liberation mono,lucida console,menlo,monaco,noto mono,noto sans mono,roboto mono,sf mono,"
    "source code pro,ubuntu mono".split(",")
)
"""Name prefixes of monospaced fonts; text in them is code."""


def is_fixed_pitch(font: str) -> bool:
    return font.lower().startswith(FIXED_PITCH_FONTS)


@dataclass(frozen=True, slots=True)
class RunStyle:
    strong: bool = False
    emphasis: bool = False
    code: bool = False
    link: str = ""
    code_by_style: bool = False
    """Whether a code style is set, even if the font was changed."""


PLAIN = RunStyle()

_EXPONENT_BASE = re.compile(r"[\d)\]]$|(?:^|[^\w])[A-Za-z]$")
_INDEX_BASE = re.compile(r"\d$|(?:^|[^\w])[A-Za-z]$")
_ORDINAL = frozenset("st nd rd th er e o a re tm sm".split())


def format_script(tag: str, before: str, text: str) -> str:
    """Return a superscript or subscript with the mark that it needs: `2^32`, `x_i`, but `1st` and `H2O`."""
    text = text.strip()
    is_simple = text.lstrip("-+−").isalnum()
    if tag == "sub":
        needs_mark = _INDEX_BASE.search(before) is not None and (text[:1].isalpha() or before[-1:].isdigit())
        return f"_{text}" if needs_mark and is_simple else text
    if not text or text.lower() in _ORDINAL or _EXPONENT_BASE.search(before) is None:
        return text
    return f"^{text}" if is_simple else f"^({text})"


class Runs:
    """Runs in order, joined to a text with spans."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._styles: list[RunStyle] = []
        self._are_plain = True

    def add(self, text: str, style: RunStyle = PLAIN) -> None:
        if text:
            self._texts.append(text)
            self._styles.append(style)
            if style is not PLAIN:
                self._are_plain = False

    def add_script(self, tag: str, text: str, style: RunStyle = PLAIN) -> None:
        """Add a superscript (`sup`) or subscript (`sub`)."""
        self.add(format_script(tag, "".join(self._texts[-2:])[-2:], text) if text.strip() else text, style)

    def is_all_code(self) -> bool:
        """Whether every visible character is code."""
        if self._are_plain:
            return False
        visible = [style.code for text, style in zip(self._texts, self._styles, strict=True) if not text.isspace()]
        return bool(visible) and all(visible)

    def has_code_style(self) -> bool:
        return any(style.code_by_style for style in self._styles)

    def raw(self) -> str:
        return "".join(self._texts)

    def text(self) -> str:
        return self.raw().strip()

    def one_line(self) -> str:
        """Return the text on one line, for headings and captions."""
        return " ".join(self.raw().split())

    def text_and_spans(self) -> tuple[str, tuple[Span, ...]]:
        """Return the stripped text and its spans."""
        raw = self.raw()
        text = raw.strip()
        if self._are_plain:
            return text, ()
        spans: list[Span] = []
        for kind in _KINDS:
            # Adjacent runs with the same formatting are one span, without whitespace around the text.
            position = len(raw.lstrip()) - len(raw)
            values = map(attrgetter(kind), self._styles)
            for value, pieces in groupby(zip(values, self._texts, strict=True), key=itemgetter(0)):
                start = max(position, 0)
                position += sum(len(piece) for _, piece in pieces)
                if value and start < min(position, len(text)):
                    spans.append(Span(start, min(position, len(text)), kind, value if kind == "link" else ""))
        return text, tuple(sorted(spans, key=lambda span: (span.start, -span.end)))


_KINDS: Sequence[SpanKind] = ("link", "strong", "emphasis", "code")
