"""Input of a converter, and its text decoded by byte order mark, declared encoding, or best guess."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from refdesk.documents.model import Block, Document, Heading, Page, PageKind
from refdesk.errors import CannotConvert

Progress = Callable[[float, float, str], None]
"""Called with the amount done, the total, and a description."""


@dataclass(frozen=True, slots=True)
class PageRange:
    """Pages to convert, counted from 1, both ends included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class SourceFile:
    """Bytes of a file with its metadata."""

    data: bytes
    name: str
    """File name, a fallback for the title and a hint for the format."""
    charset: str | None = None
    """Encoding declared by the server."""
    url: str = ""
    """URL of the file, the base of relative links."""
    pages: PageRange | None = None
    progress: Progress = lambda _done, _total, _doing: None

    def select_pages(self, total: int) -> range:
        """Return the numbers of the pages to convert, counted from 1; all unless some are selected."""
        if self.pages is None:
            return range(1, total + 1)
        return range(max(self.pages.first, 1), min(self.pages.last, total) + 1)

    def choose_title(self, properties: Mapping[str, str], blocks: Iterable[Block] = ()) -> str:
        """Return the title of the document: from its metadata, its first heading or the name of the file."""
        headings = (block.text for block in blocks if isinstance(block, Heading))
        return properties.get("title") or next(headings, "") or PurePath(self.name).stem

    def build_document(
        self,
        kind: PageKind,
        total: int,
        blocks: Sequence[Block],
        properties: Mapping[str, str],
        tags: tuple[str, ...],
        *,
        size: tuple[float, float] = (0, 0),
        warnings: Iterable[str] = (),
    ) -> Document:
        """Build the document of the selected slides or sheets; the name of a sheet isn't a title."""
        selected = self.select_pages(total)
        return Document(
            title=self.choose_title(properties, () if kind == "sheet" else blocks),
            blocks=tuple(blocks),
            pages=tuple(Page(number, *size) for number in selected),
            page_kind=kind,
            total_pages=total if len(selected) < total else 0,
            tags=tags,
            properties=properties,
            warnings=tuple(warnings),
        )


_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""UTF-32 comes first, since the mark of UTF-16 is a prefix of its own."""

_TEXT_ENCODINGS = re.compile(
    r"utf_?(8|16|32)(_?[lb]e)?(_sig)?|(iso_?)?8859_\d+|cp(125\d|437|85\d|86\d|874|932|949|950)|koi8_[rut]|gb\w+|big5\w*"
    r"|shift_?jis\w*|euc_?\w+|iso2022_\w+|mac_\w+|tis_620"
)
"""Excludes Python codecs that aren't text encodings, and some that take quadratic time."""

_SUPERSETS = {"ascii": "cp1252", "iso8859-1": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"}
"""Supersets that browsers use in place of a declared encoding."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded text with warnings on guesses and losses."""

    text: str
    warnings: tuple[str, ...] = ()


def decode(data: bytes, stated: str | None = None) -> Decoded:
    """Decode a file and drop NUL characters."""
    marked = next((encoding for mark, encoding in _BOMS if data.startswith(mark)), None)
    encoding = marked or _look_up_codec(stated) or _detect_utf16(data)
    if encoding:
        text = data.decode(encoding, "replace")
        lost = text.count("\ufffd") - data.count(b"\xef\xbf\xbd")
        decoded = Decoded(text, (_format_loss(lost, encoding),) if lost > 0 else ())
    else:
        decoded = _decode_guessing(data)
    return Decoded(decoded.text.replace("\0", ""), decoded.warnings)


def decode_text(source: SourceFile, max_characters: int) -> Decoded:
    """Decode a text file, with `\n` at line ends, or raise if it is too long."""
    decoded = decode(source.data, source.charset)
    text = decoded.text.replace("\r\n", "\n").replace("\r", "\n")
    if len(text) > max_characters:
        raise CannotConvert(
            f"The file has {len(text):,} characters; at most {max_characters:,} are converted: split it."
        )
    return Decoded(text, decoded.warnings)


def _look_up_codec(stated: str | None) -> str | None:
    """Return the codec of a declared encoding, if it is a text encoding."""
    try:
        name = codecs.lookup(stated.strip()).name if stated and stated.isascii() else ""
    except (LookupError, ValueError):
        return None
    name = _SUPERSETS.get(name, name)
    return name if _TEXT_ENCODINGS.fullmatch(name.replace("-", "_")) else None


def _detect_utf16(data: bytes) -> str | None:
    """Detect UTF-16 without a mark: every other byte of Western text is zero."""
    sample = data[:4096]
    if len(sample) < 4 or sample.count(0) * 4 < len(sample):
        return None
    return "utf-16-le" if sample[1::2].count(0) > sample[0::2].count(0) else "utf-16-be"


def _decode_guessing(data: bytes) -> Decoded:
    """Decode as UTF-8, or as Windows-1252 if most non-ASCII bytes are invalid in UTF-8."""
    try:
        return Decoded(data.decode("utf-8"))
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
    lost = text.count("\ufffd")
    if lost <= sum(character > "\x7f" for character in text) - lost:
        return Decoded(text, (_format_loss(lost, "utf-8"),))
    warning = "The text is not UTF-8 and no encoding is stated; it was read as Windows-1252."
    return Decoded(data.decode("cp1252", "replace"), (warning,))


def _format_loss(count: int, encoding: str) -> str:
    places = "1 place" if count == 1 else f"{count} places"
    return f"{places} of the text could not be read as {encoding.upper()} and hold a replacement character."
