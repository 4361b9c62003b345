"""PDF bookmarks: headings with their levels, as written by the authoring tool."""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pypdfium2.raw as raw

MAX_BOOKMARKS = 50_000
"""Bookmarks read; the longest manuals have some 10,000."""

MAX_DEPTH = 24
"""Levels followed; books have at most seven, and loops are endless."""

MAX_TITLE_BYTES = 2_000
"""UTF-16 bytes; longer titles are cut."""


@dataclass(frozen=True, slots=True)
class Bookmark:
    """A bookmark; level 1 is the outermost, the height is from the page's bottom where known."""

    title: str
    level: int
    page: int
    height: float | None


@dataclass(frozen=True, slots=True)
class Outline:
    """Total number of bookmarks, and those of the requested pages."""

    total: int
    entries: Sequence[Bookmark]


def read_outline(document: Any, first: int, last: int) -> Outline:
    """Return the bookmarks of the pages `first` to `last`, counted from 0, in order.

    Resolving a destination's page takes longer in longer documents. Outlines follow the pages, so bisection finds the
    relevant range.
    """
    marks = list(_iter_bookmarks(document))
    pages = _Pages(document, marks)
    start, end = 0, len(marks)
    if first > 0 or last < len(document) - 1:
        start = bisect_left(pages, first)
        end = bisect_left(pages, last + 1, lo=start)
    entries = [
        Bookmark(title, level, page, _find_height(document, mark))
        for place in range(start, end)
        for mark, level in (marks[place],)
        if first <= (page := pages[place]) <= last and (title := _read_title(mark))
    ]
    return Outline(len(marks), entries)


class _Pages(Sequence[int]):
    """Lazily resolved page of each bookmark; one without a page counts as on that of the one before."""

    def __init__(self, document: Any, marks: Sequence[tuple[Any, int]]) -> None:
        self._document = document
        self._marks = marks
        self._known: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def __getitem__(self, place: Any) -> Any:
        if place not in self._known:
            mark = self._marks[place][0]
            destination = _find_destination(self._document, mark)
            page = int(raw.FPDFDest_GetDestPageIndex(self._document.raw, destination)) if destination else -1
            self._known[place] = self[place - 1] if page < 0 < place else page
        return self._known[place]


def _iter_bookmarks(document: Any) -> Iterator[tuple[Any, int]]:
    """Yield all bookmarks in order with their levels, each once despite loops."""
    seen: set[int] = set()
    stack = [raw.FPDFBookmark_GetFirstChild(document.raw, None)]
    while stack and len(seen) < MAX_BOOKMARKS:
        mark = stack.pop()
        if not mark:
            continue
        address = ctypes.addressof(mark.contents)
        if address in seen:
            continue
        seen.add(address)
        yield mark, len(stack) + 1
        stack.append(raw.FPDFBookmark_GetNextSibling(document.raw, mark))
        if len(stack) < MAX_DEPTH:
            stack.append(raw.FPDFBookmark_GetFirstChild(document.raw, mark))


def _read_title(mark: Any) -> str:
    buffer = ctypes.create_string_buffer(MAX_TITLE_BYTES)
    size = min(raw.FPDFBookmark_GetTitle(mark, buffer, len(buffer)), len(buffer))
    return " ".join(buffer.raw[: max(size - 2, 0)].decode("utf-16-le", "ignore").split())


def _find_destination(document: Any, mark: Any) -> Any:
    destination = raw.FPDFBookmark_GetDest(document.raw, mark)
    if destination:
        return destination
    action = raw.FPDFBookmark_GetAction(mark)
    return raw.FPDFAction_GetDest(document.raw, action) if action else None


def _find_height(document: Any, mark: Any) -> float | None:
    destination = _find_destination(document, mark)
    if not destination:
        return None
    has_x, has_y, has_zoom = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    x, y, zoom = ctypes.c_float(), ctypes.c_float(), ctypes.c_float()
    found = raw.FPDFDest_GetLocationInPage(destination, has_x, has_y, has_zoom, x, y, zoom)
    return y.value if found and has_y.value else None
