"""DoclingDocument JSON: export with page provenance, and import.

The schema has no fields for inline markup and paragraph roles, so they go into `meta`; importing the JSON restores the
same document.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import orjson

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

from .blocks import MAX_GRID_CELLS
from .formats import FORMATS
from .source import SourceFile

Item = dict[str, Any]

SCHEMA_NAME = "DoclingDocument"
VERSION = "1.10.0"

SPANS = "refdesk__spans"
"""Custom fields go to an item's `meta`, which allows prefixed names: docling preserves and ignores them."""
ROLE = "refdesk__role"
NOTICE = "notice"
TERM = "refdesk__term"
"""Title of a term and the number of blocks in its definition."""
ANCHOR = "refdesk__anchor"
LANGUAGE = "refdesk__language"
PROPERTIES = "refdesk__properties"

LANGUAGES = tuple(
    "Ada Awk Bash bc C C# C++ CMake COBOL CSS Ceylon Clojure Crystal Cuda Cython D Dart dc Dockerfile Elixir Erlang "
    "FORTRAN Forth Go HTML Haskell Haxe Java JavaScript JSON Julia Kotlin Latex Lisp Lua Matlab MoonScript Nim OCaml "
    "ObjectiveC Octave PHP Pascal Perl Prolog Python Racket Ruby Rust SML SQL Scala Scheme Swift TypeScript "
    "VisualBasic XML YAML".split()
)
"""Programming languages of the schema."""

_BY_NAME = {language.lower(): language for language in LANGUAGES} | dict(
    alias.split(":")
    for alias in "sh:Bash shell:Bash console:Bash cpp:C++ csharp:C# js:JavaScript ts:TypeScript py:Python "
    "python3:Python rb:Ruby rs:Rust tex:Latex yml:YAML".split()
)
"""The schema's name of a programming language, by its name or alias in lower case."""

_KNOWN_MEDIA_TYPES = frozenset(mimetypes.types_map.values()) | {
    format.media_type for format in FORMATS.values() if format.key != "rst"
}
"""Media types that the schema's validator accepts."""


def to_json(document: Document) -> bytes:
    """Export a document."""
    return orjson.dumps(_Writer(document).build())


