"""What a Markdown text says and how it is built, whoever wrote the Markdown.

Converters differ in dialect: tables with and without outer pipes or as HTML, headings with `#` or underlined, `*` or
`-` for items, code fenced or indented. All of it is read by a CommonMark parser, so that what is compared is structure
and never spelling.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser

from markdown_it import MarkdownIt
from markdown_it.token import Token

DEFINITION = "<!-- definition -->"
"""Stands in a truth before a paragraph that is a term or its definition. CommonMark has no definition lists, so that
converters may write them as items or as paragraphs; neither is held against them."""

HTML_TAGS = frozenset(
    """a abbr address article aside b bdi bdo big blockquote body br button caption center cite code col
    colgroup data dd del details dfn div dl dt em embed figcaption figure font footer form h1 h2 h3 h4 h5 h6
    head header hr html i iframe img input ins kbd label li link main mark math menu meta nav ol p picture pre q
    s samp script section small source span strike strong style sub summary sup svg table tbody td tfoot th
    thead time title tr tt u ul var video wbr""".split()
)
"""Anything else in angle brackets is text that a converter left unescaped, such as the `<file>` of a synopsis."""

WIDEST = 1000
"""Columns that a span may fill: a file that asks for a million gets no memory for them."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading and its depth, 1 the highest."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell; `spanned` when it only continues one that is wider or taller than one place."""

    text: str
    spanned: bool = False


Table = tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Structure:
    """All that scores are made of, each in reading order."""

    words: tuple[str, ...]
    headings: tuple[Heading, ...]
    tables: tuple[Table, ...]
    code: tuple[str, ...]
    items: tuple[str, ...]
    definitions: tuple[str, ...]


def structure_of(markdown: str) -> Structure:
    """Read a Markdown text."""
    reading = _Reading()
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    for token in parser.parse(_without_gaps(markdown)):
        reading.take(token)
    return reading.result()


def plain(text: str) -> str:
    """A text without what typesetting changes: ligatures, curled quotes, dashes, soft hyphens, runs of spaces."""
    unified = unicodedata.normalize("NFKC", text.translate(_INVISIBLE)).translate(_TYPOGRAPHY)
    return " ".join(unified.split())


_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))
_TYPOGRAPHY = str.maketrans("‘’‚‛´`“”„‟‐‑‒–—−", "''''''\"\"\"\"------")
_WORD = re.compile(r"\w+")
_HTML_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL | re.IGNORECASE)
_BLANK_LINES = re.compile(r"\n\s*\n")
_TAG = re.compile(r"</?([A-Za-z][\w-]*)")
_CHECKBOX = re.compile(r"\[[ xX]\]\s+")


def _without_gaps(markdown: str) -> str:
    """CommonMark ends an HTML block at an empty line; converters put such lines inside of tables."""
    return _HTML_TABLE.sub(lambda table: _BLANK_LINES.sub("\n", table[0]), markdown)


@dataclass(slots=True)
class _Reading:
    """What has been met so far, token by token."""

    words: list[str] = field(default_factory=list)
    headings: list[Heading] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    items: list[str] = field(default_factory=list)
    definitions: list[str] = field(default_factory=list)
    rows: list[list[Cell]] = field(default_factory=list)
    waiting: list[bool] = field(default_factory=list)
    """For each list item that is open, whether its first paragraph is still to come."""
    inside: str = ""
    """The tag of the block whose text comes next."""
    defines: bool = False

    def take(self, token: Token) -> None:
        """Note what a token adds."""
        match token.type:
            case "inline":
                self.text(_inline_text(token.children or ()))
            case "fence" | "code_block":
                self.code_block(token.content)
            case "html_block":
                self.html(token.content)
            case "list_item_open":
                self.waiting.append(True)
            case "list_item_close":
                self.waiting.pop()
            case "table_open":
                self.rows = []
            case "tr_open":
                self.rows.append([])
            case "table_close":
                self.table(self.rows)
            case "heading_open" | "paragraph_open" | "th_open" | "td_open":
                self.inside = token.tag

    def text(self, text: str) -> None:
        """The text of the block that was opened last."""
        if self.inside in ("td", "th"):
            self.rows[-1].append(Cell(plain(text)))
            return
        if self.inside == "p":
            self.paragraph(text)
        else:
            self.headings.append(Heading(int(self.inside[1:]), plain(text)))
        self.say(text)

    def paragraph(self, text: str) -> None:
        """A paragraph is an item when it opens one, and may be a definition."""
        if self.waiting and self.waiting[-1]:
            self.waiting[-1] = False
            self.items.append(plain(_CHECKBOX.sub("", text, count=1)))
        elif self.defines:
            self.definitions.append(plain(text))
        self.defines = False

    def code_block(self, content: str) -> None:
        """Its lines, and their words."""
        self.code += filter(None, map(plain, content.splitlines()))
        self.say(content)

    def table(self, rows: Iterable[Sequence[Cell]]) -> None:
        """A table that is complete; what continues a wide cell is not said twice."""
        grid = tuple(tuple(row) for row in rows)
        self.tables.append(grid)
        for row in grid:
            self.say(" ".join(cell.text for cell in row if not cell.spanned))

    def html(self, content: str) -> None:
        """A block of HTML, or the mark before a definition."""
        if content.strip() == DEFINITION:
            self.defines = True
            return
        reader = _HtmlReader(self)
        reader.feed(content)
        reader.close()
        reader.end_block()

    def say(self, text: str) -> None:
        """Words of running text; punctuation is left out, since typesetting moves it about."""
        self.words += _WORD.findall(plain(text))

    def result(self) -> Structure:
        """All that was met."""
        return Structure(
            tuple(self.words),
            tuple(self.headings),
            tuple(self.tables),
            tuple(self.code),
            tuple(self.items),
            tuple(self.definitions),
        )


def _inline_text(tokens: Iterable[Token]) -> str:
    return "".join(map(_said, tokens))


def _said(token: Token) -> str:
    match token.type:
        case "softbreak" | "hardbreak":
            return " "
        case "html_inline":
            return _said_by_tag(token.content)
        case "image":
            return ""
        case _:
            return token.content


def _said_by_tag(tag: str) -> str:
    name = _TAG.match(tag)
    if name is None or name[1].lower() == "br":
        return " "
    return "" if name[1].lower() in HTML_TAGS else tag


class _HtmlReader(HTMLParser):
    """Blocks of HTML inside of Markdown, read into the same collection."""

    def __init__(self, reading: _Reading) -> None:
        super().__init__(convert_charrefs=True)
        self._reading = reading
        self._pieces: list[str] = []
        self._block = ""
        self._rows: list[list[tuple[str, int, int]]] | None = None
        self._span = (1, 1)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in HTML_TAGS:
            self._pieces.append(self.get_starttag_text() or "")
        elif tag == "br":
            self._pieces.append("\n")
        elif tag == "table":
            self.end_block()
            self._rows = []
        elif self._rows is not None:
            self._open_in_table(tag, dict(attrs))
        elif tag in _BLOCKS and not (tag == "p" and self._block == "li"):
            self.end_block()
            self._block = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == "table" and self._rows is not None:
            rows, self._rows = self._rows, None
            self._pieces.clear()
            self._reading.table(_spread(rows))
        elif self._rows is not None:
            if tag in ("td", "th"):
                self._close_cell()
        elif tag in _BLOCKS:
            self.end_block()

    def handle_data(self, data: str) -> None:
        self._pieces.append(data)

    def end_block(self) -> None:
        """Hand on the text since the last block began."""
        text, block = "".join(self._pieces), self._block
        self._pieces.clear()
        self._block = ""
        if not text.strip():
            return
        if block == "pre":
            self._reading.code_block(text)
            return
        if block in _HEADINGS:
            self._reading.headings.append(Heading(int(block[1]), plain(text)))
        elif block == "li":
            self._reading.items.append(plain(text))
        self._reading.say(text)

    def _open_in_table(self, tag: str, attributes: dict[str, str | None]) -> None:
        assert self._rows is not None
        if tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._pieces.clear()
            self._span = (_span(attributes.get("rowspan")), _span(attributes.get("colspan")))
        else:
            self._pieces.append(" ")

    def _close_cell(self) -> None:
        assert self._rows is not None
        if not self._rows:
            self._rows.append([])
        self._rows[-1].append((plain("".join(self._pieces)), *self._span))
        self._pieces.clear()


_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_BLOCKS = frozenset((*_HEADINGS, "p", "pre", "li", "ul", "ol", "div", "blockquote", "section", "dl", "dt", "dd"))


def _span(value: str | None) -> int:
    return min(int(value), WIDEST) if value and value.isdecimal() and value != "0" else 1


def _spread(rows: Sequence[Sequence[tuple[str, int, int]]]) -> list[list[Cell]]:
    """Give every place of the grid its cell, those under a wide or tall cell included."""
    grid: list[dict[int, Cell]] = [{} for _ in rows]
    for at, row in enumerate(rows):
        column = 0
        for text, tall, wide in row:
            while column in grid[at]:
                column += 1
            for down, line in enumerate(grid[at : at + tall]):
                for right in range(wide):
                    line[column + right] = Cell(text, spanned=bool(down or right))
            column += wide
    return [[line[column] for column in sorted(line)] for line in grid]
