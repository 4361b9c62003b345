"""HTML walker that turns elements into blocks.

Iterative, with pending elements and end actions on one stack, since pages can nest without limit. Headings, tables,
formulas and preformatted blocks are read as a whole; everything else is inline text that ends at block boundaries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import Literal, get_args

from selectolax.lexbor import LexborNode

from refdesk.documents.convert.blocks import format_script
from refdesk.documents.model import (
    MAX_HEADING_LEVEL,
    Block,
    Cell,
    Code,
    Heading,
    ListItem,
    Paragraph,
    ParagraphRole,
    Picture,
    Span,
    SpanKind,
    Table,
    Term,
)

from .boilerplate import MAX_NAME, Attributes, is_boilerplate, is_page_boilerplate
from .inline import (
    InlineText,
    detect_language,
    extract_code,
    extract_formula,
    extract_text,
    is_footnote_mark,
    resolve_link,
)
from .titles import (
    MAX_SYNONYMS,
    DefinitionList,
    adopt_following,
    find_anchor,
    find_term_anchor,
    join_paragraphs,
    join_titles,
    make_title,
)

Trait = Literal["heading", "tabs", "tab", "literal", "footnote", "admonition", "title", "contents"]
Context = Literal["quote", "admonition", "title", "signature", "footnote", "caption", "contents"]

_SPAN_KINDS: dict[str, SpanKind] = {
    **dict.fromkeys(("code", "kbd", "samp", "tt"), "code"),
    **dict.fromkeys(("b", "strong"), "strong"),
    **dict.fromkeys(("em", "i", "cite", "dfn", "var"), "emphasis"),
}

_CONTEXTS: dict[str, Context] = {"blockquote": "quote", "summary": "title", "figcaption": "caption", "th": "title"}
"""Contexts that elements open. A header cell in a layout table titles an admonition."""

_BLOCKS = frozenset(
    """div section article main body address center fieldset form legend hgroup search caption thead tbody tfoot
    tr td th details option optgroup hr""".split()
)
"""Elements that only separate blocks."""

_ADMONITIONS = frozenset(
    """admonition admonitionblock note tip hint important warning caution danger attention error seealso todo callout
    alert theme-admonition starlight-aside markdown-alert""".split()
)

_TITLES = frozenset(
    """title admonition-title admonition-heading topic-title sidebar-title rubric markdown-alert-title sd-tab-label
    starlight-aside__title""".split()
)
"""Classes of paragraphs that title what follows."""

_TEXINFO_LOWEST = frozenset(("subsubsection", "unnumberedsubsubsec", "appendixsubsubsec", "subsubheading"))
_FOOTNOTES = frozenset(("footnote", "footnotes", "footnote-list", "citation", "endnotes"))
_TAB_LISTS = frozenset(("tabbed-labels", "tab-list"))
_TAB_PANELS = frozenset(("tabbed-block", "tab-panel"))
_CLASSED = frozenset(("div", "section", "aside", "p", "blockquote", "table", "label", "ol", "ul", "dl"))

SMALL_PICTURE = 32
"""Pixels up to which a picture is an icon."""

MARK_LENGTH = 8
"""Characters of a footnote mark with brackets."""

MAX_COLUMNS = 500
"""Wider tables are cut; a cell may claim any column span."""

MAX_GRID_CELLS = 200_000
"""Rows times columns: spans can make a huge grid of a few bytes."""

_LAYOUT_CLASSES = frozenset("highlighttable rouge-table linenotable admonition simplelist footnote citation".split())


@lru_cache(maxsize=4096)
def _find_traits(tag: str, classes: str, role: str) -> tuple[Trait, ...]:
    """Return the traits given by class and role, cached since pages have few."""
    names = classes.split()
    present = {
        "heading": role == "heading",
        "tabs": role == "tablist" or not _TAB_LISTS.isdisjoint(names),
        "tab": role == "tabpanel" or not _TAB_PANELS.isdisjoint(names),
        "literal": tag == "span" and "literal" in names,
        "footnote": role == "doc-footnote" or not _FOOTNOTES.isdisjoint(names),
        "admonition": tag in _CLASSED and not _ADMONITIONS.isdisjoint(names),
        "title": tag in _CLASSED and not _TITLES.isdisjoint(names),
        "contents": (tag == "dl" and "toc" in names) or (tag == "div" and "index" in names),
    }
    return tuple(trait for trait in get_args(Trait) if present[trait])


class HtmlWalker:
    """Walker with the blocks and warnings found so far."""

    def __init__(self, base: str = "") -> None:
        self.base = base
        self.blocks: list[Block] = []
        self.warnings: list[str] = []
        self._text = InlineText()
        self._stack: list[LexborNode | Callable[[], None]] = []
        self._contexts: Counter[Context] = Counter()
        self._admonition_start = 0
        self._lists: list[ListItem] = []
        """The next item of each open list."""
        self._definitions: list[DefinitionList] = []
        self._item: ListItem | None = None
        self._pictures: list[Picture] = []
        self._tabs: list[str] = []

    def walk(self, root: LexborNode) -> None:
        """Read everything below an element."""
        stack = self._stack
        if (first := root.first_child) is not None:
            stack.append(first)
        while stack:
            step = stack.pop()
            if not isinstance(step, LexborNode):
                step()
                continue
            if (following := step.next) is not None:
                stack.append(following)
            tag = step.tag or "-"
            if tag == "-text":
                self._text.add(step.text_content or "")
            elif tag[0] != "-" and self._open_element(tag, step) and (inner := step.first_child) is not None:
                stack.append(inner)
        self.end_block()
        adopt_following(self.blocks)

    def end_block(self) -> None:
        """Turn the pending text into a block."""
        text, spans = self._text.take()
        if text:
            if self._contexts["signature"]:
                spans = (Span(0, len(text), "code"),)
            elif self._contexts["title"]:
                spans = (Span(0, len(text), "strong"), *(span for span in spans if span.kind != "strong"))
            if self._item is None:
                self.blocks.append(Paragraph(text, spans, self._get_role()))
            else:
                self.blocks.append(replace(self._item, text=text, spans=spans))
                self._item = None
        if self._pictures:
            self.blocks += self._pictures
            self._pictures.clear()

    def _get_role(self) -> ParagraphRole:
        if self._contexts["footnote"]:
            return "footnote"
        if self._contexts["caption"]:
            return "caption"
        return "quote" if self._contexts["quote"] else "text"

    def _open_element(self, tag: str, node: LexborNode) -> bool:
        """Begin an element; return whether to descend."""
        attributes = node.attributes
        if is_boilerplate(tag, attributes, node):
            return False
        if attributes:
            for trait in _find_traits(tag, (attributes.get("class") or "")[:MAX_NAME], attributes.get("role") or ""):
                if not self._apply_trait(trait, node, attributes):
                    return False
        kind = _SPAN_KINDS.get(tag)
        if kind is not None:
            self._open_span(kind)
            return True
        handler = _HANDLERS.get(tag)
        if handler is not None:
            return handler(self, node, attributes)
        if tag in _CONTEXTS:
            self._enter(_CONTEXTS[tag])
        elif tag in _BLOCKS:
            self._separate()
        return True

    def _defer(self, ending: Callable[[], None]) -> None:
        """Run an action at the end of the current element."""
        self._stack.append(ending)

    def _separate(self) -> bool:
        """Separate the element's text from that before and after it."""
        self.end_block()
        self._defer(self.end_block)
        return True

    def _enter(self, context: Context) -> None:
        """Enter a context until the end of the current element."""
        self.end_block()
        self._contexts[context] += 1
        self._defer(partial(self._contexts.subtract, (context,)))
        self._defer(self.end_block)

    def _open_span(self, kind: SpanKind, target: str = "") -> None:
        if self._text.open(kind, target):
            self._defer(partial(self._text.close, kind))

    def _apply_trait(self, trait: Trait, node: LexborNode, attributes: Attributes) -> bool:
        match trait:
            case "heading":
                return self._add_heading(node, _parse_int(attributes.get("aria-level"), 2))
            case "tabs":
                # Tab labels precede the panels; each is added where its panel begins.
                labels = node.css("[role=tab], label") or node.css("li, a")
                self._tabs = [label for label in map(extract_text, labels) if label]
                return False
            case "tab":
                self.end_block()
                if self._tabs:
                    label = self._tabs.pop(0)
                    self.blocks.append(Paragraph(label, (Span(0, len(label), "strong"),), self._get_role()))
            case "literal":
                self._open_span("code")
            case "admonition":
                self._enter("quote")
                self._enter("admonition")
                self._admonition_start = len(self.blocks)
            case "footnote" | "title" | "contents":
                self._enter(trait)
        return True

    def _add_heading(self, node: LexborNode, level: int) -> bool:
        """Add a heading; the first one in an admonition opens no section."""
        self.end_block()
        text = extract_text(node) or " ".join(node.text().split())
        if not text:
            return False
        is_notice = self._contexts["admonition"] > 0 and len(self.blocks) == self._admonition_start
        level = min(max(level, 1), MAX_HEADING_LEVEL)
        self.blocks.append(Heading(text, level, is_notice=is_notice, anchor=find_anchor(node)))
        return False

    def _open_heading(self, node: LexborNode, attributes: Attributes) -> bool:
        """Open a heading. Texinfo uses one tag for its two lowest levels."""
        is_lowest = not _TEXINFO_LOWEST.isdisjoint((attributes.get("class") or "").split())
        return self._add_heading(node, int((node.tag or "h1")[1]) + is_lowest)

    def _open_list(self, node: LexborNode, attributes: Attributes) -> bool:
        self._separate()
        self._item = None
        self._lists.append(ListItem("", ordered=node.tag == "ol", number=_parse_int(attributes.get("start"), 1)))
        self._defer(self._close_list)
        return True

    def _close_list(self) -> None:
        self.end_block()
        self._lists.pop()

    def _open_item(self, _node: LexborNode, attributes: Attributes) -> bool:
        self.end_block()
        if not self._lists:
            self._lists.append(ListItem(""))
            self._defer(self._close_list)
        item = self._lists[-1]
        number = _parse_int(attributes.get("value"), item.number)
        self._item = replace(item, number=number, depth=len(self._lists) - 1)
        self._lists[-1] = replace(item, number=number + 1)
        self._defer(partial(self._close_item, len(self.blocks)))
        return True

    def _close_item(self, start: int) -> None:
        self.end_block()
        self._item = None
        if len(self.blocks) > start + 1 and isinstance(item := self.blocks[start], ListItem):
            self.blocks[start] = replace(item, has_more=True)

    def _open_terms(self, node: LexborNode, attributes: Attributes) -> bool:
        """Open a definition list, which DocBook also uses for tables of contents."""
        if self._contexts["contents"]:
            return self._open_list(node, attributes)
        kinds = frozenset((attributes.get("class") or "").split())
        # The fields of a docstring, such as its parameters, are part of what it documents.
        has_terms = "field-list" not in kinds and not self._contexts["quote"] and not self._contexts["footnote"]
        self._separate()
        self._definitions.append(DefinitionList(kinds, has_terms))
        self._defer(lambda: self._end_definition(self._definitions.pop()))
        self._defer(self.end_block)
        return True

    def _end_definition(self, list: DefinitionList) -> None:
        if list.term is not None and isinstance(term := self.blocks[list.term], Term):
            self.blocks[list.term] = replace(term, size=len(self.blocks) - list.term - 1)

    def _open_term(self, node: LexborNode, attributes: Attributes) -> bool:
        if self._contexts["contents"]:
            return self._open_item(node, attributes)
        classes = (attributes.get("class") or "").split()
        self._enter("signature" if "sig" in classes else "title")
        if self._definitions and self._definitions[-1].has_terms:
            self._defer(partial(self._close_term, node, classes, len(self.blocks)))
        return True

    def _close_term(self, node: LexborNode, classes: list[str], start: int) -> None:
        """Turn the blocks of a `dt` into a term, or into a synonym of the one right before it."""
        self.end_block()
        parts = [part for part in self.blocks[start:] if isinstance(part, Paragraph | ListItem)]
        others = [part for part in self.blocks[start:] if not isinstance(part, Paragraph | ListItem)]
        del self.blocks[start:]
        around, around_above = self._definitions[-1], self._definitions[-2:-1]
        if parts:
            line = join_paragraphs(parts)
            kinds = around.kinds.union(classes)
            above = next((above.titles[0] for above in around_above if above.titles and "sig" in classes), "")
            title = make_title(node, line.text, kinds, above)
            last = self.blocks[-1] if around.term == start - 1 else None
            if isinstance(last, Term) and not around.is_defined and len(around.titles) < MAX_SYNONYMS:
                around.titles += (title,)
                line = join_paragraphs([last, line])
                self.blocks[-1] = replace(last, text=line.text, spans=line.spans, title=join_titles(around.titles))
            else:
                self._end_definition(around)
                around.term, around.titles, around.is_defined = start, (title,), False
                self.blocks.append(Term(line.text, title, line.spans, anchor=find_term_anchor(node)))
        self.blocks += others

    def _open_definition(self, node: LexborNode, _attributes: Attributes) -> bool:
        self._separate()
        if self._definitions:
            self._definitions[-1].is_defined = True
        return True

    def _open_paragraph(self, _node: LexborNode, _attributes: Attributes) -> bool:
        """Open a paragraph; in a footnote it continues the line of the mark."""
        if self._contexts["footnote"] and self._text.length < MARK_LENGTH:
            self._defer(self.end_block)
            return True
        return self._separate()

    def _open_page_part(self, node: LexborNode, _attributes: Attributes) -> bool:
        if not self._contexts["quote"] and is_page_boilerplate(node.tag or "", node):
            return False
        return self._separate()

    def _open_preformatted(self, node: LexborNode, _attributes: Attributes) -> bool:
        self.end_block()
        if text := extract_code(node):
            self.blocks.append(Code(text, detect_language(node)))
        return False

    def _open_table(self, node: LexborNode, _attributes: Attributes) -> bool:
        self.end_block()
        rows, caption = _read_grid(node)
        if self._contexts["admonition"] or _is_layout(node, rows, caption):
            return self._separate()
        table = _build_table(rows, extract_text(caption) if caption is not None else "")
        if left_out := len(rows) - table.rows:
            self.warnings.append(f"A table was cut after {table.rows:,} rows; {left_out:,} more are left out.")
        if any(cell.text for cell in table.cells):
            self.blocks.append(table)
        return False

    def _open_anchor(self, _node: LexborNode, attributes: Attributes) -> bool:
        if target := resolve_link(attributes.get("href") or "", self.base):
            self._open_span("link", target)
        return True

    def _open_script(self, node: LexborNode, _attributes: Attributes) -> bool:
        """Add a superscript or subscript; a footnote mark is separated from the word before it."""
        text = extract_text(node)
        if is_footnote_mark(node):
            if not text.isdecimal():
                return True
            self._text.add(f"[{text}]")
        else:
            self._text.add(format_script(node.tag or "", self._text.tail, text))
        return False

    def _break_line(self, _node: LexborNode, _attributes: Attributes) -> bool:
        """Break the line; two breaks in a row end a paragraph."""
        if self._text.tail.endswith("\n"):
            self.end_block()
        else:
            self._text.add_line_break()
        return False

    def _open_formula(self, node: LexborNode, _attributes: Attributes) -> bool:
        self._add_code(extract_formula(node))
        return False

    def _add_code(self, text: str) -> None:
        opened = self._text.open("code")
        self._text.add(text)
        if opened:
            self._text.close("code")

    def _open_picture(self, _node: LexborNode, attributes: Attributes) -> bool:
        caption = " ".join((attributes.get("alt") or attributes.get("title") or "").split())
        if "math" in (attributes.get("class") or ""):
            self._add_code(caption)
        elif caption and not self._contexts["admonition"]:
            sizes = (_parse_int(attributes.get(name), SMALL_PICTURE + 1) for name in ("width", "height"))
            if min(sizes) > SMALL_PICTURE:
                self._pictures.append(Picture(caption))
        return False

    def _open_figure(self, node: LexborNode, _attributes: Attributes) -> bool:
        """Open a figure: a picture with caption, unless it frames a table or code."""
        caption = node.css_first("figcaption")
        if caption is None or node.css_first("table, pre") is not None or node.css_first("img, svg, picture") is None:
            return self._separate()
        self.end_block()
        self.blocks.append(Picture(extract_text(caption)))
        return False


