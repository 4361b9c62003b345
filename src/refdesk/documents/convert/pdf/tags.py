"""Structure tree of a tagged PDF: the element of each piece of page content.

Word processors and browsers write such trees. They identify headings, items and cells reliably, but not the order on a
page, code, or the meaning of containers; those are derived as for any other PDF.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import pypdfium2.raw as raw

from . import pdfium

MAX_ELEMENTS = 20_000
"""Per page; a page of dense tables has some 2,000."""

MAX_SPAN = 1_000
"""Rows or columns of one cell."""

TagKind = Literal["heading", "text", "label", "caption", "container"]

INLINE = frozenset("Span Code Link Em Strong Reference Quote Annot Ruby RB RT RP Warichu Sub BibEntry".split())
"""Elements inside of a line."""

TEXT = frozenset("P BlockQuote Note FENote TOCI Title Index Formula LBody".split())
"""Elements that are one paragraph each."""

_LEVELS = {"H": 1, **{f"H{level}": level for level in range(1, 10)}}


@dataclass(frozen=True, slots=True)
class CellTag:
    """Position of a cell in its table. Tables and rows keep their keys across pages."""

    table: int
    row: int
    place: int
    """Index of the cell in its row."""
    header: bool
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Tag:
    """Element that a piece of content belongs to."""

    block: int
    """Nearest block element, the same on every page it spans."""
    kind: TagKind
    level: int = 0
    """Level of a heading."""
    depth: int = 0
    """Number of open lists."""
    item: int = 0
    """Enclosing list item, or 0."""
    labelled: bool = False
    """Whether the item's label is on this page, so that it starts here."""
    cell: CellTag | None = None


Tags = dict[int, Tag]
"""By the id of marked content on one page."""

_get_tree = pdfium.bind(raw.FPDF_StructTree_GetForPage, ctypes.c_void_p)
_close_tree = pdfium.bind(raw.FPDF_StructTree_Close, None)
_count_roots = pdfium.bind(raw.FPDF_StructTree_CountChildren)
_get_root = pdfium.bind(raw.FPDF_StructTree_GetChildAtIndex, ctypes.c_void_p)
_get_type = pdfium.bind(raw.FPDF_StructElement_GetType, ctypes.c_ulong)
_count_children = pdfium.bind(raw.FPDF_StructElement_CountChildren)
_get_child = pdfium.bind(raw.FPDF_StructElement_GetChildAtIndex, ctypes.c_void_p)
_get_child_mark = pdfium.bind(raw.FPDF_StructElement_GetChildMarkedContentID)
_count_attributes = pdfium.bind(raw.FPDF_StructElement_GetAttributeCount)
_get_attributes = pdfium.bind(raw.FPDF_StructElement_GetAttributeAtIndex, ctypes.c_void_p)
_get_value = pdfium.bind(raw.FPDF_StructElement_Attr_GetValue, ctypes.c_void_p)
_get_number = pdfium.bind(raw.FPDF_StructElement_Attr_GetNumberValue)

_TYPE_BUFFER = ctypes.create_string_buffer(128)
_TYPE_SIZE = ctypes.c_ulong(128)
_NUMBER = ctypes.c_float()


def is_tagged(document: Any) -> bool:
    """Whether the document declares a structure tree."""
    return bool(raw.FPDFCatalog_IsTagged(document.raw))


def read_tags(page: pdfium.Handle) -> Tags:
    """Return the elements of an open page."""
    tree = _get_tree(page)
    if not tree:
        return {}
    try:
        return _TreeWalk(tree).tags
    finally:
        _close_tree(tree)


@dataclass(slots=True)
class _Element:
    """An element on the stack, with what its descendants inherit."""

    handle: int
    kind: str
    path: int
    tag: Tag
    children: int


class _TreeWalk:
    """One iterative pass over the tree, since files can nest without limit."""

    def __init__(self, tree: int) -> None:
        self.tags: Tags = {}
        self._budget = MAX_ELEMENTS
        roots = [_get_root(tree, place) for place in range(min(_count_roots(tree), MAX_ELEMENTS))]
        nothing = Tag(0, "container")
        stack = [self._make_element(root, hash((0, place)), nothing, 0) for place, root in enumerate(roots) if root]
        stack.reverse()
        while stack:
            stack += reversed(list(self._visit(stack.pop())))

    def _visit(self, element: _Element) -> Iterator[_Element]:
        """Record the content of an element and yield its children."""
        cells = 0
        if element.kind == "LI":
            children = (_get_child(element.handle, place) for place in range(min(element.children, 4)))
            if any(child and _read_type(child) == "Lbl" for child in children):
                element.tag = replace(element.tag, labelled=True)
        for place in range(element.children):
            mark = _get_child_mark(element.handle, place)
            if mark >= 0:
                self.tags[mark] = element.tag
                continue
            child = _get_child(element.handle, place)
            if not child or not self._budget:
                continue
            self._budget -= 1
            made = self._make_element(child, hash((element.path, place)), element.tag, cells, element)
            cells += made.kind in ("TD", "TH")
            yield made

    def _make_element(self, handle: int, path: int, above: Tag, cells: int, parent: _Element | None = None) -> _Element:
        kind = _read_type(handle)
        children = _count_children(handle)
        path = hash((path, kind))
        return _Element(handle, kind, path, _make_tag(handle, kind, path, above, children, cells, parent), children)


def _make_tag(handle: int, kind: str, path: int, above: Tag, children: int, cells: int, parent: _Element | None) -> Tag:
    if kind in INLINE:
        return above
    # Browsers write the text of an element as an unnamed element that holds content itself.
    if kind == "NonStruct" and any(_get_child_mark(handle, place) >= 0 for place in range(min(children, 8))):
        return above
    changes: dict[str, Any] = {"kind": "container"}
    match kind:
        case _ if kind in _LEVELS:
            changes = {"kind": "heading"}
        case _ if kind in TEXT:
            changes = {"kind": "text"}
        case "L":
            changes["depth"] = above.depth + 1
        case "LI":
            changes = {"kind": "text", "item": path, "labelled": False}
        case "Lbl":
            changes = {"kind": "label"}
        case "Caption":
            changes = {"kind": "caption"}
        case "TD" | "TH" if parent:
            table = above.cell.table if above.cell else 0
            rows, columns = _read_span(handle, b"RowSpan"), _read_span(handle, b"ColSpan")
            changes = {"kind": "text", "cell": CellTag(table, parent.path, cells, kind == "TH", rows, columns)}
        case "Table":
            changes["cell"] = CellTag(path, 0, 0, False, 1, 1)
    return replace(above, block=path, level=_LEVELS.get(kind, 0), **changes)


def _read_span(handle: int, name: bytes) -> int:
    for place in range(min(_count_attributes(handle), 4)):
        attributes = _get_attributes(handle, place)
        value = _get_value(attributes, name) if attributes else None
        if value and _get_number(value, ctypes.byref(_NUMBER)) and _NUMBER.value >= 1:
            return min(int(_NUMBER.value), MAX_SPAN)
    return 1


def _read_type(handle: int) -> str:
    size = _get_type(handle, _TYPE_BUFFER, _TYPE_SIZE)
    return _decode_name(_TYPE_BUFFER.raw[: min(max(size - 2, 0), 126)])


@lru_cache(maxsize=256)
def _decode_name(name: bytes) -> str:
    return name.decode("utf-16-le", "replace")
