"""Page content from PDFium: words with positions and fonts, rules, dots and pictures.

All coordinates are in points from the top left corner of the displayed page, so that rotation, crop boxes and the
upward axis don't matter downstream.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, repeat
from typing import Any

from pypdfium2 import PdfMatrix

from refdesk.documents.model import Box

from . import pdfium
from .pdfium import Font, read_font
from .tags import Tags, read_tags

MAX_CHARACTERS = 200_000
"""Per page; dense print has some 6,000, so more is an attack or a plot."""

MAX_OBJECTS = 30_000
"""Drawn objects read per page: maps and plots have hundreds of thousands, and none is a table."""

MAX_SEGMENTS = 400
"""Segments read per path: a grid drawn as one path has fewer, a curve more."""

MAX_FORM_DEPTH = 6
"""Nested form objects; real files have two or three levels."""

FARTHEST = 1e5
"""Points; content farther away isn't on the page."""

OVERFLOW = 2.0
"""Page widths up to which a line that starts on the page is read, since long code lines overflow."""

RULE_THICKNESS = 3.0
"""Points; thinner and long shapes are rules, not areas."""

DEFAULT_SIZE = 10.0
"""Points, for letters with an implausible size."""

RULE_LENGTH = 8.0
"""Points; shorter strokes are parts of glyphs, fractions and logos."""

DOT_SIZE = 8.0
"""Points; a filled shape up to this size may be a bullet."""

HYPHENS = "\x02\ufffe\u00ad"
"""PDFium's codes for a hyphen at a line end, and the soft hyphen."""

