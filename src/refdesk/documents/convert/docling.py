"""DoclingDocument JSON to a Document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from refdesk.documents.convert.blocks import MAX_GRID_CELLS
from refdesk.documents.convert.source import SourceFile
from refdesk.documents.docling_terms import ANCHOR, LANGUAGE, NOTICE, PROPERTIES, ROLE, SCHEMA_NAME, SPANS, TERM
from refdesk.documents.model import (
    MAX_HEADING_LEVEL,
    Block,
    Cell,
    Code,
    Document,
    Heading,
    ListItem,
    Page,
    PageKind,
    Paragraph,
    ParagraphRole,
    Picture,
    Place,
    Span,
    Table,
    Term,
)
from refdesk.errors import CannotConvert
from refdesk.validation import shorten

MAX_SPAN = 10_000
"""Longest span of a table cell, against cells that claim a billion columns."""

_SKIPPED = frozenset({"page_header", "page_footer"})
_ROLES: dict[str, ParagraphRole] = {"note": "note", "quote": "quote", "caption": "caption", "footnote": "footnote"}
_PAGE_KINDS: dict[str, PageKind] = {"slide": "slide", "sheet": "sheet"}

Item = Mapping[str, Any]


def convert(source: SourceFile) -> Document:
    """Convert a DoclingDocument file."""
    try:
        content = orjson.loads(source.data)
    except orjson.JSONDecodeError as error:
        raise CannotConvert(
            f"{source.name} is not JSON ({error}); give a DoclingDocument as docling exports it."
        ) from error
    return from_dict(content, source.name)


def is_docling(content: object) -> bool:
    """Whether a JSON value declares itself a DoclingDocument."""
    return isinstance(content, dict) and content.get("schema_name") == SCHEMA_NAME


def from_dict(content: Any, name: str = "") -> Document:
    """Build the document from JSON values."""
    if not is_docling(content):
        raise CannotConvert(f'This JSON is no DoclingDocument: it lacks "schema_name": "{SCHEMA_NAME}".')
    try:
        return _Reader(content).read_document(name)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise CannotConvert(f"This DoclingDocument does not follow its schema ({reason}); export it anew.") from error


class _Reader:
    """Walks the tree of references in reading order; each item is read once, so loops end."""

    def __init__(self, content: Item) -> None:
        self._content = content
        pages = [(int(page["page_no"]), page.get("size") or {}) for page in (content.get("pages") or {}).values()]
        self._pages = tuple(
            Page(number, float(size.get("width") or 0), float(size.get("height") or 0))
            for number, size in sorted(pages, key=lambda page: page[0])
        )
        self._heights = {page.number: page.height for page in self._pages}
        self._seen: set[str] = set()

    def read_document(self, name: str) -> Document:
        content = self._content
        blocks = tuple(self._iter_blocks())
        own_properties = (content["body"].get("meta") or {}).get(PROPERTIES) or {}
        heading = next((block.text for block in blocks if isinstance(block, Heading)), "")
        origin = content.get("origin") or {}
        return Document(
            title=str(own_properties.get("title") or heading or content.get("name") or ""),
            blocks=blocks,
            pages=self._pages,
            page_kind=_PAGE_KINDS.get(str(own_properties.get("page_kind")), "page"),
            name=str(name or origin.get("filename") or content.get("name") or ""),
            media_type=str(own_properties.get("media_type") or origin.get("mimetype") or ""),
            tags=tuple(map(str, own_properties.get("tags") or ())),
            properties={str(key): str(value) for key, value in (own_properties.get("properties") or {}).items()},
            warnings=tuple(map(str, own_properties.get("warnings") or ())),
        )

    def _iter_blocks(self) -> Iterator[Block]:
        """Yield the blocks depth first; the stack holds references with their list depth."""
        stack = [(reference, -1) for reference in reversed(self._content["body"]["children"])]
        while stack:
            reference, depth = stack.pop()
            item = self._resolve(reference)
            if item is None or item.get("content_layer", "body") not in ("body", "notes"):
                continue
            if item.get("label") == "inline":
                yield from self._read_inline(item)
                continue
            within = depth + (item.get("label") in ("list", "ordered_list"))
            block = self._read_block(item, max(within, 0))
            if block is not None:
                yield block
            stack += [(child, within) for child in reversed(item.get("children") or [])]

    def _resolve(self, reference: Item) -> Item | None:
        """Return the item of a reference such as `#/texts/3`, or None the second time."""
        pointer = str(reference.get("$ref") or reference.get("cref"))
        if pointer in self._seen:
            return None
        self._seen.add(pointer)
        kind, _, index = pointer.removeprefix("#/").partition("/")
        items = self._content.get(kind)
        if not (isinstance(items, list) and index.isdecimal() and int(index) < len(items)):
            raise ValueError(f"the reference {shorten(pointer)!r} leads nowhere")
        item: Item = items[int(index)]
        return item

    def _read_block(self, item: Item, depth: int) -> Block | None:
        label = item.get("label")
        place = self._read_place(item)
        if "data" in item:
            data = item["data"]
            cells = tuple(_read_cell(cell) for cell in data.get("table_cells") or [])
            rows, columns = int(data.get("num_rows") or 0), int(data.get("num_cols") or 0)
            covered = sum(cell.row_span * cell.column_span for cell in cells)
            if max(rows * columns, covered, rows, columns) > MAX_GRID_CELLS:
                raise ValueError(f"a table of {rows} × {columns} whose cells cover {covered} places")
            return Table(cells, rows, columns, self._read_caption(item), place)
        if label in ("picture", "chart"):
            return Picture(self._read_caption(item), place)
        if "text" not in item or label in _SKIPPED:
            return None
        return _read_text_block(item, str(label), depth, place)

    def _read_inline(self, group: Item) -> Iterator[Block]:
        text, spans = "", list[Span]()
        pieces = [piece for child in group.get("children") or [] if (piece := self._resolve(child))]
        for piece in pieces:
            start = len(text) + bool(text)
            text = f"{text} {piece.get('text', '')}" if text else str(piece.get("text", ""))
            spans += _read_format_spans(piece, start, len(text))
        if text:
            yield Paragraph(text, tuple(spans), place=self._read_place(pieces[0]))

    def _read_caption(self, item: Item) -> str:
        """Return the caption's text and mark it as read."""
        captions = [self._resolve(reference) for reference in item.get("captions") or []]
        return " ".join(str(caption.get("text", "")) for caption in captions if caption)

    def _read_place(self, item: Item) -> Place | None:
        provenance = next(iter(item.get("prov") or []), None)
        if provenance is None:
            return None
        page, box = int(provenance["page_no"]), provenance.get("bbox")
        if box is None:
            return Place(page)
        top, bottom = float(box["t"]), float(box["b"])
        if box.get("coord_origin") == "BOTTOMLEFT":
            height = self._heights.get(page, max(top, bottom))
            top, bottom = height - top, height - bottom
        return Place(page, (float(box["l"]), min(top, bottom), float(box["r"]), max(top, bottom)))


