"""Web pages: the main content without boilerplate, the title and the metadata."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from urllib.parse import urljoin

from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from refdesk.documents.convert.source import SourceFile, decode
from refdesk.documents.model import Block, Document, Heading
from refdesk.errors import CannotConvert

from .boilerplate import MOSTLY_LINKS, measure_link_share
from .inline import extract_text
from .titles import find_anchor
from .walk import HtmlWalker

_MAIN = "main, [role=main]"
_ARTICLES = "article, [itemprop=articleBody]"
_CONTAINERS = (
    "#docContent, .markdown-body, .mw-parser-output, .rst-content, div.body, #main-content, #main, #bodyContent, "
    ".main-content, .post-content, .entry-content, .article-body, .page-content, #content, .content"
)
_H1 = "h1, [role=heading][aria-level='1']"

MAIN_SHARE = 0.5
"""Share of a page's text that its main content has to hold. Articles may be teasers of other pages, and elements named
`content` may hold little."""

MAX_PAGER_CHARACTERS = 300
"""Characters of a row of links to the next and previous page; longer elements hold more."""

MAX_PROPERTY = 1000
"""Characters of a metadata value."""

MAX_CONTENTS = 200
"""Elements inspected as tables of contents; pages have one, perhaps one per chapter."""

OWN_LINK_SHARE = 0.9
"""Share of links to the same page that makes a table of contents."""

_CONTENTS = "[class*=toc], [id*=toc], [id=TOC], [class*=contents], [id*=contents], [class*=Contents]"
_CONTENTS_TAGS = frozenset(("div", "nav", "ul", "ol", "dl", "aside", "details", "section", "table"))
_PAGER_LINKS = "a[rel~=next], a[rel~=prev], a[rel~=previous], a[accesskey=n], a[accesskey=p]"
_CHARSET = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{2,40})|^<\?xml[^>]{0,99}encoding=[\"']([\w.-]+)"
)
_PROPERTIES = {
    **dict.fromkeys(("description", "og:description"), "description"),
    **dict.fromkeys(("author", "article:author", "dc.creator"), "author"),
    "generator": "generator",
    **dict.fromkeys(("date", "dc.date", "dcterms.date", "article:published_time"), "published"),
    **dict.fromkeys(("article:modified_time", "last-modified", "og:updated_time"), "modified"),
}

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


def convert(source: SourceFile) -> Document:
    """Convert a web page."""
    decoded = decode(source.data, source.charset or _find_charset(source.data))
    tree = _parse(decoded.text)
    _drop_boilerplate(tree)
    stated = tree.css_first("base[href]")
    try:
        base = urljoin(source.url, (stated.attributes.get("href") or "").strip()) if stated is not None else source.url
    except ValueError:
        base = source.url
    walk = HtmlWalker(base)
    if tree.body is not None:
        walk.walk(_find_main_part(tree.body))
    if not walk.blocks:
        raise CannotConvert("The page holds no text; if scripts fill it in, save it from a browser or print it to PDF.")
    blocks = _add_title(walk.blocks, tree)
    return Document(
        title=_choose_title(blocks, tree, source.name),
        blocks=tuple(blocks),
        tags=_read_tags(tree),
        properties=_read_properties(tree),
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


def _find_charset(data: bytes) -> str | None:
    """Return the encoding declared near the start of a page, or None."""
    found = _CHARSET.search(data[:4096])
    if found is None:
        return None
    name = (found[1] or found[2]).decode("ascii")
    return "utf-8" if name.lower().startswith("utf-16") else name


def _drop_boilerplate(tree: LexborHTMLParser) -> None:
    """Remove scripts, styles, pager links and tables of contents of the page itself."""
    for node in tree.css("script:not([type^='math/tex']), style"):
        node.decompose()
    nodes = {node.mem_id: node for node in (*map(_find_link_row, tree.css(_PAGER_LINKS)), *_find_contents_lists(tree))}
    # Of nested elements, only the outermost is touched.
    outermost = [node for node in nodes.values() if not any(above.mem_id in nodes for above in _iter_ancestors(node))]
    for node in outermost:
        node.decompose()


def _iter_ancestors(node: LexborNode) -> Iterator[LexborNode]:
    above = node.parent
    while above is not None:
        yield above
        above = above.parent


def _find_contents_lists(tree: LexborHTMLParser) -> list[LexborNode]:
    """Return the tables of contents of this page, which repeat its headings."""
    candidates = [node for node in tree.css(_CONTENTS)[:MAX_CONTENTS] if node.tag in _CONTENTS_TAGS]
    if not candidates:
        return []
    places = {node.attributes.get("id") or node.attributes.get("name") for node in tree.css("[id], a[name]")}
    found: list[LexborNode] = []
    for node in candidates:
        targets = [link.attributes.get("href") or "" for link in node.css("a[href]")]
        own = sum(target.rpartition("#")[2] in places for target in targets if "#" in target)
        if targets and own >= OWN_LINK_SHARE * len(targets) and measure_link_share(node) > MOSTLY_LINKS:
            found.append(node)
    return found


def _find_link_row(link: LexborNode) -> LexborNode:
    """Return the largest element around a link that holds little but such links."""
    line, above = link, link.parent
    while above is not None and above.tag not in ("body", "main", "article", "html"):
        if len(above.text()) > MAX_PAGER_CHARACTERS or above.css_first("h1, h2, h3, h4, h5, h6, pre") is not None:
            break
        line, above = above, above.parent
    return line


def _find_main_part(body: LexborNode) -> LexborNode:
    """Return the narrowest element that holds the main content."""
    part = _find_largest(body.css(_MAIN), body, MAIN_SHARE / 2)
    if part is not None:
        return _find_largest(part.css(_ARTICLES), part, MAIN_SHARE) or part
    if (article := _find_largest(body.css(_ARTICLES), body, MAIN_SHARE)) is not None:
        return article
    # An element named as content has to hold every title.
    titles = len(body.css(_H1))
    candidates = [node for node in body.css(_CONTAINERS) if len(node.css(_H1)) == titles]
    return _find_largest(candidates, body, MAIN_SHARE) or body


def _find_largest(candidates: Sequence[LexborNode], around: LexborNode, share: float) -> LexborNode | None:
    """Return the candidate with the most text, if it holds a sufficient share."""
    largest, length = None, share * len(around.text()) if candidates else 0
    for node in candidates:
        if (own := len(node.text())) > length:
            largest, length = node, own
    return largest


def _add_title(blocks: list[Block], tree: LexborHTMLParser) -> list[Block]:
    """Start the blocks with the page's title, which may be outside of the main content or below the site's title."""
    stated = _read_title(tree)
    titles = [block for block in blocks if isinstance(block, Heading) and block.level == 1]
    if titles:
        texts = [title.text for title in titles]
        is_below = len(texts) > 1 and not stated.startswith(texts[0]) and stated.startswith(texts[1])
        return blocks[1:] if is_below and blocks[0] is titles[0] else blocks
    outside = (Heading(extract_text(node), 1, anchor=find_anchor(node)) for node in tree.css(_H1))
    title = next((heading for heading in outside if heading.text and stated.startswith(heading.text)), None)
    return [title, *blocks] if title else _raise_title(blocks, stated)


def _raise_title(blocks: list[Block], stated: str) -> list[Block]:
    """Give the title level 1 if it has the same level as the sections below it.

    DocBook writes reference pages so, and each section would seem independent.
    """
    headings = [block for block in blocks if isinstance(block, Heading)]
    if not headings or not f"{stated} ".startswith(f"{headings[0].text} "):
        return blocks
    title, *others = headings
    if all(other.level > title.level for other in others):
        return blocks
    return [replace(title, level=1) if block is title else block for block in blocks]


def _choose_title(blocks: Sequence[Block], tree: LexborHTMLParser, fallback: str) -> str:
    """Return the best title: a heading, the declared title, or the fallback.

    The only heading of level 1 comes first, or the first one that the declared title contains.
    """
    stated = _read_title(tree)
    headings = [block for block in blocks if isinstance(block, Heading)]
    titles = [heading.text for heading in headings if heading.level == 1]
    if titles and (len(titles) == 1 or titles[0] in stated):
        return titles[0]
    return stated or next((heading.text for heading in headings), fallback)


def _read_title(tree: LexborHTMLParser) -> str:
    """Return the declared title, or the Open Graph title."""
    node = tree.css_first("head > title") or tree.css_first("title")
    return " ".join(node.text().split()) if node is not None else dict(_iter_metas(tree)).get("og:title", "")


def _read_properties(tree: LexborHTMLParser) -> dict[str, str]:
    """Return description, author, language and dates; the first of each."""
    found: dict[str, str] = {}
    language = tree.root.attributes.get("lang") if tree.root is not None else None
    if language:
        found["language"] = language[:MAX_PROPERTY]
    for name, content in _iter_metas(tree):
        if name in _PROPERTIES:
            found.setdefault(_PROPERTIES[name], content)
    return found


def _read_tags(tree: LexborHTMLParser) -> tuple[str, ...]:
    """Return the keywords without duplicates."""
    keywords = ",".join(content for name, content in _iter_metas(tree) if name in ("keywords", "article:tag"))
    return tuple(dict.fromkeys(tag for tag in map(str.strip, keywords.split(",")) if tag))


def _iter_metas(tree: LexborHTMLParser) -> Iterator[tuple[str, str]]:
    for node in tree.css("meta[content]"):
        attributes = node.attributes
        name = attributes.get("name") or attributes.get("property") or attributes.get("http-equiv") or ""
        content = " ".join((attributes.get("content") or "").split())[:MAX_PROPERTY]
        if name and content:
            yield name.lower(), content
