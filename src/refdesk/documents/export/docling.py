"""DoclingDocument JSON export, with page provenance.

The schema has no fields for inline markup and paragraph roles, so they go into `meta`; importing the JSON restores the
same document.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import orjson

from refdesk.documents import docling_terms as terms
from refdesk.documents.convert.formats import FORMATS
from refdesk.documents.model import (
    Block,
    Cell,
    Code,
    Document,
    Heading,
    ListItem,
    Paragraph,
    Picture,
    Place,
    Span,
    Table,
    Term,
)

Item = dict[str, Any]

_KNOWN_MEDIA_TYPES = frozenset(mimetypes.types_map.values()) | {
    format.media_type for format in FORMATS.values() if format.key != "rst"
}
"""Media types that the schema's validator accepts."""


def to_json(document: Document) -> bytes:
    """Export a document as JSON."""
    return orjson.dumps(to_dict(document))


def to_dict(document: Document) -> Item:
    """Export a document as JSON values."""
    return _Tree(document).build()


class _Tree:
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
            "schema_name": terms.SCHEMA_NAME,
            "version": terms.VERSION,
            "name": PurePath(document.name).stem or document.title or "document",
            **({"origin": origin} if document.digest else {}),
            "furniture": _make_root("furniture"),
            "body": {**self._body, "meta": {terms.PROPERTIES: own_properties}},
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
                item = self._add_text(block.text, block.place, "section_header" if block.level > 1 else "title")
                if block.level > 1:
                    item["level"] = block.level - 1
                meta = ({terms.ROLE: terms.NOTICE} if block.is_notice else {}) | (
                    {terms.ANCHOR: block.anchor} if block.anchor else {}
                )
                if meta:
                    item["meta"] = meta
            case Paragraph():
                label = block.role if block.role in ("caption", "footnote") else "text"
                item = self._add_text(block.text, block.place, label, spans=block.spans)
                if block.role == "note":
                    item["content_layer"] = "notes"
                elif block.role == "quote":
                    item.setdefault("meta", {})[terms.ROLE] = block.role
            case Term():
                item = self._add_text(block.text, block.place, "text", spans=block.spans)
                term: Item = {terms.TERM: [block.title, block.size]} | (
                    {terms.ANCHOR: block.anchor} if block.anchor else {}
                )
                item.setdefault("meta", {}).update(term)
            case Code():
                language = terms.map_language(block.language)
                item = self._add_text(block.text, block.place, "code", code_language=language)
                item |= {"captions": [], "references": [], "footnotes": []}
                if block.language and block.language != language:
                    item["meta"] = {terms.LANGUAGE: block.language}
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
        marker = {"enumerated": block.ordered, "marker": f"{block.number}." if block.ordered else "-"}
        item = self._add_text(block.text, block.place, "list_item", parent=group, spans=block.spans, **marker)
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
        *,
        parent: Item | None = None,
        spans: Sequence[Span] = (),
        **fields: Any,
    ) -> Item:
        prov = self._build_provenance(place, len(text))
        item = self._add_item(
            "texts", parent or self._body, {"label": label, "prov": prov, "orig": text, "text": text, **fields}
        )
        if spans:
            item["meta"] = {terms.SPANS: [[span.start, span.end, span.kind, span.target] for span in spans]}
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