def _parse_int(value: str | None, otherwise: int) -> int:
    digits = (value or "").strip()[:9]
    return int(digits) if digits.isascii() and digits.isdecimal() else otherwise


def _read_grid(table: LexborNode) -> tuple[list[list[LexborNode]], LexborNode | None]:
    """Return the cells of a table by row, and its caption; nested tables stay in their cells."""
    rows: list[list[LexborNode]] = []
    caption = None
    for part in table.iter():
        if part.tag == "caption":
            caption = caption or part
        elif part.tag in ("tr", "thead", "tbody", "tfoot"):
            lines = [part] if part.tag == "tr" else [row for row in part.iter() if row.tag == "tr"]
            rows += ([cell for cell in line.iter() if cell.tag in ("td", "th")] for line in lines)
    return [row for row in rows if row], caption


def _is_layout(table: LexborNode, rows: list[list[LexborNode]], caption: LexborNode | None) -> bool:
    attributes = table.attributes
    if attributes.get("role") in ("presentation", "none"):
        return True
    if not _LAYOUT_CLASSES.isdisjoint((attributes.get("class") or "").split()):
        return True
    if table.css_first("h1, h2, h3, h4, h5, h6") is not None:
        return True
    if caption is not None or any(cell.tag == "th" for row in rows for cell in row):
        return False
    widest = max(map(len, rows), default=0)
    return widest < 2 or len(rows) < 2 or len(table.css("table")) > 1 or table.css_first("pre") is not None