_TOKEN = re.compile(r"[^\s\x00\x02\ufffe\u00ad]+[\x02\ufffe\u00ad]?|[\x02\ufffe\u00ad]")
_LIGATURES = str.maketrans(
    {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st", "\u200b": "", "\ufeff": ""}
)


@dataclass(slots=True)
class Word:
    """Letters without a space, in one font on one baseline. Mutable for speed, since a book has a million."""

    text: str
    left: float
    right: float
    base: float
    size: float
    font: Font
    mark: int
    """Id of its marked content, or -1."""
    glued: bool = False
    """Whether it follows the previous word without a space."""


@dataclass(slots=True)
class PageContent:
    """Content of a page, not yet in reading order."""

    number: int
    width: float
    height: float
    words: list[Word] = field(default_factory=list)
    across: list[Box] = field(default_factory=list)
    """Horizontal rules."""
    down: list[Box] = field(default_factory=list)
    """Vertical rules."""
    areas: list[Box] = field(default_factory=list)
    """Filled or framed boxes: cell backgrounds, frames around code."""
    dots: list[Box] = field(default_factory=list)
    pictures: list[Box] = field(default_factory=list)
    tags: Tags = field(default_factory=dict)
    scanned: bool = False
    """Whether it is an image of text; its words, if any, come from OCR."""
    cut: bool = False
    """Whether limits cut off some content."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Mapping from page space to the displayed page: cropped, and rotated by quarters."""

    left: float
    bottom: float
    right: float
    top: float
    quarters: int

    @property
    def width(self) -> float:
        return self.top - self.bottom if self.quarters % 2 else self.right - self.left

    @property
    def height(self) -> float:
        return self.right - self.left if self.quarters % 2 else self.top - self.bottom

    def point(self, x: float, y: float) -> tuple[float, float]:
        """Map a point, to coordinates from the top left."""
        match self.quarters:
            case 0:
                return x - self.left, self.top - y
            case 1:
                return y - self.bottom, x - self.left
            case 2:
                return self.right - x, y - self.bottom
            case _:
                return self.top - y, self.right - x

    def box(self, left: float, bottom: float, right: float, top: float) -> Box:
        (x, y), (other_x, other_y) = self.point(left, bottom), self.point(right, top)
        return min(x, other_x), min(y, other_y), max(x, other_x), max(y, other_y)


def read_page(document: Any, index: int, *, tagged: bool) -> PageContent:
    """Read one page; one that can't be loaded is empty."""
    page = pdfium.load_page(ctypes.cast(document.raw, ctypes.c_void_p).value, index)
    if not page:
        return PageContent(index + 1, 0, 0, cut=True)
    try:
        return _Reader(page, index + 1, tagged).read()
    finally:
        pdfium.close_page(page)


class _Reader:
    def __init__(self, page: pdfium.Handle, number: int, tagged: bool) -> None:
        self._page = page
        self._frame = read_frame(page)
        self._tagged = tagged
        self._fonts: dict[int, Font] = {}
        self._content = PageContent(number, self._frame.width, self._frame.height)

    def read(self) -> PageContent:
        text_page = pdfium.load_text(self._page)
        if text_page:
            try:
                self._read_words(text_page)
            finally:
                pdfium.close_text(text_page)
        self._content.width, self._content.height = self._frame.width, self._frame.height
        self._read_objects()
        if self._tagged:
            self._content.tags = read_tags(self._page)
        return self._content

    def _read_words(self, text_page: pdfium.Handle) -> None:
        text = _read_text(text_page)
        if len(text) > MAX_CHARACTERS:
            text, self._content.cut = text[:MAX_CHARACTERS], True
        starts, ends = _find_tokens(text, text_page)
        if not starts:
            return
        firsts = list(map(pdfium.get_character_object, repeat(text_page), starts))
        runs = self._read_runs(text_page, firsts, starts)
        start_boxes = pdfium.boxes.fill(pdfium.get_character_box, text_page, starts)
        end_boxes = pdfium.boxes.fill(pdfium.get_character_box, text_page, [end - 1 for end in ends])
        # Boxes are (left, top, right, bottom) in page space.
        words = self._content.words
        frame, width, height = self._frame, self._frame.width, self._frame.height
        upright, shift = frame.quarters == 0, frame.left
        at, previous_end, kept_base = 0, -1, -1.0
        for start, end, first in zip(starts, ends, firsts, strict=True):
            run = runs[first]
            if upright:
                left, right = start_boxes[at] - shift, end_boxes[at + 2] - shift
                if right < left:  # right to left
                    left, right = end_boxes[at] - shift, start_boxes[at + 2] - shift
            else:
                edges = [
                    frame.box(box[0], box[3], box[2], box[1])
                    for box in (start_boxes[at : at + 4], end_boxes[at : at + 4])
                ]
                left, right = min(edge[0] for edge in edges), max(edge[2] for edge in edges)
            at += 4
            reach = width * OVERFLOW if run.base == kept_base else width
            if run.level and -1 < left < reach and left < right < FARTHEST and 0 <= run.base <= height + run.size:
                kept_base = run.base
                token = text[start:end]
                if token[-1] in HYPHENS:
                    token = token[:-1] + "-"
                token = token if token.isascii() else token.translate(_LIGATURES)
                words.append(Word(token, left, right, run.base, run.size, run.font, run.mark, start == previous_end))
            previous_end = end

    def _read_runs(self, text_page: pdfium.Handle, objects: Sequence[int], starts: Sequence[int]) -> dict[int, _Run]:
        """Return the common properties of the words of each text object."""
        first_places: dict[int, int] = {}
        for handle, start in zip(objects, starts, strict=True):
            first_places.setdefault(handle, start)
        places = list(first_places.values())
        matrices = pdfium.matrices.fill(pdfium.get_character_matrix, text_page, places)
        sizes = list(map(pdfium.get_character_size, repeat(text_page), places))
        # Rotate the page so that most text runs from left to right.
        directions = Counter(
            _find_direction(self._frame, a, b) for a, b in zip(matrices[0::6], matrices[1::6], strict=True)
        )
        direction, count = directions.most_common(1)[0]
        if direction and count > 0.8 * directions.total():
            self._frame = replace(self._frame, quarters=(self._frame.quarters - direction) % 4)
        return {
            handle: self._read_run(handle, size, matrices[6 * place : 6 * place + 6])
            for place, (handle, size) in enumerate(zip(first_places, sizes, strict=True))
        }

    def _read_run(self, handle: int, size: float, matrix: Sequence[float]) -> _Run:
        a, b, c, d, e, f = matrix
        base = self._frame.point(e, f)[1]
        level = _find_direction(self._frame, a, b) == 0
        height = size * math.hypot(c, d)
        mark = pdfium.get_mark_id(handle) if self._tagged and handle else -1
        font = pdfium.get_font(handle) if handle else 0
        if font not in self._fonts:
            self._fonts[font] = read_font(font)
        return _Run(self._fonts[font], height if 0.5 < height < 1000 else DEFAULT_SIZE, base, mark, level)

    def _read_objects(self) -> None:
        """Read rules, areas, dots and pictures, also inside of forms."""
        budget = MAX_OBJECTS
        on_page = map(pdfium.get_object, repeat(self._page), range(pdfium.count_objects(self._page)))
        stack: list[tuple[Iterator[int], PdfMatrix | None]] = [(on_page, None)]
        while stack:
            objects, matrix = stack[-1]
            handle = next(objects, 0)
            if not handle:
                stack.pop()
                continue
            budget -= 1
            if not budget:
                self._content.cut = True
                return
            kind = pdfium.get_object_type(handle)
            if kind == pdfium.PATH_OBJECT:
                segments = pdfium.count_segments(handle)
                if 6 < segments <= MAX_SEGMENTS:
                    self._read_segments(handle, segments, matrix)
                else:
                    self._add_shape(self._frame.box(*_read_bounds(handle, matrix)))
            elif kind == pdfium.IMAGE_OBJECT:
                self._content.pictures.append(self._frame.box(*_read_bounds(handle, matrix)))
            elif kind == pdfium.FORM_OBJECT and len(stack) < MAX_FORM_DEPTH:
                indices = map(ctypes.c_ulong, range(min(pdfium.count_form_objects(handle), MAX_OBJECTS)))
                inside = map(pdfium.get_form_object, repeat(handle), indices)
                stack.append((inside, _combine(_read_matrix(handle), matrix)))

    def _add_shape(self, box: Box) -> None:
        left, top, right, bottom = box
        if not (-FARTHEST < left <= right < FARTHEST and -FARTHEST < top <= bottom < FARTHEST):
            return
        width, height = right - left, bottom - top
        content = self._content
        if height <= RULE_THICKNESS and width >= RULE_LENGTH:
            content.across.append(box)
        elif width <= RULE_THICKNESS and height >= RULE_LENGTH:
            content.down.append(box)
        elif width <= DOT_SIZE and height <= DOT_SIZE:
            content.dots.append(box)
        elif width >= RULE_LENGTH and height >= RULE_LENGTH:
            content.areas.append(box)

    def _read_segments(self, handle: int, count: int, matrix: PdfMatrix | None) -> None:
        """Read a path of many segments, which may be a whole grid or a round dot."""
        bounds = self._frame.box(*_read_bounds(handle, matrix))
        if bounds[2] - bounds[0] <= DOT_SIZE and bounds[3] - bounds[1] <= DOT_SIZE:
            self._content.dots.append(bounds)
            return
        points = [_read_point(pdfium.get_segment(handle, index)) for index in range(count)]
        whole = _combine(_read_matrix(handle), matrix)
        if whole is not None:
            points = [whole.on_point(*point) for point in points]
        seen = [self._frame.point(*point) for point in points]
        for (x, y), (other_x, other_y) in pairwise(seen):
            if abs(x - other_x) <= RULE_THICKNESS or abs(y - other_y) <= RULE_THICKNESS:
                self._add_shape((min(x, other_x), min(y, other_y), max(x, other_x), max(y, other_y)))


@dataclass(slots=True)
class _Run:
    """Common properties of the words of one text object."""

    font: Font
    size: float
    base: float
    mark: int
    level: bool


def read_frame(page: pdfium.Handle) -> Frame:
    """Return the displayed part of the page and its rotation."""
    box = _read_page_box(pdfium.get_crop_box, page) or _read_page_box(pdfium.get_media_box, page)
    quarters = pdfium.get_rotation(page) % 4
    if box is None:
        width, height = pdfium.get_width(page), pdfium.get_height(page)
        box = (0.0, 0.0, height, width) if quarters % 2 else (0.0, 0.0, width, height)
    return Frame(*box, quarters)


def _read_page_box(function: Any, page: pdfium.Handle) -> Box | None:
    if not function(page, *_FOUR_REFERENCES):
        return None
    left, bottom, right, top = (value.value for value in _FOUR)
    if not all(map(math.isfinite, (left, bottom, right, top))) or right - left < 1 or top - bottom < 1:
        return None
    return left, bottom, right, top


_FOUR = tuple(ctypes.c_float() for _ in range(4))
_FOUR_REFERENCES = tuple(map(ctypes.byref, _FOUR))
_SIX = (ctypes.c_float * 6)()
_SIX_REFERENCE = ctypes.byref(_SIX)


def _read_bounds(handle: int, matrix: PdfMatrix | None) -> Box:
    """Return left, bottom, right, top of an object in page space."""
    if not pdfium.get_object_bounds(handle, *_FOUR_REFERENCES):
        return 0.0, 0.0, 0.0, 0.0
    left, bottom, right, top = (value.value for value in _FOUR)
    if matrix is None:
        return left, bottom, right, top
    (x, y), (other_x, other_y) = matrix.on_point(left, bottom), matrix.on_point(right, top)
    return min(x, other_x), min(y, other_y), max(x, other_x), max(y, other_y)


def _read_matrix(handle: int) -> PdfMatrix | None:
    if not pdfium.get_object_matrix(handle, _SIX_REFERENCE):
        return None
    values = tuple(_SIX)
    return None if values == (1, 0, 0, 1, 0, 0) else PdfMatrix(*values)


def _combine(inner: PdfMatrix | None, outer: PdfMatrix | None) -> PdfMatrix | None:
    """Compose two transformations, inner first."""
    return inner.multiply(outer) if inner and outer else inner or outer


def _read_point(segment: int) -> tuple[float, float]:
    pdfium.get_segment_point(segment, _FOUR_REFERENCES[0], _FOUR_REFERENCES[1])
    return _FOUR[0].value, _FOUR[1].value


def _read_text(text_page: pdfium.Handle) -> str:
    """Return the page's text, one character for each of PDFium's."""
    count = pdfium.count_characters(text_page)
    if count <= 0:
        return ""
    buffer = ctypes.create_string_buffer(2 * count + 2)
    units = pdfium.get_text(text_page, 0, count, buffer)
    text = buffer.raw[: 2 * max(units - 1, 0)].decode("utf-16-le", "replace")
    if len(text) == count:
        return text
    codes = map(pdfium.get_unicode, repeat(text_page), range(count))
    return "".join(chr(code) if 0 < code < 0xD800 or 0xDFFF < code < 0x110000 else "\x00" for code in codes)


def _find_tokens(text: str, text_page: pdfium.Handle) -> tuple[list[int], list[int]]:
    """Return starts and ends of words; tokens are split where the text object changes."""
    spans = [match.span() for match in _TOKEN.finditer(text)]
    objects_at = pdfium.get_character_object
    first = list(map(objects_at, repeat(text_page), [start for start, _ in spans]))
    last = list(map(objects_at, repeat(text_page), [end - 1 for _, end in spans]))
    if first == last:
        return [start for start, _ in spans], [end for _, end in spans]
    starts: list[int] = []
    ends: list[int] = []
    for (start, end), one, other in zip(spans, first, last, strict=True):
        cuts: list[int] = []
        if one != other:
            objects = list(map(objects_at, repeat(text_page), range(start, end)))
            cuts = [start + at for at in range(1, len(objects)) if objects[at] != objects[at - 1]]
        starts += [start, *cuts]
        ends += [*cuts, end]
    return starts, ends


def _find_direction(frame: Frame, a: float, b: float) -> int:
    """Return the text direction on the displayed page: 0 right, 1 down, 2 left, 3 up."""
    x, y = ((a, -b), (b, a), (-a, b), (-b, -a))[frame.quarters]
    if abs(x) >= abs(y):
        return 0 if x >= 0 else 2
    return 1 if y > 0 else 3