def _read_text_block(item: Item, label: str, depth: int, place: Place | None) -> Block | None:
    text, meta = str(item["text"]), item.get("meta") or {}
    spans = tuple(_read_own_spans(meta, len(text))) or tuple(_read_format_spans(item, 0, len(text)))
    match label:
        case "title":
            return Heading(text, 1, place, meta.get(ROLE) == NOTICE, str(meta.get(ANCHOR) or ""))
        case "section_header":
            level = max(2, min(int(item.get("level") or 1) + 1, MAX_HEADING_LEVEL))
            return Heading(text, level, place, meta.get(ROLE) == NOTICE, str(meta.get(ANCHOR) or ""))
        case "list_item":
            digits = "".join(filter(str.isdecimal, str(item.get("marker") or "")))[:9]
            ordered = bool(item.get("enumerated"))
            return ListItem(text, spans, depth, ordered, int(digits) if ordered and digits else 1, place)
        case "code":
            language = meta.get(LANGUAGE) or item.get("code_language") or ""
            return Code(text, "" if language == "unknown" else "".join(str(language).split())[:40], place)
        case "formula":
            return Code(text or str(item.get("orig", "")), "latex", place)
        case "checkbox_selected" | "checkbox_unselected":
            return ListItem(f"[{'x' if label == 'checkbox_selected' else ' '}] {text}", depth=depth, place=place)
    if not text:
        return None
    if term := meta.get(TERM):
        title, size = term
        return Term(text, str(title), spans, int(size), str(meta.get(ANCHOR) or ""), place)
    role = "note" if item.get("content_layer") == "notes" else meta.get(ROLE) or label
    return Paragraph(text, spans, _ROLES.get(role, "text"), place)


def _read_own_spans(meta: Item, length: int) -> Iterator[Span]:
    for start, end, kind, target in meta.get(SPANS) or []:
        if kind not in ("code", "strong", "emphasis", "link") or not 0 <= start < end <= length:
            raise ValueError(f"a span {start}–{end} of kind {kind!r}")
        yield Span(start, end, kind, str(target))


def _read_format_spans(item: Item, start: int, end: int) -> Iterator[Span]:
    formatting = item.get("formatting") or {}
    if item.get("label") == "code" and start < end:
        yield Span(start, end, "code")
    if formatting.get("bold"):
        yield Span(start, end, "strong")
    if formatting.get("italic"):
        yield Span(start, end, "emphasis")
    if item.get("hyperlink"):
        yield Span(start, end, "link", str(item["hyperlink"]))


def _read_cell(cell: Item) -> Cell:
    row, column = int(cell["start_row_offset_idx"]), int(cell["start_col_offset_idx"])
    rows, columns = int(cell["end_row_offset_idx"]) - row, int(cell["end_col_offset_idx"]) - column
    if not (0 < rows <= MAX_SPAN and 0 < columns <= MAX_SPAN and row >= 0 and column >= 0):
        raise ValueError(f"a table cell of {rows} × {columns} at {row}, {column}")
    return Cell(str(cell.get("text", "")), row, column, rows, columns, bool(cell.get("column_header")))