def _build_table(rows: list[list[LexborNode]], caption: str) -> Table:
    """Build a table of the rows that fit into the limit."""
    placed = list(_place_cells(rows))
    columns = max((column + 1 for _, _, column, _, _ in placed), default=0)
    kept = min(len(rows), MAX_GRID_CELLS // max(1, columns))
    cells = tuple(
        Cell(extract_text(node), row, column, min(tall, kept - row), min(wide, columns - column), node.tag == "th")
        for node, row, column, tall, wide in placed
        if row < kept
    )
    return Table(cells, kept, columns, caption)


def _place_cells(rows: list[list[LexborNode]]) -> Iterator[tuple[LexborNode, int, int, int, int]]:
    """Yield each cell with its row, its column and its spans, in the first column that is free.

    `free[column]` is the row from which a column is free.
    """
    free: list[int] = []
    for row, nodes in enumerate(rows):
        column = 0
        for node in nodes:
            while column < len(free) and free[column] > row:
                column += 1
            if column >= MAX_COLUMNS:
                break
            tall, wide = _read_span(node, "rowspan") or len(rows), _read_span(node, "colspan") or 1
            wide = min(wide, MAX_COLUMNS - column)
            yield node, row, column, tall, wide
            free += [0] * (column + wide - len(free))
            free[column : column + wide] = [row + tall] * wide
            column += wide


def _read_span(node: LexborNode, name: str) -> int:
    value = (node.attributes.get(name) or "1").strip()
    return int(value[:6]) if value.isdecimal() and value.isascii() else 1


_HANDLERS: dict[str, Callable[[HtmlWalker, LexborNode, Attributes], bool]] = {
    **dict.fromkeys(("h1", "h2", "h3", "h4", "h5", "h6"), HtmlWalker._open_heading),
    **dict.fromkeys(("ul", "ol", "menu", "dir"), HtmlWalker._open_list),
    "p": HtmlWalker._open_paragraph,
    "li": HtmlWalker._open_item,
    "dl": HtmlWalker._open_terms,
    "dt": HtmlWalker._open_term,
    "dd": HtmlWalker._open_definition,
    **dict.fromkeys(("header", "footer", "aside"), HtmlWalker._open_page_part),
    **dict.fromkeys(("pre", "listing", "xmp"), HtmlWalker._open_preformatted),
    "table": HtmlWalker._open_table,
    "a": HtmlWalker._open_anchor,
    "sup": HtmlWalker._open_script,
    "sub": HtmlWalker._open_script,
    "br": HtmlWalker._break_line,
    **dict.fromkeys(("math", "script"), HtmlWalker._open_formula),
    "img": HtmlWalker._open_picture,
    "figure": HtmlWalker._open_figure,
}
