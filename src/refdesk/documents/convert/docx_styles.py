"""What the styles and numbering of a Word document mean: which paragraphs are headings, code, captions, list items."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal
from xml.etree.ElementTree import Element

from refdesk.documents.convert.runs import is_fixed_pitch

W: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
VALUE: Final = f"{W}val"

Role = Literal["text", "title", "heading", "caption", "code", "quote", "contents", "term"]

_HEADING = re.compile(r"heading (\d)")
_LIST_DEPTH = re.compile(r"list (?:bullet|number|continue|paragraph)?\s?(\d)")
_CODE = re.compile(
    r"\b(?:source ?code|code|code block|preformatted(?: text)?|html preformatted|verbatim|listing|macro)\b"
)
_QUOTE = re.compile(r"\b(?:quote|quotations?|block text)\b")
_CONTENTS = re.compile(r"(?:toc \d|toc heading|contents \d|contents heading|table of (?:figures|contents|authorities))")
_MAX_ANCESTORS = 20
"""Styles build on one another; Word stops at about a dozen, and a circle never ends."""


@dataclass(frozen=True, slots=True)
class ListPlace:
    """A paragraph's list and its depth in it."""

    list_id: str
    depth: int


@dataclass(frozen=True, slots=True)
class Style:
    """What a style says, with all that it builds on."""

    name: str = ""
    role: Role = "text"
    level: int = 0
    list_id: str | None = None
    list_depth: int | None = None
    strong: bool = False
    emphasis: bool = False
    fixed_pitch: bool = False


PLAIN_STYLE = Style()


def without_table_styles(data: bytes) -> bytes:
    """The styles without those that say how tables are painted: nine tenths of what Word puts into every file."""
    end = b"</w:style>"
    *styles, rest = data.split(end)
    pruned: list[bytes] = []
    for style in styles:
        start = style.rfind(b"<w:style ")
        is_table = b'w:type="table"' in style[start : start + 100]
        pruned += (style[:start],) if start >= 0 and is_table else (style, end)
    return b"".join((*pruned, rest))


class Styles:
    """A document's styles by id."""

    def __init__(self, root: Element | None) -> None:
        nodes = root.findall(f"{W}style") if root is not None else []
        self._nodes = {node.get(f"{W}styleId", ""): node for node in nodes}
        self._resolved: dict[str, Style] = {}
        default = next((node for node in nodes if _is_default_paragraph(node)), None)
        self.default_id = default.get(f"{W}styleId", "") if default is not None else ""
        self.typewritten = _document_is_fixed_pitch(root) or self.get(self.default_id).fixed_pitch

    def get(self, style_id: str) -> Style:
        """The style of that id; a plain one when there is none."""
        known = self._resolved.get(style_id)
        if known is None:
            known = self._resolved[style_id] = self._resolve(style_id)
        return known

    def _resolve(self, style_id: str) -> Style:
        ancestry = list(self._ancestry(style_id))
        if not ancestry:
            return PLAIN_STYLE
        names = [_name(node) for node in ancestry]
        role, level = _role(names, _outline_level(ancestry))
        list_id, depth = _list_of_style(ancestry)
        return Style(
            name=names[0],
            role=role,
            level=level,
            list_id=list_id,
            list_depth=depth if depth is not None else _depth_by_name(names[0]),
            strong=_first_switch(ancestry, "b"),
            emphasis=_first_switch(ancestry, "i"),
            fixed_pitch=_fixed_pitch(ancestry),
        )

    def _ancestry(self, style_id: str) -> Iterator[Element]:
        """The style itself and those it builds on, nearest first."""
        for _ in range(_MAX_ANCESTORS):
            node = self._nodes.get(style_id)
            if node is None:
                return
            yield node
            style_id = _value(node, "basedOn")


def _is_default_paragraph(node: Element) -> bool:
    return node.get(f"{W}type") == "paragraph" and node.get(f"{W}default") in ("1", "true")


def _document_is_fixed_pitch(root: Element | None) -> bool:
    fonts = root.find(f"{W}docDefaults/{W}rPrDefault/{W}rPr/{W}rFonts") if root is not None else None
    return fonts is not None and is_fixed_pitch(fonts.get(f"{W}ascii", ""))


def _name(node: Element) -> str:
    """Styles that ship with Word have English names in files of every language."""
    return _value(node, "name").lower()


def _value(node: Element, path: str) -> str:
    found = node.find(f"{W}{path}")
    return found.get(VALUE, "") if found is not None else ""


def _role(names: list[str], outline_level: int | None) -> tuple[Role, int]:
    """What the nearest style that says anything says; a heading's level is counted from 1."""
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


def _outline_level(ancestry: list[Element]) -> int | None:
    values = (_value(properties, "outlineLvl") for node in ancestry for properties in node.findall(f"{W}pPr"))
    return next((level_of(value) for value in values if value), None)


def level_of(outline_level: str) -> int | None:
    """Word counts outline levels from 0 and writes 9 for running text."""
    return int(outline_level) + 1 if outline_level.isdecimal() and int(outline_level) < 9 else None


