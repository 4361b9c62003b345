"""Input of a converter, and its text decoded by byte order mark, declared encoding, or best guess."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
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

LEGACY_ENCODINGS = (
    "cp1252 euc_jp gb18030 big5 cp949 cp866 cp874 cp932 cp1251 cp1250 cp1253 cp1254 cp1255 cp1256 cp1257 koi8_r koi8_u "
    "iso8859_5 iso8859_2"
).split()
"""Encodings that are detected. Of equally likely ones, the first is taken, or Windows-1251 if words aren't Latin."""

_HIGH_RUN = re.compile(rb"[A-Za-z]?[\x80-\xff]+[A-Za-z]?")
"""Characters that aren't ASCII, with the Latin letters beside them."""

SAMPLE_BYTES = 65_536
"""Bytes whose encoding is detected."""

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
    """Decode as UTF-8, or in the likeliest legacy encoding if most non-ASCII bytes are invalid in UTF-8."""
    try:
        return Decoded(data.decode("utf-8"))
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
    lost = text.count("\ufffd")
    if lost <= sum(character > "\x7f" for character in text) - lost:
        return Decoded(text, (_format_loss(lost, "utf-8"),))
    encoding = _detect_legacy(data)
    name = encoding.replace("cp125", "Windows-125").upper().replace("WINDOWS", "Windows")
    warning = f"The text is not UTF-8 and no encoding is stated; it was read as {name}."
    return Decoded(data.decode(encoding, "replace"), (warning,))


def _detect_legacy(data: bytes) -> str:
    """Return the likeliest legacy encoding, by the frequency of letters. The lines in ASCII say nothing about it."""
    # Imported here, since few files need it.
    from_bytes = import_module("charset_normalizer").from_bytes
    sample = b"\n".join([line for line in data.splitlines() if not line.isascii()])
    if len(sample) > SAMPLE_BYTES:
        # Between two characters: an encoding that fails on half of one is ruled out.
        cut = max(sample.rfind(mark, 0, SAMPLE_BYTES) for mark in (b"\n", b" ", b","))
        sample = sample[: cut if cut > 0 else SAMPLE_BYTES]
    words = [run for run in _HIGH_RUN.findall(sample) if len(run) > 1]
    if not words:
        return "cp1252"  # symbols such as €
    is_latin = sum(run[0] > 127 and run[-1] > 127 for run in words) * 2 <= len(words)
    order = sorted(LEGACY_ENCODINGS, key=lambda encoding: encoding != ("cp1252" if is_latin else "cp1251"))
    # A match stands for all encodings in which the sample reads the same.
    likely = [
        (round(match.chaos, 2), -round(match.coherence, 2), order.index(encoding))
        for match in from_bytes(sample, cp_isolation=LEGACY_ENCODINGS)
        for encoding in match.could_be_from_charset
    ]
    return order[min(likely)[-1]] if likely else "cp1252"


def _format_loss(count: int, encoding: str) -> str:
    places = "1 place" if count == 1 else f"{count} places"
    return f"{places} of the text could not be read as {encoding.upper()} and hold a replacement character."
