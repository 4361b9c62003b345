"""Fast bindings of PDFium's C functions, which are called for every word, and fonts.

Two things make calls four times cheaper than through the library's wrappers: functions without declared argument types,
and columns of calls driven by `map` into one buffer.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from refdesk.errors import CannotConvert

Handle = int
"""An address from PDFium, valid until its page is closed."""


def bind(function: Any, result: Any = ctypes.c_int) -> Callable[..., Any]:
    """Bind a function that takes a handle as integer and passes other arguments unchanged."""
    prototype: Any = ctypes.CFUNCTYPE(result, ctypes.c_void_p)
    bound: Callable[..., Any] = prototype(ctypes.cast(function, ctypes.c_void_p).value)
    return bound


load_page = bind(raw.FPDF_LoadPage, ctypes.c_void_p)
close_page = bind(raw.FPDF_ClosePage, None)
load_text = bind(raw.FPDFText_LoadPage, ctypes.c_void_p)
close_text = bind(raw.FPDFText_ClosePage, None)
count_characters = bind(raw.FPDFText_CountChars)
get_text = bind(raw.FPDFText_GetText)
get_unicode = bind(raw.FPDFText_GetUnicode, ctypes.c_uint)
get_character_box = bind(raw.FPDFText_GetLooseCharBox)
get_character_matrix = bind(raw.FPDFText_GetMatrix)
get_character_size = bind(raw.FPDFText_GetFontSize, ctypes.c_double)
get_character_object = bind(raw.FPDFText_GetTextObject, ctypes.c_void_p)
get_font = bind(raw.FPDFTextObj_GetFont, ctypes.c_void_p)
get_font_name = bind(raw.FPDFFont_GetBaseFontName, ctypes.c_size_t)
get_font_flags = bind(raw.FPDFFont_GetFlags)
get_mark_id = bind(raw.FPDFPageObj_GetMarkedContentID)
get_rotation = bind(raw.FPDFPage_GetRotation)
get_crop_box = bind(raw.FPDFPage_GetCropBox)
get_media_box = bind(raw.FPDFPage_GetMediaBox)
get_width = bind(raw.FPDF_GetPageWidthF, ctypes.c_float)
get_height = bind(raw.FPDF_GetPageHeightF, ctypes.c_float)
count_objects = bind(raw.FPDFPage_CountObjects)
get_object = bind(raw.FPDFPage_GetObject, ctypes.c_void_p)
get_object_type = bind(raw.FPDFPageObj_GetType)
get_object_bounds = bind(raw.FPDFPageObj_GetBounds)
get_object_matrix = bind(raw.FPDFPageObj_GetMatrix)
count_form_objects = bind(raw.FPDFFormObj_CountObjects)
get_form_object = bind(raw.FPDFFormObj_GetObject, ctypes.c_void_p)
count_segments = bind(raw.FPDFPath_CountSegments)
get_segment = bind(raw.FPDFPath_GetPathSegment, ctypes.c_void_p)
get_segment_point = bind(raw.FPDFPathSegment_GetPoint)

PATH_OBJECT: int = raw.FPDF_PAGEOBJ_PATH
IMAGE_OBJECT: int = raw.FPDF_PAGEOBJ_IMAGE
FORM_OBJECT: int = raw.FPDF_PAGEOBJ_FORM


class Column:
    """Buffer for `width` floats or doubles from each of many calls."""

    def __init__(self, kind: Any, width: int) -> None:
        self._kind = kind
        self._width = width
        self._grow(1024)

    def _grow(self, rows: int) -> None:
        size = ctypes.sizeof(self._kind) * self._width
        self._buffer = (self._kind * (self._width * rows))()
        self._rows = [ctypes.byref(self._buffer, size * row) for row in range(rows)]
        self._view: Any = memoryview(self._buffer).cast("B").cast(self._kind._type_)

    def fill(self, function: Callable[..., Any], handle: Handle, indices: Sequence[int]) -> list[float]:
        """Return the results of `function(handle, index, place)` for every index, flattened."""
        if len(indices) > len(self._rows):
            self._grow(2 * len(indices))
        for _ in map(function, repeat(handle), indices, self._rows):
            pass
        values: list[float] = self._view[: self._width * len(indices)].tolist()
        return values


boxes = Column(ctypes.c_float, 4)
matrices = Column(ctypes.c_float, 6)


@contextmanager
def open_pdf(data: bytes, name: str) -> Iterator[Any]:
    """Open a PDF, or raise `CannotConvert` with the reason."""
    # PDFium keeps the last error until the next one; loading nothing resets it to "no PDF".
    raw.FPDF_LoadMemDocument(b"", 0, None)
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        reason = {
            raw.FPDF_ERR_PASSWORD: "protected by a password; give a copy that opens without one",
            raw.FPDF_ERR_SECURITY: "encrypted in a way that cannot be read; give a copy without protection",
        }.get(
            getattr(error, "err_code", 0),
            "not a PDF or is damaged beyond reading; open and save it again, or give another copy",
        )
        raise CannotConvert(f"{name} is {reason}.") from error
    try:
        yield document
    finally:
        document.close()


FIXED_PITCH_FLAG = 1
ITALIC_FLAG = 1 << 6
FORCE_BOLD_FLAG = 1 << 18

_SUBSET = re.compile(r"^[A-Z]{6}\+")
_BOLD = re.compile(
    r"bold|black|heavy|demi|[-_, ]bd\b|-medi(?:$|ital|obli)|^cmbx|^cmb\d|^cmssbx|^sf[a-z]?bx|^ec?bx|^ptmb|bx\d+$", re.I
)
_ITALIC = re.compile(r"ital|obli|slant|-it\b|^cmti|^cmsl|^cmmi|^sfti|^sfsl|^sfit|^ecti|^cmitt|^cmbxti|^cmssi", re.I)
_FIXED = re.compile(
    r"mono|courier|consol|typewriter|menlo|inconsolata|fixed|terminal|"
    r"^cm(?:sl|it|vt)?tt|^cmtex|^sf(?:tt|st|it)\d|^ec?(?:tt|st)\d|nimbusmon|sourcecode|firacode|hack-|luxi.?m|txtt",
    re.I,
)
_PROPORTIONAL = re.compile(r"monotype|monoto|monogr", re.I)


@dataclass(frozen=True, slots=True)
class Font:
    """A typeface in one weight and slope."""

    bold: bool
    italic: bool
    fixed: bool


def read_font(handle: int) -> Font:
    """Return the font of a PDFium handle."""
    buffer = ctypes.create_string_buffer(128)
    get_font_name(handle, buffer, ctypes.c_size_t(len(buffer)))
    return _classify_font(buffer.value.decode("utf-8", "replace"), get_font_flags(handle))


@lru_cache(maxsize=512)
def _classify_font(full_name: str, flags: int) -> Font:
    name = _SUBSET.sub("", full_name)
    flags = max(flags, 0)
    return Font(
        bold=bool(flags & FORCE_BOLD_FLAG or _BOLD.search(name)),
        italic=bool(flags & ITALIC_FLAG or _ITALIC.search(name)),
        fixed=bool(flags & FIXED_PITCH_FLAG or (_FIXED.search(name) and not _PROPORTIONAL.search(name))),
    )
