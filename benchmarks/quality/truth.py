"""What a page of HTML says, written as Markdown: the truth that conversions of the same text are held against.

It knows nothing of any converter, and no page but those of the corpus: their main element is found by the caller, and
what is left out or read otherwise is listed here by class. Inline markup is dropped, since scores do not look at it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from lxml.html import HtmlElement

from .structure import DEFINITION

DROPPED_CLASSES = frozenset(
    """navheader navfooter nav headerlink header toc section-toc mini-toc menu index-bt index-rw index-vr index-fn
    index-cp printindex copiable-link copiable-anchor Contents_element sphinxsidebar clearer anchor""".split()
)
"""Navigation and indexes, which no other edition of the text has in this place."""
DROPPED_TAGS = frozenset("script style nav head template svg img object iframe colgroup hr link meta".split())
FRAMES = frozenset("note tip caution warning important admonitionblock cartouche colist calloutlist".split())
"""Tables that only draw a box around text."""
RUNNING_PRE = frozenset("display format verse".split())
"""Preformatted text that is set in the font of the text around it, and so is no code."""
LEVELS = {
    "chapter": 1,
    "appendix": 1,
    "unnumbered": 1,
    "section": 2,
    "appendixsec": 2,
    "appendixsection": 2,
    "unnumberedsec": 2,
    "heading": 2,
    "subsection": 3,
    "appendixsubsec": 3,
    "unnumberedsubsec": 3,
    "subheading": 3,
    "subsubsection": 4,
    "unnumberedsubsubsec": 4,
    "subsubheading": 4,
}
"""Texinfo gives its two lowest levels the same tag and tells them apart by class."""

_HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_BLOCKS = frozenset(
    """address article aside blockquote body center dd details div dl dt fieldset figcaption figure footer form header
    li main ol p pre section table tbody thead tfoot tr td th ul""".split()
).union(_HEADINGS)
_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~&!])")
_LINE_START = re.compile(r"^(\d*)([-+=:.)])")


def markdown_of(element: HtmlElement) -> str:
    """The Markdown of an element."""
    return "\n\n".join(blocks_of(element)) + "\n"


def text_of(element: HtmlElement) -> str:
    """The text of an element without what is dropped, on one line."""
    return " ".join("".join(_texts(element)).split())


def _children(element: HtmlElement) -> list[str]:
    """The blocks inside an element; text that stands between them is a paragraph."""
    blocks: list[str] = []
    running: list[str] = [element.text or ""]
    for child in element:
        if _is_block(child):
            blocks += _paragraph(running)
            running = []
            blocks += blocks_of(child)
        else:
            running += _texts(child)
        running.append(child.tail or "")
    return blocks + _paragraph(running)


def blocks_of(element: HtmlElement) -> list[str]:
    """The Markdown blocks that one element makes."""
    if _dropped(element):
        return []
    match element.tag:
        case "pre":
            return _pre(element)
        case "ul" | "ol":
            return _list(element)
        case "dl":
            return _definitions(element)
        case "table":
            return _table(element)
        case tag if tag in _HEADINGS:
            return _heading(element)
        case _:
            return _children(element)


def _is_block(element: HtmlElement) -> bool:
    """A block, or something inline that holds one."""
    if not isinstance(element.tag, str):
        return False
    return element.tag in _BLOCKS or any(inner.tag in _BLOCKS for inner in element.iterdescendants())


def _dropped(element: HtmlElement) -> bool:
    if not isinstance(element.tag, str) or element.tag in DROPPED_TAGS or element.get("role") == "navigation":
        return True
    return not DROPPED_CLASSES.isdisjoint(element.get("class", "").split())


def _texts(element: HtmlElement) -> Iterator[str]:
    """The pieces of text inside of an element, without its tail."""
    if _dropped(element):
        return
    if element.tag == "br":
        yield "\n"
    yield element.text or ""
    for child in element:
        if _is_block(child):
            yield " "
        yield from _texts(child)
        yield child.tail or ""


def _paragraph(pieces: Iterable[str]) -> list[str]:
    text = " ".join("".join(pieces).split())
    return [_escaped(text)] if text else []


def _escaped(text: str) -> str:
    """A paragraph that cannot be taken for anything else."""
    return _LINE_START.sub(r"\1\\\2", _inline(text))


def _inline(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _heading(element: HtmlElement) -> list[str]:
    text = text_of(element).rstrip("¶# ")
    level = next((LEVELS[name] for name in element.get("class", "").split() if name in LEVELS), int(element.tag[1]))
    return [f"{'#' * level} {_inline(text)}"] if text else []


def _pre(element: HtmlElement) -> list[str]:
    """A code block; a fence longer than any inside."""
    text = "".join(_texts(element)).strip("\n")
    if _in_running_text(element):
        return _paragraph([text])
    longest = max(map(len, re.findall("`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return [f"{fence}\n{text}\n{fence}"] if text.strip() else []


def _in_running_text(element: HtmlElement) -> bool:
    names = {*element.get("class", "").split(), *(element.getparent().get("class", "").split())}
    return not RUNNING_PRE.isdisjoint(names) or "verseblock" in names


def _list(element: HtmlElement) -> list[str]:
    """Items with their blocks indented; numbers are counted anew."""
    items = [_children(child) for child in element if child.tag == "li" and not _dropped(child)]
    ordered = element.tag == "ol"
    marks = [f"{number}. " if ordered else "- " for number in range(1, len(items) + 1)]
    written = [_indented(mark, blocks) for mark, blocks in zip(marks, items, strict=True) if blocks]
    return ["\n\n".join(written)] if written else []


def _indented(mark: str, blocks: list[str]) -> str:
    lines = "\n\n".join(blocks).split("\n")
    return "\n".join([mark + lines[0], *((" " * len(mark) + line).rstrip() for line in lines[1:])])


def _definitions(element: HtmlElement) -> list[str]:
    """Terms and what they mean as paragraphs, each marked as one that a converter may make an item of."""
    blocks: list[str] = []
    for child in element:
        if child.tag in ("dt", "dd") and not _dropped(child):
            first, *rest = _children(child) or [""]
            blocks += [f"{DEFINITION}\n{first}" if _is_plain(first) else first, *rest] if first else []
        elif isinstance(child.tag, str):
            blocks += _definitions(child)
    return blocks


def _is_plain(block: str) -> bool:
    return not block.startswith(("#", "```", "- ", "1. ", "|", "<"))


def _table(element: HtmlElement) -> list[str]:
    """A table of data, or what a box that is drawn by a table holds."""
    names = {*element.get("class", "").split(), *_enclosing_classes(element)}
    if not FRAMES.isdisjoint(names):
        return [block for cell in element.iter("td", "th") for block in _children(cell)]
    rows = [[cell for cell in row if cell.tag in ("td", "th")] for row in element.iter("tr")]
    rows = [row for row in rows if any(text_of(cell) for cell in row)]
    caption = [block for title in element.findall("caption") for block in _children(title)]
    if not rows:
        return caption
    spans = any(cell.get("rowspan", "1") != "1" or cell.get("colspan", "1") != "1" for row in rows for cell in row)
    return [*caption, _html_table(rows) if spans else _pipe_table(rows)]


def _enclosing_classes(element: HtmlElement) -> list[str]:
    parent = element.getparent()
    return [] if parent is None else parent.get("class", "").split()


def _pipe_table(rows: list[list[HtmlElement]]) -> str:
    width = max(map(len, rows))
    texts = [[_inline(text_of(cell)) for cell in row] + [""] * (width - len(row)) for row in rows]
    head, *body = ["| " + " | ".join(row) + " |" for row in texts]
    return "\n".join([head, "|" + "---|" * width, *body])


def _html_table(rows: list[list[HtmlElement]]) -> str:
    return "\n".join(["<table>", *("<tr>" + "".join(map(_html_cell, row)) + "</tr>" for row in rows), "</table>"])


def _html_cell(cell: HtmlElement) -> str:
    spans = "".join(f' {name}="{cell.get(name)}"' for name in ("rowspan", "colspan") if cell.get(name))
    text = text_of(cell).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"<td{spans}>{text}</td>"
