"""Web pages: the main part with its structure, without what stands around it."""

from __future__ import annotations

from urllib.parse import urljoin

from selectolax.lexbor import LexborHTMLParser, SelectolaxError

from refdesk.documents.convert.decoding import decode
from refdesk.documents.convert.source import Source
from refdesk.documents.model import Block, Document
from refdesk.errors import CannotConvert

from . import guard, page
from .walk import Walk

MEDIA_TYPE = "text/html"


def convert(source: Source) -> Document:
    """Read a web page."""
    decoded = decode(source.data, source.charset or page.stated_charset(source.data))
    tree = _parsed(decoded.text)
    page.drop_unseen(tree)
    walk = Walk(_joined(source.url, page.base_of(tree)))
    if tree.body is not None:
        walk.over(page.main_part(tree.body))
    if not walk.blocks:
        raise CannotConvert("The page holds no text; if scripts fill it in, save it from a browser or print it to PDF.")
    blocks = page.with_own_title(walk.blocks, tree)
    return Document(
        title=page.title_of(blocks, tree, source.name),
        blocks=tuple(blocks),
        name=source.name,
        media_type=MEDIA_TYPE,
        tags=page.tags_of(tree),
        properties=page.properties_of(tree),
        warnings=(*decoded.warnings, *walk.warnings),
    )


def blocks_of(fragment: str, base: str = "") -> tuple[list[Block], list[str]]:
    """The blocks of HTML that is all content, as other formats are rendered to, and warnings."""
    body = _parsed(fragment).body
    walk = Walk(base)
    if body is not None:
        walk.over(body)
    return walk.blocks, walk.warnings


def _parsed(text: str) -> LexborHTMLParser:
    guard.check(text)
    try:
        return LexborHTMLParser(text)
    except SelectolaxError as error:
        raise CannotConvert("The page cannot be parsed; it is broken or made to do harm.") from error


def _joined(url: str, base: str) -> str:
    try:
        return urljoin(url, base)
    except ValueError:
        return url
