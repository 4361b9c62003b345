"""Markdown, rendered to HTML and read from there, so that embedded HTML is handled, too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html import unescape

import yaml
from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline

from refdesk.documents.export.markdown import MATH
from refdesk.documents.model import Block, Document, Heading
from refdesk.errors import CannotConvert

from .html import parse_fragment
from .source import SourceFile, decode_text

MAX_FRONT_MATTER_DEPTH = 100
"""Nested brackets in front matter; PyYAML is quadratic in their number."""

MAX_CHARACTERS = 5_000_000
"""Some 1000 printed pages; rendering takes some four seconds per million."""

MAX_FRONT_MATTER = 20_000
"""Characters, more than any list of tags and authors and fast to parse."""

MAX_NESTING = 60
"""Nested blocks, a list and its items counting as two; deeper ones are lost in rendering."""


def _read_formula(state: StateInline, silent: bool) -> bool:
    """Read a formula between dollar signs as plain text: its backslashes and asterisks aren't markup."""
    found = MATH.match(state.src, state.pos) if state.src[state.pos] == "$" else None
    if found is None:
        return False
    if not silent:
        state.pending += found[0]
    state.pos = found.end()
    return True


_RENDERER = MarkdownIt("commonmark", {"maxNesting": MAX_NESTING}).enable(["table", "strikethrough"])
_RENDERER.inline.ruler.before("escape", "formula", _read_formula)
_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)\n(?:---|\.\.\.)[ \t]*(?:\n|$)", re.DOTALL)
_STATED_ANCHOR = re.compile(r"\s*\{:?\s*#([^\s{}]{1,300})[^{}]*\}$")
"""`## Title {#anchor}`, as in pandoc, kramdown, MkDocs and Docusaurus."""

_DEFINITION = re.compile(
    r"<p>([^\n]{1,300})(?:</p>\n<p>|\n): ((?:(?!</p>).){1,5000})</p>(?:\n<pre><code>(.*?)</code></pre>)?", re.DOTALL
)
"""A rendered term and its definition, as in pandoc and MkDocs: `term` and below it `: definition`.

Further paragraphs, lists and code of the definition are indented, and rendered as code.
"""

_PROPERTIES = {
    **{name: name for name in ("description", "author", "language", "version", "status")},
    **{"summary": "description", "authors": "author", "lang": "language", "date": "published"},
    **dict.fromkeys(("updated", "lastmod"), "modified"),
}


def convert(source: SourceFile) -> Document:
    """Convert a Markdown file."""
    decoded = decode_text(source, MAX_CHARACTERS)
    matter, body, warnings = _split_front_matter(decoded.text)
    rendered = _DEFINITION.sub(_render_definition, _RENDERER.render(body))
    blocks, lost = parse_fragment(rendered, source.url)
    if not blocks and rendered.count("<blockquote>") + 2 * rendered.count("<li>") >= MAX_NESTING:
        raise CannotConvert("The file nests too deep to be read; it is broken or made to do harm.")
    if not blocks:
        raise CannotConvert("The file holds no text.")
    blocks = [_apply_anchor(block) for block in blocks]
    headings = [block for block in blocks if isinstance(block, Heading)]
    highest = min(headings, key=lambda heading: heading.level).text if headings else ""
    properties: dict[str, str] = {}
    for name, value in matter.items():
        key, text = _PROPERTIES.get(str(name).lower()), _to_text(value)
        if key and text:
            properties.setdefault(key, text)
    return Document(
        title=_to_text(matter.get("title")) or highest or source.name,
        blocks=tuple(blocks),
        tags=tuple(dict.fromkeys(_read_tags(matter))),
        properties=properties,
        warnings=(*decoded.warnings, *warnings, *lost),
    )


def _render_definition(match: re.Match[str]) -> str:
    definitions = match[2].replace("\n: ", "</p></dd><dd><p>")
    return f"<dl><dt>{match[1]}</dt><dd><p>{definitions}</p>{_RENDERER.render(unescape(match[3] or ''))}</dd></dl>"


def _apply_anchor(block: Block) -> Block:
    """Move the anchor in braces after a heading's text to the heading."""
    stated = _STATED_ANCHOR.search(block.text) if isinstance(block, Heading) and block.text.endswith("}") else None
    if stated is None or not isinstance(block, Heading):
        return block
    return replace(block, text=block.text[: stated.start()] or block.text, anchor=stated[1])


def _split_front_matter(text: str) -> tuple[Mapping[str, object], str, tuple[str, ...]]:
    found = _FRONT_MATTER.match(text, 0, MAX_FRONT_MATTER)
    if found is None:
        return {}, text, ()
    try:
        matter = _parse_yaml(found[1])
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}, text[found.end() :], ("The front matter is no valid YAML and was left out.",)
    return (matter, text[found.end() :], ()) if isinstance(matter, dict) else ({}, text, ())


def _parse_yaml(text: str) -> object:
    """Parse YAML without aliases, which can expand without limit, and without deep nesting."""
    depth = 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, yaml.AliasToken):
            raise ValueError("front matter with aliases")
        if isinstance(token, yaml.FlowSequenceStartToken | yaml.FlowMappingStartToken):
            depth += 1
        elif isinstance(token, yaml.FlowSequenceEndToken | yaml.FlowMappingEndToken):
            depth -= 1
        if depth > MAX_FRONT_MATTER_DEPTH:
            raise ValueError("front matter that nests too deep")
    return yaml.safe_load(text)


def _read_tags(matter: Mapping[str, object]) -> Iterator[str]:
    for name in ("tags", "keywords", "categories"):
        value = matter.get(name)
        values = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else ()
        yield from filter(None, map(_to_text, values))


def _to_text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(filter(None, map(_to_text, value)))
    return "" if value is None or isinstance(value, dict) else " ".join(str(value).split())