class _Writer:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._pages = {page.number: page for page in document.pages}
        self._kinds: dict[str, list[Item]] = {"groups": [], "texts": [], "pictures": [], "tables": []}
        self._body: Item = _make_root("body")
        self._lists: list[tuple[Item, Item | None]] = []
        """Open list groups, outermost first, each with its last item."""

    def build(self) -> Item:
        for block in self._document.blocks:
            self._add(block)
        document = self._document
        media_type = document.media_type if document.media_type in _KNOWN_MEDIA_TYPES else "text/plain"
        binary_hash = int(document.digest[:16] or "0", 16)
        origin = {"mimetype": media_type, "binary_hash": binary_hash, "filename": document.name}
        own_properties = {
            "title": document.title,
            "media_type": document.media_type,
            "page_kind": document.page_kind,
            "tags": document.tags,
            "properties": dict(document.properties),
            "warnings": document.warnings,
        }
        pages = {
            str(page.number): {"size": {"width": page.width, "height": page.height}, "page_no": page.number}
            for page in document.pages
        }
        return {
            "schema_name": SCHEMA_NAME,
            "version": VERSION,
            "name": PurePath(document.name).stem or document.title or "document",
            **({"origin": origin} if document.digest else {}),
            "furniture": _make_root("furniture"),
            "body": {**self._body, "meta": {PROPERTIES: own_properties}},
            **self._kinds,
            "key_value_items": [],
            "form_items": [],
            "pages": pages,
        }

    def _add(self, block: Block) -> None:
        if isinstance(block, ListItem):
            self._add_list_item(block)
            return
        self._lists.clear()
        match block:
            case Heading():
                label = "section_header" if block.level > 1 else "title"
                fields: Item = {"level": block.level - 1} if block.level > 1 else {}
                meta = {ROLE: NOTICE if block.is_notice else "", ANCHOR: block.anchor}
                self._add_text(block.text, block.place, label, meta=meta, **fields)
            case Paragraph():
                label = block.role if block.role in ("caption", "footnote") else "text"
                meta = {ROLE: block.role if block.role == "quote" else ""}
                fields = {"content_layer": "notes"} if block.role == "note" else {}
                self._add_text(block.text, block.place, label, block.spans, meta, **fields)
            case Term():
                term = {TERM: [block.title, block.size], ANCHOR: block.anchor}
                self._add_text(block.text, block.place, "text", block.spans, term)
            case Code():
                language = _BY_NAME.get(block.language.lower(), "unknown")
                meta = {LANGUAGE: block.language if block.language != language else ""}
                fields = {"code_language": language, "captions": [], "references": [], "footnotes": []}
                self._add_text(block.text, block.place, "code", meta=meta, **fields)
            case Table():
                item = self._add_captioned("tables", "table", block.caption, block.place)
                cells = [_make_cell(cell) for cell in block.cells]
                item["data"] = {"table_cells": cells, "num_rows": block.rows, "num_cols": block.columns}
            case Picture():
                self._add_captioned("pictures", "picture", block.caption, block.place)

    def _add_list_item(self, block: ListItem) -> None:
        depth = min(block.depth, len(self._lists))
        del self._lists[depth + 1 :]
        if len(self._lists) == depth:
            above = self._lists[-1][1] if self._lists else None
            self._lists.append((self._add_item("groups", above or self._body, {"name": "list", "label": "list"}), None))
        group, _ = self._lists[depth]
        marker: Item = {"enumerated": block.ordered, "marker": f"{block.number}." if block.ordered else "-"}
        item = self._add_text(block.text, block.place, "list_item", block.spans, parent=group, **marker)
        self._lists[depth] = (group, item)

    def _add_captioned(self, kind: str, label: str, caption: str, place: Place | None) -> Item:
        fields = {"prov": self._build_provenance(place, 0), "captions": [], "references": [], "footnotes": []}
        item = self._add_item(kind, self._body, {"label": label, **fields, "annotations": []})
        if caption:
            text = self._add_text(caption, place, "caption", parent=item)
            item["captions"] = [{"$ref": text["self_ref"]}]
        return item

    def _add_text(
        self,
        text: str,
        place: Place | None,
        label: str,
        spans: Sequence[Span] = (),
        meta: Mapping[str, Any] | None = None,
        *,
        parent: Item | None = None,
        **fields: Any,
    ) -> Item:
        """Add a text; empty values of `meta` are left out."""
        prov = self._build_provenance(place, len(text))
        item = self._add_item(
            "texts", parent or self._body, {"label": label, "prov": prov, "orig": text, "text": text, **fields}
        )
        own = {SPANS: [[span.start, span.end, span.kind, span.target] for span in spans], **(meta or {})}
        if meta := {name: value for name, value in own.items() if value}:
            item["meta"] = meta
        return item

    def _add_item(self, kind: str, parent: Item, fields: Item) -> Item:
        reference = f"#/{kind}/{len(self._kinds[kind])}"
        item: Item = {
            "self_ref": reference,
            "parent": {"$ref": parent["self_ref"]},
            "children": [],
            "content_layer": "body",
            **fields,
        }
        self._kinds[kind].append(item)
        parent["children"].append({"$ref": reference})
        return item

    def _build_provenance(self, place: Place | None, length: int) -> list[Item]:
        """Build the provenance of a block: its box within the page, or the whole page."""
        page = self._pages.get(place.page) if place else None
        if place is None or page is None:
            return []
        left, top, right, bottom = place.box or (0, 0, page.width, page.height)
        across = sorted((_clamp(left, page.width), _clamp(right, page.width)))
        down = sorted((_clamp(top, page.height), _clamp(bottom, page.height)))
        box = {"l": across[0], "t": down[0], "r": across[1], "b": down[1], "coord_origin": "TOPLEFT"}
        return [{"page_no": place.page, "bbox": box, "charspan": [0, length]}]


def _make_root(name: str) -> Item:
    return {"self_ref": f"#/{name}", "children": [], "content_layer": name, "name": "_root_", "label": "unspecified"}


def _clamp(value: float, limit: float) -> float:
    return round(min(max(value, 0.0), limit), 2)


def _make_cell(cell: Cell) -> Item:
    return {
        "row_span": cell.row_span,
        "col_span": cell.column_span,
        "start_row_offset_idx": cell.row,
        "end_row_offset_idx": cell.row + cell.row_span,
        "start_col_offset_idx": cell.column,
        "end_col_offset_idx": cell.column + cell.column_span,
        "text": cell.text,
        "column_header": cell.header,
        "row_header": False,
        "row_section": False,
    }


MAX_SPAN = 10_000
"""Longest span of a table cell, against cells that claim a billion columns."""

_SKIPPED = frozenset({"page_header", "page_footer"})
_ROLES: dict[str, ParagraphRole] = {"note": "note", "quote": "quote", "caption": "caption", "footnote": "footnote"}
_PAGE_KINDS: dict[str, PageKind] = {"slide": "slide", "sheet": "sheet"}


def convert(source: SourceFile) -> Document:
    """Convert a DoclingDocument file."""
    try:
        content = orjson.loads(source.data)
    except orjson.JSONDecodeError as error:
        raise CannotConvert(
            f"{source.name} is not JSON ({error}); give a DoclingDocument as docling exports it."
        ) from error
    if not isinstance(content, dict) or content.get("schema_name") != SCHEMA_NAME:
        raise CannotConvert(f'This JSON is no DoclingDocument: it lacks "schema_name": "{SCHEMA_NAME}".')
    try:
        return _Reader(content).read_document()
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

    def read_document(self) -> Document:
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
        is_read = "text" in item and label not in _SKIPPED
        return _read_text_block(item, str(label), depth, place) if is_read else None

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
        case "title" | "section_header":
            level = max(2, min(int(item.get("level") or 1) + 1, MAX_HEADING_LEVEL)) if label != "title" else 1
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
