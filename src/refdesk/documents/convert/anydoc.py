"""ODT, RTF, EPUB, DOC, PPT and XLS, parsed by the anydoc and office_oxide libraries.

Old presentations come without slide numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import anydoc
import office_oxide

from refdesk.documents.model import Cell, Code, Document, ListItem, Paragraph, ParagraphRole, Picture, Table
from refdesk.errors import CannotConvert

from .blocks import BlockBuilder, NoteCollector, Runs, RunStyle, check_size
from .formats import detect_kind
from .ooxml import open_package
from .sheets import MAX_CELLS, Budget, Sheet, build_sheet_blocks, warn_hidden
from .source import SourceFile

_ZIPPED: Final = frozenset(("odt", "epub"))
_RTF_TITLE = re.compile(rb"\{\\title\s+([^{}\\]+)\}")
_TYPED_MARKER = re.compile(r"(?:(?P<bullet>[•▪‣·])|(?P<deeper>[–◦])|(?P<number>\d{1,3})[.)])[ \t]+(?=\S)")
"""List markers in the text: programs don't agree on lists in RTF, so markers are often typed."""
_NUMBER = re.compile(r"[-+]?[\d.,]+(?:E[-+]?\d+)?%?", re.IGNORECASE)
"""Text that reads as a number, since the library doesn't report cell types."""


def convert(source: SourceFile) -> Document:
    """Convert a text document or a presentation."""
    kind: Any = detect_kind(source.data)
    properties, tags = _read_properties(source.data, kind)
    with _translate_library_errors():
        parsed: Any = anydoc.to_document(source.data, kind)
    reader = _Reader(parsed, properties.get("title", ""), typed_markers=kind == "rtf", book=kind == "epub")
    reader.read()
    blocks = reader.blocks.build()
    return Document(
        title=source.choose_title(properties, blocks),
        blocks=blocks,
        page_kind="slide" if kind == "ppt" else "page",
        tags=tags,
        properties=properties,
    )


def convert_sheets(source: SourceFile) -> Document:
    """Convert an XLS workbook."""
    warnings: list[str] = []
    with _translate_library_errors():
        sheets = list(_read_xls_sheets(source.data, warnings))
    wanted = source.select_pages(len(sheets))
    blocks = [block for number in wanted for block in build_sheet_blocks(sheets[number - 1], number)]
    return source.build_document("sheet", len(sheets), blocks, {}, (), warnings=warnings)


@contextmanager
def _translate_library_errors() -> Iterator[None]:
    try:
        yield
    except anydoc.EncryptedError as error:
        raise CannotConvert("The file is protected by a password; save a copy without one and convert that") from error
    except anydoc.ResourceLimitError as error:
        raise CannotConvert("The file is larger or nested deeper than can be converted; split it") from error
    except (anydoc.ConvertError, office_oxide.OfficeOxideError) as error:
        raise CannotConvert("The file is broken or incomplete and cannot be read; save or download it again") from error


def _read_properties(data: bytes, kind: str | None) -> tuple[dict[str, str], tuple[str, ...]]:
    if kind == "rtf":
        match = _RTF_TITLE.search(data[:100_000])
        return ({"title": match[1].decode("latin-1").strip()} if match else {}), ()
    return open_package(data).read_properties() if kind in _ZIPPED else ({}, ())


