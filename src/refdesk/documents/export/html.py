"""HTML export without scripts or styles; all content is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from urllib.parse import urlsplit

from refdesk.documents.model import (
    Block,
    Cell,
    Code,
    Document,
    Heading,
    ListItem,
    Paragraph,
    Picture,
    SectionIds,
    Span,
    Table,
    Term,
)

SAFE_SCHEMES = frozenset({"", "http", "https", "mailto", "ftp"})
"""Allowed link schemes: a `javascript:` link would run in the reader's browser."""


def to_html(document: Document) -> str:
    """Export a document as an HTML page."""
    language = document.properties.get("language", "")
    lang = f' lang="{escape(language)}"' if language else ""
    body = "\n".join(_render_body(document.blocks))
    title = escape(document.title or document.name)
    return (
        f'<!DOCTYPE html>\n<html{lang}>\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n</head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _render_body(blocks: Sequence[Block]) -> Iterator[str]:
    ids = SectionIds(block.anchor for block in blocks if isinstance(block, Heading | Term) and block.anchor)
    for is_list, run in groupby(blocks, key=lambda block: isinstance(block, ListItem)):
        if is_list:
            yield "".join(_render_list([block for block in run if isinstance(block, ListItem)]))
        else:
            yield from (_render_block(block, ids) for block in run)


def _render_block(block: Block, ids: SectionIds) -> str:
    match block:
        case Heading():
            id = block.anchor or ids.next(block.text)
            return f'<h{block.level} id="{escape(id)}">{escape(block.text)}</h{block.level}>'
        case Paragraph():
            text = _render_inline(block.text, block.spans)
            match block.role:
                case "quote":
                    return f"<blockquote><p>{text}</p></blockquote>"
                case "note":
                    return f'<aside class="note"><p>{text}</p></aside>'
                case "text":
                    return f"<p>{text}</p>"
                case role:
                    return f'<p class="{role}">{text}</p>'
        case Term():
            id = f' id="{escape(block.anchor)}"' if block.anchor else ""
            return f'<p{id} class="term">{_render_inline(block.text, block.spans)}</p>'
        case Code():
            language = f' class="language-{escape(block.language)}"' if block.language else ""
            return f"<pre><code{language}>{escape(block.text, quote=False)}</code></pre>"
        case Table():
            return _render_table(block)
        case Picture():
            return f"<figure><figcaption>{escape(block.caption)}</figcaption></figure>" if block.caption else ""
        case ListItem():
            return "".join(_render_list([block]))


def _render_list(items: Sequence[ListItem]) -> Iterator[str]:
    """Render nested lists; `closing` holds the end tags of open lists, outermost first."""
    closing: list[str] = []
    for item in items:
        kind = "ol" if item.ordered else "ul"
        depth = min(item.depth, len(closing))
        while len(closing) > depth + 1:
            yield f"</li>{closing.pop()}"
        if len(closing) == depth + 1 and closing[-1] == f"</{kind}>":
            yield "</li>"
        else:
            if len(closing) == depth + 1:
                yield f"</li>{closing.pop()}"
            yield f'<ol start="{item.number}">' if item.ordered and item.number != 1 else f"<{kind}>"
            closing.append(f"</{kind}>")
        yield f"<li>{_render_inline(item.text, item.spans)}"
    yield from (f"</li>{end}" for end in reversed(closing))


def _render_table(table: Table) -> str:
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    by_row: dict[int, list[Cell]] = {}
    for cell in table.cells:
        by_row.setdefault(cell.row, []).append(cell)
    rows = (sorted(by_row.get(row, []), key=lambda cell: cell.column) for row in range(table.rows))
    return f"<table>{caption}" + "".join(f"<tr>{''.join(map(_render_cell, row))}</tr>" for row in rows) + "</table>"


def _render_cell(cell: Cell) -> str:
    tag = "th" if cell.header else "td"
    rows = f' rowspan="{cell.row_span}"' if cell.row_span > 1 else ""
    columns = f' colspan="{cell.column_span}"' if cell.column_span > 1 else ""
    return f"<{tag}{rows}{columns}>{escape(cell.text, quote=False)}</{tag}>"


_TAGS = {"code": "code", "strong": "strong", "emphasis": "em"}


def _render_inline(text: str, spans: Sequence[Span]) -> str:
    """Render text with its spans; overlapping spans are cut."""
    parts: list[str] = []
    open_spans: list[tuple[int, str]] = []
    position = 0
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        position = _close_until(span.start, text, position, open_spans, parts)
        end = min(span.end, open_spans[-1][0] if open_spans else len(text))
        if span.start >= end or span.start < position:
            continue
        parts.append(escape(text[position : span.start], quote=False))
        start_tag, end_tag = _make_tags(span)
        parts.append(start_tag)
        open_spans.append((end, end_tag))
        position = span.start
    position = _close_until(len(text), text, position, open_spans, parts)
    parts.append(escape(text[position:], quote=False))
    return "".join(parts).replace("\n", "<br>")


def _close_until(limit: int, text: str, position: int, open_spans: list[tuple[int, str]], parts: list[str]) -> int:
    while open_spans and open_spans[-1][0] <= limit:
        end, end_tag = open_spans.pop()
        parts += [escape(text[position:end], quote=False), end_tag]
        position = end
    return position


def _make_tags(span: Span) -> tuple[str, str]:
    if span.kind != "link":
        return f"<{_TAGS[span.kind]}>", f"</{_TAGS[span.kind]}>"
    try:
        is_safe = urlsplit(span.target.strip()).scheme.lower() in SAFE_SCHEMES
    except ValueError:
        is_safe = False
    return (f'<a href="{escape(span.target)}">', "</a>") if is_safe else ("", "")