def _list_of_style(ancestry: list[Element]) -> tuple[str | None, int | None]:
    for node in ancestry:
        place = node.find(f"{W}pPr/{W}numPr")
        if place is not None and (list_id := _value(place, "numId")):
            depth = _value(place, "ilvl")
            return list_id, int(depth) if depth.isdecimal() else None
    return None, None


def _depth_by_name(name: str) -> int | None:
    match = _LIST_DEPTH.fullmatch(name)
    return int(match[1]) - 1 if match else None


def _first_switch(ancestry: list[Element], name: str) -> bool:
    found = (node.find(f"{W}rPr/{W}{name}") for node in ancestry)
    return next((is_on(switch) for switch in found if switch is not None), False)


def is_on(switch: Element) -> bool:
    """Bold, italic and their like are on unless they say otherwise."""
    return switch.get(VALUE, "true") not in ("0", "false", "off", "none")


def _fixed_pitch(ancestry: list[Element]) -> bool:
    fonts = (node.find(f"{W}rPr/{W}rFonts") for node in ancestry)
    names = (font.get(f"{W}ascii") for font in fonts if font is not None)
    return is_fixed_pitch(next((name for name in names if name), ""))


@dataclass(frozen=True, slots=True)
class ListLevel:
    """How the items of a list are marked at one depth."""

    ordered: bool = False
    marked: bool = True
    """Word writes a paragraph that continues an item as an item without a marker."""
    pattern: str = ""
    """The text of a number, such as `%1.%2`."""
    start: int = 1
    indent: int = 0


@dataclass(slots=True)
class Numbering:
    """A document's lists, and how far each has counted."""

    levels: Mapping[str, Mapping[int, ListLevel]]
    """By the list's id and depth."""
    families: Mapping[str, str]
    """Lists that count on where another one of their family stopped."""
    restarts: Mapping[tuple[str, int], int]
    _counts: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    _begun: set[tuple[str, int]] = field(default_factory=set)

    def level(self, place: ListPlace) -> ListLevel | None:
        """How items are marked there; None when the document does not say."""
        return self.levels.get(place.list_id, {}).get(place.depth)

    def next(self, place: ListPlace) -> int:
        """The number of the item that comes next there."""
        counts = self._counts[self.families.get(place.list_id, place.list_id)]
        for deeper in [depth for depth in counts if depth > place.depth]:
            del counts[deeper]
        key = (place.list_id, place.depth)
        level = self.level(place) or ListLevel()
        if key in self.restarts and key not in self._begun:
            counts[place.depth] = self.restarts[key]
        else:
            counts[place.depth] = counts.get(place.depth, level.start - 1) + 1
        self._begun.add(key)
        return counts[place.depth]

    def label(self, place: ListPlace) -> str:
        """The number as it is printed, such as `2.1`, of the item that was counted last."""
        level = self.level(place)
        if level is None or not level.ordered:
            return ""
        counts = self._counts[self.families.get(place.list_id, place.list_id)]
        return re.sub(r"%(\d)", lambda match: str(counts.get(int(match[1]) - 1, 1)), level.pattern)


def numbering_of(root: Element | None) -> Numbering:
    """Read the part that describes all lists."""
    if root is None:
        return Numbering({}, {}, {})
    abstract = {node.get(f"{W}abstractNumId", ""): _levels(node) for node in root.findall(f"{W}abstractNum")}
    families = {node.get(f"{W}numId", ""): _value(node, "abstractNumId") for node in root.findall(f"{W}num")}
    levels = {
        node.get(f"{W}numId", ""): {**abstract.get(_value(node, "abstractNumId"), {}), **_overridden(node)}
        for node in root.findall(f"{W}num")
    }
    return Numbering(levels, families, dict(_restarts(root)))


def _overridden(node: Element) -> dict[int, ListLevel]:
    """Levels that a list marks otherwise than its family."""
    levels = node.findall(f"{W}lvlOverride/{W}lvl")
    return {int(level.get(f"{W}ilvl", "0")): _list_level(level) for level in levels}


def _levels(node: Element) -> dict[int, ListLevel]:
    return {int(level.get(f"{W}ilvl", "0")): _list_level(level) for level in node.findall(f"{W}lvl")}


def _list_level(node: Element) -> ListLevel:
    kind, pattern, start = _value(node, "numFmt"), _value(node, "lvlText"), _value(node, "start")
    indent = node.find(f"{W}pPr/{W}ind")
    return ListLevel(
        ordered=kind not in ("bullet", "none", "") and "%" in pattern,
        marked=kind != "none" and bool(pattern.strip()),
        pattern=pattern,
        start=int(start) if start.isdecimal() else 1,
        indent=left_indent(indent),
    )


def left_indent(node: Element | None) -> int:
    """In twentieths of a point."""
    value = (node.get(f"{W}left") or node.get(f"{W}start") or "0") if node is not None else "0"
    return int(value) if value.isdecimal() else 0


def _restarts(root: Element) -> Iterator[tuple[tuple[str, int], int]]:
    for node in root.findall(f"{W}num"):
        for override in node.findall(f"{W}lvlOverride"):
            start = _value(override, "startOverride")
            if start.isdecimal():
                yield (node.get(f"{W}numId", ""), int(override.get(f"{W}ilvl", "0"))), int(start)