class _Reader:
    """Flattens the library's tree of blocks, with a stack instead of recursion."""

    def __init__(self, parsed: Any, title: str, *, typed_markers: bool, book: bool) -> None:
        self._parsed = parsed
        self._title = title
        self._typed_markers = typed_markers
        self._book = book
        self._notes = {note.id: note for note in parsed.notes}
        self._citations = NoteCollector()
        self.blocks = BlockBuilder()

    def read(self) -> None:
        pending: list[tuple[Any, ListItem | None, ParagraphRole]] = _stack_blocks(self._parsed.blocks)
        while pending:
            block, item, role = pending.pop()
            match block.kind:
                case "heading":
                    self._add_heading(block)
                case "paragraph":
                    self._add_paragraph(block, item, role)
                case "list":
                    depth = item.depth + 1 if item else 0
                    for number, entry in reversed(list(enumerate(block.list.items, max(block.list.start, 1)))):
                        inner = ListItem("", depth=depth, ordered=block.list.marker != "bullet", number=number)
                        pending += _stack_blocks(entry.blocks[1:], replace(inner, number=0))
                        pending += _stack_blocks(entry.blocks[:1], inner)
                case "table":
                    pending += self._add_table(block.table)
                case "block_quote":
                    pending += _stack_blocks(block.blocks, item, "quote")
                case "code_block":
                    self.blocks.add(Code((block.text or "").rstrip(), block.lang or ""))
                case "math":
                    self.blocks.add(Paragraph(f"${block.text}$"))
        self._add_notes()

    def _add_heading(self, block: Any) -> None:
        self._add_notes()
        text = self._read_runs(block.content).one_line()
        if self._book and text == (self._title or text):
            self._title = text
            self.blocks.add_title(text, block.level or 1)
        elif text:
            self._book = False
            self.blocks.add_heading(text, block.level or 1)

    def _add_paragraph(self, block: Any, item: ListItem | None, role: ParagraphRole) -> None:
        """Add a paragraph. The first one of a list item has the item's number, later ones have 0."""
        runs = self._read_runs(block.content)
        for inline in block.content:
            if inline.kind == "image":
                self.blocks.add(Picture(" ".join((inline.alt or "").split())))
        text, spans = runs.text_and_spans()
        if not text:
            self.blocks.add_blank_line()
        elif text == self._title and not self._book:
            self._title = ""
            self.blocks.add_title(text)
        elif item and item.number:
            self.blocks.add(replace(item, text=text, spans=spans))
        elif item and self.blocks.is_in_list:
            self.blocks.continue_item(text, spans)
        elif item:
            self.blocks.add(Paragraph(text, spans))
        elif runs.is_all_code():
            self.blocks.add_monospaced(runs.raw().rstrip(), Paragraph(text, spans))
        elif self._typed_markers and (marker := _TYPED_MARKER.match(text)):
            depth = 1 if marker["deeper"] and self.blocks.is_in_list else 0
            number = marker["number"]
            item = ListItem(text[marker.end() :], depth=depth, ordered=bool(number), number=int(number or 1))
            self.blocks.add(item)
        else:
            self.blocks.add(Paragraph(text, spans, role))

    def _add_table(self, table: Any) -> list[tuple[Any, ListItem | None, ParagraphRole]]:
        """Add a table; the blocks of a layout table are returned instead."""
        slots = [slot for row in table.grid for slot in row]
        if len(slots) == 1 or table.kind == "layout":
            return _stack_blocks([block for slot in slots if slot.cell for block in slot.cell.blocks])
        cells = tuple(
            Cell(text, row, column, slot.cell.row_span, slot.cell.col_span, header=row < max(table.header_rows, 1))
            for row, slots in enumerate(table.grid)
            for column, slot in enumerate(slots)
            if slot.cell
            and ((text := self._join_text(slot.cell.blocks)) or slot.cell.col_span + slot.cell.row_span > 2)
        )
        if any(cell.text for cell in cells):
            self.blocks.add(check_size(Table(cells, len(table.grid), max(map(len, table.grid)))))
        return []

    def _join_text(self, blocks: Sequence[Any]) -> str:
        """Join all text below some blocks, one line each."""
        lines: list[str] = []
        pending = list(reversed(blocks))
        while pending:
            block = pending.pop()
            if block.content is not None:
                lines.append(self._read_runs(block.content).text())
            elif block.text:
                lines.append(block.text)
            pending += reversed(list(_iter_children(block)))
        return "\n".join(filter(None, lines))

    def _read_runs(self, content: Iterable[Any]) -> Runs:
        runs = Runs()
        pending = [(inline, "") for inline in reversed(list(content))]
        while pending:
            inline, link = pending.pop()
            if inline.kind == "link":
                target = inline.target.value if inline.target and inline.target.kind == "external" else link
                pending += ((child, target) for child in reversed(inline.content or []))
            else:
                style = inline.style
                formatting = RunStyle(style.bold, style.italic, style.code, link) if style else RunStyle(link=link)
                runs.add(self._get_inline_text(inline), formatting)
        return runs

    def _get_inline_text(self, inline: Any) -> str:
        match inline.kind:
            case "text":
                return inline.text or ""
            case "line_break":
                return "\n"
            case "math":
                return f"${inline.text}$"
            case "checkbox":
                return "☒ " if inline.checked else "☐ "
            case "note_ref" if inline.note_id in self._notes:
                return self._citations.cite(inline.note_id)
        return ""

    def _add_notes(self) -> None:
        """Add notes at the end of their section."""
        for note in self._citations.take(lambda note_id: self._join_text(self._notes[note_id].blocks)):
            self.blocks.add(note)


def _stack_blocks(
    blocks: Iterable[Any], item: ListItem | None = None, role: ParagraphRole = "text"
) -> list[tuple[Any, ListItem | None, ParagraphRole]]:
    return [(block, item, role) for block in reversed(list(blocks))]


def _iter_children(block: Any) -> Iterator[Any]:
    yield from block.blocks or ()
    if block.list:
        yield from (child for item in block.list.items for child in item.blocks)
    if block.table:
        yield from (child for row in block.table.grid for slot in row if slot.cell for child in slot.cell.blocks)


def _read_xls_sheets(data: bytes, warnings: list[str]) -> Iterator[Sheet]:
    hidden: list[str] = []
    budget = Budget()
    for section in office_oxide.Document.from_bytes(data, "xls").to_ir()["sections"]:
        if section.get("hidden"):
            hidden.append(section["title"])
            continue
        sheet = Sheet(section["title"], budget)
        lines = ((row, line) for table in section["elements"] for row, line in enumerate(table.get("rows", ())))
        for row, line in lines:
            for column, cell in enumerate(line["cells"]):
                runs = (run for paragraph in cell["content"] for run in paragraph.get("content", ()))
                text = "".join(run.get("text", "") for run in runs).strip()
                if not text:
                    continue
                sheet.put(row, column, text, cell["row_span"], cell["col_span"], is_text=not _NUMBER.fullmatch(text))
                if min(budget.cells, budget.characters) < 0:
                    raise CannotConvert(f"The workbook holds more than {MAX_CELLS} cells; split it or save it as XLSX")
        yield sheet
    warnings += warn_hidden(hidden)
