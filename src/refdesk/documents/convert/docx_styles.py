"""Styles and numbering of Word documents: headings, code, captions and list items."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal
from xml.etree.ElementTree import Element

from .blocks import PLAIN, RunStyle, is_fixed_pitch
from .ooxml import find_path, parse_int

Role = Literal["text", "title", "heading", "caption", "code", "quote", "contents", "term"]

_HEADING = re.compile(r"heading (\d)")
_LIST_DEPTH = re.compile(r"list (?:bullet|number|continue|paragraph)?\s?(\d)")
_CODE = re.compile(
    r"\b(?:source ?code|code|code block|preformatted(?: text)?|html preformatted|verbatim|listing|macro)\b"
)
_QUOTE = re.compile(r"\b(?:quote|quotations?|block text)\b")
_CONTENTS = re.compile(r"(?:toc \d|toc heading|contents \d|contents heading|table of (?:figures|contents|authorities))")
_MAX_ANCESTORS = 20
"""Depth of style inheritance; Word stops at about a dozen, and this ends a loop."""


@dataclass(frozen=True, slots=True)
class ListPosition:
    """List and depth of a paragraph."""

    list_id: str
    depth: int


@dataclass(frozen=True, slots=True)
class DocxStyle:
    """A style with everything it inherits."""

    role: Role = "text"
    level: int = 0
    list_id: str | None = None
    list_depth: int | None = None
    strong: bool = False
    emphasis: bool = False
    fixed_pitch: bool = False


PLAIN_STYLE = DocxStyle()


def filter_used_styles(data: bytes, text: bytes) -> bytes:
    """Keep the XML of the styles that a text uses, and those they are based on: about a quarter.

    All styles are kept if the XML isn't written like that of common programs.
    """
    *styles, rest = data.split(_STYLE_END)
    starts = [style.rfind(b"<w:style ") for style in styles]
    if not styles or min(starts) < 0 or b"<w:p" not in text:
        return data
    ids = (_STYLE_ID.search(style, start) for style, start in zip(styles, starts, strict=True))
    named = {id[1] if id else b"": style[start:] for id, style, start in zip(ids, styles, starts, strict=True)}
    used: set[bytes] = set()
    waiting = [style_id for style_id, style in named.items() if b"w:default=" in style[:200]]
    waiting += set(_NAMED_STYLE.findall(text))
    while waiting:
        style_id = waiting.pop()
        if style_id not in used and style_id in named:
            used.add(style_id)
            waiting += _BASED_ON.findall(named[style_id])
    kept = (style + _STYLE_END for style_id, style in named.items() if style_id in used)
    return _LATENT_STYLES.sub(b"", styles[0][: starts[0]]) + b"".join(kept) + rest


_STYLE_END = b"</w:style>"
_STYLE_ID = re.compile(rb"""w:styleId\s*=\s*["']([^"']*)""")
_NAMED_STYLE = re.compile(rb"""Style\s+w:val\s*=\s*["']([^"']*)""")
_BASED_ON = re.compile(rb"""<w:basedOn\s+w:val\s*=\s*["']([^"']*)""")
_LATENT_STYLES = re.compile(rb"<w:latentStyles\s.*</w:latentStyles>", re.DOTALL)


class Styles:
    """Styles of a document by id."""

    def __init__(self, root: Element | None) -> None:
        nodes = root.findall("{w}style") if root is not None else []
        self._nodes = {node.get("{w}styleId", ""): node for node in nodes}
        self.get = cache(self._resolve)
        self._combine_run = cache(self._combine_properties)
        """Cached, since a document has few formats of runs."""
        defaults = (node for node in nodes if node.get("{w}default") in ("1", "true"))
        ids = (node.get("{w}styleId", "") for node in defaults if node.get("{w}type") == "paragraph")
        self.default_id = next(ids, "")
        fonts = find_path(root, "{w}docDefaults", "{w}rPrDefault", "{w}rPr", "{w}rFonts")
        default_font = fonts.get("{w}ascii", "") if fonts is not None else ""
        self.is_monospaced = is_fixed_pitch(default_font) or self.get(self.default_id).fixed_pitch

    def _resolve(self, style_id: str) -> DocxStyle:
        """Return the style with this id, or a plain one."""
        ancestry = list(self._iter_ancestry(style_id))
        if not ancestry:
            return PLAIN_STYLE
        # Built-in styles have English names in files of every language.
        names = [_read_value(node, "name").lower() for node in ancestry]
        outlines = (_read_value(properties, "outlineLvl") for node in ancestry for properties in node.findall("{w}pPr"))
        role, level = _classify_role(names, next((parse_outline_level(value) for value in outlines if value), None))
        lists = (find_path(node, "{w}pPr", "{w}numPr") for node in ancestry)
        place = next((place for place in lists if place is not None and _read_value(place, "numId")), None)
        depth = _read_value(place, "ilvl") if place is not None else ""
        named_depth = _LIST_DEPTH.fullmatch(names[0])
        fonts = (find_path(node, "{w}rPr", "{w}rFonts") for node in ancestry)
        font = next((name for each in fonts if each is not None and (name := each.get("{w}ascii"))), "")
        return DocxStyle(
            role=role,
            level=level,
            list_id=_read_value(place, "numId") if place is not None else None,
            list_depth=min(parse_int(depth), 8) if depth else int(named_depth[1]) - 1 if named_depth else None,
            strong=_find_switch(ancestry, "b"),
            emphasis=_find_switch(ancestry, "i"),
            fixed_pitch=is_fixed_pitch(font),
        )

    def _iter_ancestry(self, style_id: str) -> Iterator[Element]:
        """Yield the style and those it is based on, nearest first."""
        for _ in range(_MAX_ANCESTORS):
            node = self._nodes.get(style_id)
            if node is None:
                return
            yield node
            style_id = _read_value(node, "basedOn")

    def resolve_run(self, properties: Element, link: str) -> RunStyle | None:
        """Return the style of a run with these properties, or None if it is hidden."""
        style_id = strong = emphasis = None
        font = ""
        for node in properties:
            if node.tag == "{w}rStyle":
                style_id = node.get("{w}val")
            elif node.tag == "{w}b":
                strong = is_on(node)
            elif node.tag == "{w}i":
                emphasis = is_on(node)
            elif node.tag == "{w}rFonts":
                font = node.get("{w}ascii", "")
            elif node.tag == "{w}vanish" and is_on(node):
                return None
        return self._combine_run(style_id, strong, emphasis, font, link)

    def _combine_properties(
        self, style_id: str | None, strong: bool | None, emphasis: bool | None, font: str, link: str
    ) -> RunStyle:
        """Combine direct formatting with the style it overrides."""
        style = self.get(style_id) if style_id is not None else PLAIN_STYLE
        by_style = style.fixed_pitch or style.role == "code"
        code = is_fixed_pitch(font) if font else by_style
        run_style = RunStyle(
            strong=style.strong if strong is None else strong,
            emphasis=style.emphasis if emphasis is None else emphasis,
            code=code and not self.is_monospaced,
            link=link,
            code_by_style=by_style,
        )
        return PLAIN if run_style == PLAIN else run_style


def _read_value(node: Element, path: str) -> str:
    found = node.find(f"{{w}}{path}")
    return found.get("{w}val", "") if found is not None else ""


def _classify_role(names: list[str], outline_level: int | None) -> tuple[Role, int]:
    """Return the role given by the nearest style that implies one; heading levels count from 1."""
    for name in names:
        if _CONTENTS.fullmatch(name):
            return "contents", 0
        if name == "title":
            return "title", 1
        if match := _HEADING.fullmatch(name):
            return "heading", int(match[1])
        if name in ("definition term", "list heading"):
            return "term", 0
        if "caption" in name.split():
            return "caption", 0
        if _CODE.search(name):
            return "code", 0
        if _QUOTE.search(name):
            return "quote", 0
    return ("heading", outline_level) if outline_level else ("text", 0)


def parse_outline_level(outline_level: str) -> int | None:
    """Parse an outline level. Word counts from 0 and writes 9 for body text."""
    level = parse_int(outline_level, 9)
    return level + 1 if level < 9 else None


def _find_switch(ancestry: list[Element], name: str) -> bool:
    found = (find_path(node, "{w}rPr", f"{{w}}{name}") for node in ancestry)
    return next((is_on(switch) for switch in found if switch is not None), False)


def is_on(switch: Element) -> bool:
    """Whether a toggle property such as bold is on, which is the default."""
    return switch.get("{w}val", "true") not in ("0", "false", "off", "none")


@dataclass(frozen=True, slots=True)
class ListLevel:
    """Marker of list items at one depth."""

    ordered: bool = False
    marked: bool = True
    """Whether items have a marker. Word writes a paragraph that continues an item as one without."""
    pattern: str = ""
    """Pattern of a number, such as `%1.%2`."""
    start: int = 1
    indent: int = 0


class Numbering:
    """Lists of a document and their counters."""

    def __init__(self, root: Element | None) -> None:
        abstract = root.findall("{w}abstractNum") if root is not None else []
        lists = root.findall("{w}num") if root is not None else []
        self._abstract = {node.get("{w}abstractNumId", ""): node for node in abstract}
        self._lists = {node.get("{w}numId", ""): node for node in lists}
        self._get_levels = cache(self._read_levels)
        self._families = {list_id: _read_value(node, "abstractNumId") for list_id, node in self._lists.items()}
        """Abstract list by list id; its lists share counters."""
        self._restarts = {
            (node.get("{w}numId", ""), parse_int(override.get("{w}ilvl"))): parse_int(start, 1)
            for node in lists
            for override in node.findall("{w}lvlOverride")
            if (start := _read_value(override, "startOverride")).isdecimal()
        }
        self._counts: dict[str, dict[int, int]] = defaultdict(dict)
        self._started: set[tuple[str, int]] = set()

    def level(self, place: ListPosition) -> ListLevel | None:
        """Return the marker at a position, or None if the document doesn't define it."""
        return self._get_levels(place.list_id).get(place.depth)

    def _read_levels(self, list_id: str) -> Mapping[int, ListLevel]:
        """Return the markers of a list by depth."""
        family, own = self._abstract.get(self._families.get(list_id, "")), self._lists.get(list_id)
        levels = family.findall("{w}lvl") if family is not None else []
        overriding = own.findall("{w}lvlOverride/{w}lvl") if own is not None else []
        return {parse_int(node.get("{w}ilvl")): _read_list_level(node) for node in (*levels, *overriding)}

    def next(self, place: ListPosition) -> int:
        """Advance the counter and return the number of the next item."""
        counts = self._counts[self._families.get(place.list_id, place.list_id)]
        for deeper in [depth for depth in counts if depth > place.depth]:
            del counts[deeper]
        key = (place.list_id, place.depth)
        level = self.level(place) or ListLevel()
        if key in self._restarts and key not in self._started:
            counts[place.depth] = self._restarts[key]
        else:
            counts[place.depth] = counts.get(place.depth, level.start - 1) + 1
        self._started.add(key)
        return counts[place.depth]

    def format_label(self, place: ListPosition) -> str:
        """Return the number of the last item as printed, such as `2.1`."""
        level = self.level(place)
        if level is None or not level.ordered:
            return ""
        counts = self._counts[self._families.get(place.list_id, place.list_id)]
        return re.sub(r"%(\d)", lambda match: str(counts.get(int(match[1]) - 1, 1)), level.pattern)


def _read_list_level(node: Element) -> ListLevel:
    kind, pattern, start = _read_value(node, "numFmt"), _read_value(node, "lvlText"), _read_value(node, "start")
    indent = find_path(node, "{w}pPr", "{w}ind")
    return ListLevel(
        ordered=kind not in ("bullet", "none", "") and "%" in pattern,
        marked=kind != "none" and bool(pattern.strip()),
        pattern=pattern,
        start=parse_int(start, 1),
        indent=read_left_indent(indent),
    )


def read_left_indent(node: Element | None) -> int:
    """Return the left indent in twentieths of a point."""
    return parse_int(node.get("{w}left") or node.get("{w}start")) if node is not None else 0
