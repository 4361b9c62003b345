"""Web pages: the main content with its structure, without boilerplate."""

from __future__ import annotations

import re
from urllib.parse import urljoin

from selectolax.lexbor import LexborHTMLParser, SelectolaxError

from refdesk.documents.convert.decoding import decode
from refdesk.documents.convert.source import SourceFile
from refdesk.documents.model import Block, Document
from refdesk.errors import CannotConvert

from . import page
from .walk import HtmlWalker


def convert(source: SourceFile) -> Document:
    """Convert a web page."""
    decoded = decode(source.data, source.charset or page.find_charset(source.data))
    tree = _parse(decoded.text)
    page.drop_boilerplate(tree)
    try:
        base = urljoin(source.url, page.read_base(tree))
    except ValueError:
        base = source.url
    walk = HtmlWalker(base)
    if tree.body is not None:
        walk.walk(page.find_main_part(tree.body))
    if not walk.blocks:
        raise CannotConvert("The page holds no text; if scripts fill it in, save it from a browser or print it to PDF.")
    blocks = page.add_title(walk.blocks, tree)
    return Document(
        title=page.choose_title(blocks, tree, source.name),
        blocks=tuple(blocks),
        tags=page.read_tags(tree),
        properties=page.read_properties(tree),
        warnings=(*decoded.warnings, *walk.warnings),
    )


def parse_fragment(fragment: str, base: str = "") -> tuple[list[Block], list[str]]:
    """Return the blocks and warnings of an HTML fragment without boilerplate, as other formats render to."""
    body = _parse(fragment).body
    walk = HtmlWalker(base)
    if body is not None:
        walk.walk(body)
    return walk.blocks, walk.warnings


def _parse(text: str) -> LexborHTMLParser:
    _check_limits(text)
    try:
        return LexborHTMLParser(text)
    except SelectolaxError as error:
        raise CannotConvert("The page cannot be parsed; it is broken or made to do harm.") from error


MAX_CHARACTERS = 10_000_000
"""Some 2000 printed pages; the largest single-page manuals have about half."""

MAX_DEPTH = 3_000
"""Real pages stay below 100; unclosed tags add some hundreds."""

MAX_ATTRIBUTES = 5_000
"""Attributes of one tag; takes the parser 0.04 s."""

_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/<>]*)([^<>]*)")
_LONG_TAG = re.compile(rf"<[a-zA-Z][^<>]{{{2 * MAX_ATTRIBUTES},}}")
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
_NON_NESTING = frozenset(
    "area base br col embed hr img input link meta param source track wbr p li dt dd tr td th option".split()
)
"""Void tags, and tags closed by the next one of their kind."""

_SVG_TAGS = frozenset(
    """svg g a path rect circle ellipse line polyline polygon text tspan textpath use defs symbol marker stop image mask
    lineargradient radialgradient clippath pattern filter animate metadata switch""".split()
)
_HTML_IN_SVG = frozenset(("title", "desc", "foreignobject"))


def _check_limits(text: str) -> None:
    """Raise for a page too large or too deep: the parser is quadratic in its depth and in the attributes of a tag."""
    if len(text) > MAX_CHARACTERS:
        raise CannotConvert(
            f"The page has {len(text):,} characters, more than the {MAX_CHARACTERS:,} that are converted; split it."
        )
    if text.count("<") - text.count("</") > MAX_DEPTH and _is_too_deep(text):
        raise CannotConvert(f"The page nests more than {MAX_DEPTH:,} elements; it is broken or made to do harm.")
    if any(len(_QUOTED.sub("", tag[0]).split()) > MAX_ATTRIBUTES for tag in _LONG_TAG.finditer(text)):
        raise CannotConvert(
            f"A tag has more than {MAX_ATTRIBUTES:,} attributes; the page is broken or made to do harm."
        )


def _is_too_deep(text: str) -> bool:
    depth, in_svg = 0, False
    for closing, name, rest in _TAG.findall(text):
        name = name.lower()
        if name in _NON_NESTING:
            continue
        if not closing and in_svg and name in _SVG_TAGS and rest.endswith("/"):
            continue
        depth = max(0, depth - 1) if closing else depth + 1
        if depth > MAX_DEPTH:
            return True
        # Only inside of SVG does a slash close an element.
        if name == "svg":
            in_svg = not closing
        elif name in _HTML_IN_SVG:
            in_svg = bool(closing)
        else:
            in_svg = in_svg and name in _SVG_TAGS
    return False
