"""Font properties: bold, italic, fixed pitch."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from functools import lru_cache

from refdesk.documents.convert.pdf import pdfium

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

    name: str
    bold: bool
    italic: bool
    fixed: bool


def read_font(handle: int) -> Font:
    """Return the font of a PDFium handle."""
    buffer = ctypes.create_string_buffer(128)
    pdfium.get_font_name(handle, buffer, ctypes.c_size_t(len(buffer)))
    return _classify_font(buffer.value.decode("utf-8", "replace"), pdfium.get_font_flags(handle))


@lru_cache(maxsize=512)
def _classify_font(full_name: str, flags: int) -> Font:
    name = _SUBSET.sub("", full_name)
    flags = max(flags, 0)
    return Font(
        name,
        bold=bool(flags & FORCE_BOLD_FLAG or _BOLD.search(name)),
        italic=bool(flags & ITALIC_FLAG or _ITALIC.search(name)),
        fixed=bool(flags & FIXED_PITCH_FLAG or (_FIXED.search(name) and not _PROPORTIONAL.search(name))),
    )
