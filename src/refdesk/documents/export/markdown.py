"""Markdown export (GitHub flavored) with minimal escaping."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from refdesk.documents.model import Block, Code, Document, Heading, ListItem, Paragraph, Picture, Span, Table, Term

_SPECIAL = re.compile(r"[\\`*_<&\]~]")
_MISREAD = re.compile(
    r"\\(?=[!-/:-@\[-`{-~])"  # a backslash that would escape what follows
    r"|`"
    r"|\*(?=\S)|(?<=\S)\*"  # emphasis needs an adjacent word
    r"|(?<![^\W_])_(?=\S)|(?<=\S)_(?![^\W_])"  # an underscore within a word is literal
    r"|<(?=[A-Za-z/!?])"
    r"|&(?=#?\w+;)"
    r"|(?<=\])\("
    r"|~(?=~)"
)
MATH = re.compile(r"(?<!\\)(?P<fence>\$\$?)(?=[^\s$])(?:[^$`\\\n]|\\[^`\n])++(?<!\s)(?P=fence)(?!\d)")
"""A formula between dollar signs. Like in pandoc, it has no blanks at its ends, and no digit follows: `$5 and $6`."""

_TAG_START = re.compile(r"<(?=[A-Za-z/!?])")
_BLOCK_START = re.compile(r"^(?:(#{1,6}|[-+>]|={3,})(?=\s|$)|(\d{1,9})([.)])(?=\s|$)|(-{3,}$))", re.MULTILINE)


def to_markdown(document: Document) -> str:
    """Export a document as Markdown."""
    text = "".join(markdown_parts(document.blocks))
    return f"{text}\n" if text else ""


def markdown_parts(blocks: Iterable[Block]) -> Iterator[str]:
    """Yield each block as Markdown, with the separator before it."""
    widths: list[int] = []
    before: Block | None = None
    for block in blocks:
        if isinstance(block, ListItem):
            text = _render_item(block, widths)
        else:
            widths.clear()
            text = block_to_markdown(block)
        if text:
            gap = "\n" if isinstance(block, ListItem) and isinstance(before, ListItem) else "\n\n"
            yield f"{gap}{text}" if before else text
            before = block


def block_to_markdown(block: Block) -> str:
    """Export a single block as Markdown."""
    match block:
        case Heading():
            return f"{'#' * block.level} {escape_markdown(_to_one_line(block.text))}"
        case Paragraph():
            return _render_paragraph(block)
        case Term():
            return _render_paragraph(Paragraph(block.text, block.spans))
        case ListItem():
            return _render_item(block, [])
        case Code():
            longest = max(map(len, re.findall(r"`{3,}", block.text)), default=2)
            fence = "`" * (longest + 1)
            return f"{fence}{block.language}\n{block.text}\n{fence}"
        case Table():
            return _render_table(block)
        case Picture():
            return f"![{escape_markdown(_to_one_line(block.caption))}]()" if block.caption else ""


def _render_item(item: ListItem, widths: list[int]) -> str:
    """Render an item; `widths` has that of the marker at each depth of the items above, which it updates."""
    depth = min(item.depth, len(widths))
    marker = f"{item.number}." if item.ordered else "-"
    indent = sum(widths[:depth])
    widths[depth:] = [len(marker) + 1]
    text = render_inline(item.text, item.spans).replace("\n", "\n" + " " * (indent + len(marker) + 1))
    return f"{' ' * indent}{marker} {text}"


def _render_paragraph(paragraph: Paragraph) -> str:
    text = render_inline(paragraph.text, paragraph.spans)
    if paragraph.role == "note":
        text = f"**Notes:** {text}"
    if paragraph.role in ("quote", "note"):
        return "> " + text.replace("\n", "\n> ")
    return _BLOCK_START.sub(_escape_block_start, text)


def _escape_block_start(match: re.Match[str]) -> str:
    marker, number, dot, rule = match.groups()
    return f"{number}\\{dot}" if number else f"\\{marker or rule}"


def _render_table(table: Table) -> str:
    rows = table.grid()
    if not rows or not table.columns:
        return escape_markdown(table.caption)
    lines = [_render_row(rows[0]), "|" + " --- |" * table.columns, *map(_render_row, rows[1:])]
    caption = [escape_markdown(_to_one_line(table.caption)), ""] if table.caption else []
    return "\n".join([*caption, *lines])


def _render_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escape_markdown(_to_one_line(cell)).replace("|", "\\|") for cell in cells) + " |"


def _to_one_line(text: str) -> str:
    return " ".join(text.split()) if "\n" in text or "  " in text else text.strip()


def escape_markdown(text: str) -> str:
    """Escape the characters that Markdown would read as markup, except in formulas."""
    if not _SPECIAL.search(text):
        return text
    if "$" in text:
        return "".join(_escape_around_formulas(text))
    return _escape(text)


def _escape_around_formulas(text: str) -> Iterator[str]:
    end = 0
    for formula in MATH.finditer(text):
        yield _escape(text[end : formula.start()])
        # A blank changes no formula, but a tag would be one to readers that don't know formulas.
        yield _TAG_START.sub("< ", formula[0])
        end = formula.end()
    yield _escape(text[end:])


def _escape(text: str) -> str:
    return _MISREAD.sub(lambda match: "\\" + match[0], text)


def render_inline(text: str, spans: Sequence[Span]) -> str:
    """Render text with its spans."""
    if not spans:
        return escape_markdown(text)
    ordered = sorted(spans, key=lambda span: (span.start, -span.end))
    return "".join(_render_spans(text, ordered, 0, len(text)))


def _render_spans(text: str, spans: Sequence[Span], start: int, end: int) -> Iterator[str]:
    """Render a range, each outermost span wrapped around its content."""
    position = start
    for index, span in enumerate(spans):
        # Without whitespace at the ends: `** bold **` isn't emphasis.
        piece = text[max(span.start, start) : min(span.end, end)]
        first = max(span.start, start) + len(piece) - len(piece.lstrip())
        last = first + len(piece.strip())
        if first < position or first >= last:
            continue
        yield escape_markdown(text[position:first])
        stop = index + 1
        while stop < len(spans) and spans[stop].start < last:
            stop += 1
        yield _wrap_span(text, span, spans[index + 1 : stop], first, last)
        position = last
    yield escape_markdown(text[position:end])


def _wrap_span(text: str, span: Span, inner: Sequence[Span], start: int, end: int) -> str:
    if span.kind == "code":
        return render_code_span(text[start:end])
    body = "".join(_render_spans(text, inner, start, end))
    match span.kind:
        case "strong":
            return f"**{body}**"
        case "emphasis":
            return f"*{body}*"
        case _:
            return f"[{body}]({format_link_target(span.target)})" if span.target else body


def render_code_span(text: str) -> str:
    """Render inline code, with more backticks than the text has in a row."""
    if "`" not in text:
        return f"`{text}`"
    longest = max(map(len, re.findall(r"`+", text)))
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def format_link_target(target: str) -> str:
    """Return a link target as Markdown writes it, in angle brackets if it has blanks or parentheses."""
    return f"<{target}>" if re.search(r"[\s()]", target) else target
