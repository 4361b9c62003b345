"""Web pages: the main content with its structure, without boilerplate."""

from __future__ import annotations

from urllib.parse import urljoin

from selectolax.lexbor import LexborHTMLParser, SelectolaxError

from refdesk.documents.convert.decoding import decode
from refdesk.documents.convert.source import SourceFile
from refdesk.documents.model import Block, Document
from refdesk.errors import CannotConvert

from . import guard, page
from .walk import HtmlWalker


def convert(source: SourceFile) -> Document:
    """Convert a web page."""
    decoded = decode(source.data, source.charset or page.find_charset(source.data))
    tree = _parse(decoded.text)
    page.drop_boilerplate(tree)
    walk = HtmlWalker(_join_url(source.url, page.read_base(tree)))
    if tree.body is not None:
        walk.walk(page.find_main_part(tree.body))
    if not walk.blocks:
        raise CannotConvert("The page holds no text; if scripts fill it in, save it from a browser or print it to PDF.")
    blocks = page.add_title(walk.blocks, tree)
    return Document(
        title=page.choose_title(blocks, tree, source.name),
        blocks=tuple(blocks),
        name=source.name,
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
    guard.check(text)
    try:
        return LexborHTMLParser(text)
    except SelectolaxError as error:
        raise CannotConvert("The page cannot be parsed; it is broken or made to do harm.") from error


def _join_url(url: str, base: str) -> str:
    try:
        return urljoin(url, base)
    except ValueError:
        return url
