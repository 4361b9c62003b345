"""reStructuredText, rendered to HTML by docutils and read from there.

Docutils doesn't know the directives and roles of Sphinx, so each one in use is registered in a form that keeps its
content. Nothing is included, executed or resolved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from docutils import nodes
from docutils.core import publish_parts
from docutils.parsers.rst import Directive, directives, roles
from docutils.parsers.rst.directives import body, images, tables
from docutils.parsers.rst.languages import en
from docutils.utils import SystemMessage

from refdesk.documents.model import Document, Heading
from refdesk.errors import CannotConvert

from .html import parse_fragment
from .source import SourceFile, decode_text

MAX_CHARACTERS = 2_000_000
"""Some 500 printed pages; docutils takes about two seconds per million."""

MAX_UNKNOWN_NAMES = 500
"""Directives and roles registered per file; Sphinx and its extensions have fewer."""

MAX_LINE = 20_000
"""Characters per line, in which docutils is quadratic."""

_DIRECTIVE = re.compile(r"^[ \t]*\.\.[ \t]+(?:\|[^|\n]+\|[ \t]+)?([A-Za-z][\w:.+-]*?)[ \t]?::(?:[ \t]|$)", re.MULTILINE)
_ROLE = re.compile(r":([A-Za-z][\w:.+-]*):`|`:([A-Za-z][\w:.+-]*):")
_SETTINGS = {
    "_disable_config": True,
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "report_level": 5,
    "halt_level": 5,
    "warning_stream": False,
    "input_encoding": "unicode",
    "line_length_limit": MAX_LINE,
    "doctitle_xform": False,
    "initial_header_level": "1",
    "embed_stylesheet": False,
    "stylesheet_path": "",
    "math_output": "LaTeX",
    "syntax_highlight": "none",
    "toc_backlinks": False,
    "footnote_references": "brackets",
}


def convert(source: SourceFile) -> Document:
    """Convert a reStructuredText file."""
    decoded = decode_text(source, MAX_CHARACTERS)
    if max(map(len, decoded.text.splitlines()), default=0) > MAX_LINE:
        raise CannotConvert(f"The file has a line of more than {MAX_LINE:,} characters; break it.")
    used = {name.lower() for name in _DIRECTIVE.findall(decoded.text)}
    blocks, lost = parse_fragment(_render(decoded.text, used), source.url)
    if not blocks:
        raise CannotConvert("The file holds no text.")
    included = sorted(used & {"include", "literalinclude", "raw"})
    return Document(
        title=next((block.text for block in blocks if isinstance(block, Heading)), source.name),
        blocks=tuple(blocks),
        warnings=(
            *decoded.warnings,
            *lost,
            *(f"What `{name}` directives bring in from elsewhere is left out." for name in included),
        ),
    )


def _render(text: str, directive_names: Iterable[str]) -> str:
    roles = {name.lower() for pair in _ROLE.findall(text) for name in pair if name}
    register(sorted(directive_names)[:MAX_UNKNOWN_NAMES], sorted(roles)[:MAX_UNKNOWN_NAMES])
    try:
        parts = publish_parts(text, writer="html5", settings_overrides=_SETTINGS)
    except RecursionError as error:
        raise CannotConvert("The file nests too deep to be read; it is broken or made to do harm.") from error
    except SystemMessage as error:
        raise CannotConvert(f"The file is no valid reStructuredText: {error}.") from error
    return str(parts["html_body"])


_CODE = frozenset("code code-block sourcecode testcode testoutput doctest prompt ipython terminal".split())
_IGNORED = frozenset(
    """index highlight module currentmodule py:module py:currentmodule default-domain sectionauthor codeauthor
    tabularcolumns testsetup testcleanup literalinclude title-reference program""".split()
)
_NOTICES = {
    "seealso": "See also",
    "todo": "To do",
    "versionadded": "New in version",
    "versionchanged": "Changed in version",
    "deprecated": "Deprecated since version",
    "versionremoved": "Removed in version",
}
_ONLY_CONTENT = frozenset("only ifconfig tabs grid centered hlist rst-class container".split())
_OBJECTS = frozenset(
    """function method class attribute data exception decorator staticmethod classmethod property option cmdoption
    envvar confval setting describe object macro type member enumerator opcode django-admin django-admin-option
    templatetag templatefilter fieldlookup""".split()
)
"""Directives of Sphinx that describe an object by its signature."""

_READ_AS_TEXT = frozenset(
    "ref doc term numref abbr any eq guilabel menuselection dfn sub sup strong emphasis pep rfc download".split()
)
"""Roles with prose; the text of others (`:func:`, `:file:`, `:envvar:`) is code."""

_TITLED = re.compile(r"(.+?)\s*<([^<>]+)>", re.DOTALL)


class _AnyOption(dict[str, Any]):
    def __missing__(self, _name: str) -> Callable[[str], str]:
        return directives.unchanged


_WITH_MORE_OPTIONS: dict[str, type[Directive]] = {
    name: type(f"Any{kind.__name__}", (kind,), {"option_spec": _AnyOption(kind.option_spec or {})})
    for name, kind in (
        ("image", images.Image),
        ("figure", images.Figure),
        ("math", body.MathBlock),
        ("table", tables.RSTTable),
        ("list-table", tables.ListTable),
    )
}
"""Directives with Sphinx options that docutils would reject."""


class _GenericDirective(Directive):
    """Directive that displays its arguments and content."""

    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = _AnyOption({"class": directives.unchanged})

    def run(self) -> Sequence[nodes.Node]:
        name = self.name.lower().rpartition(":")[2]
        if name in _IGNORED or self.name.lower() in _IGNORED:
            return []
        if name in _CODE:
            text = "\n".join(self.content)
            return [nodes.literal_block(text, text, classes=["code", *self._get_argument().split()[:1]])]
        if name == "toctree":
            items = nodes.bullet_list()
            for line in filter(None, map(str.strip, self.content)):
                title = get_display_text(line)
                items += nodes.list_item("", nodes.paragraph(title, title))
            return [items]
        if name in _NOTICES:
            return [self._make_notice(_NOTICES[name])]
        if name in _ONLY_CONTENT:
            return self._parse_content()
        content = self._parse_content()
        if ":" in self.name or name in _OBJECTS:
            return [self._make_definition(content)]
        return [*[nodes.paragraph("", "", nodes.strong(line, line)) for line in self._get_lines()], *content]

    def _get_argument(self) -> str:
        return self.arguments[0] if self.arguments else ""

    def _parse_content(self) -> list[nodes.Node]:
        holder = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, holder)
        return list(holder.children)

    def _make_notice(self, label: str) -> nodes.Node:
        """Build an admonition; the first word of its argument may be a version."""
        first, *rest = self._get_argument().split(None, 1) or [""]
        is_version = first[:1].isdigit()
        title = f"{label} {first}" if is_version else label
        display_text = " ".join(rest) if is_version else self._get_argument()
        if not display_text and not self.content:
            title += "."
        notice = nodes.admonition("", nodes.title(title, title), classes=["note"])
        if display_text:
            inline, _messages = self.state.inline_text(display_text, self.lineno)
            notice += nodes.paragraph(display_text, "", *inline)
        notice.extend(self._parse_content())
        return notice

    def _get_lines(self) -> list[str]:
        return [line for line in map(str.strip, self._get_argument().splitlines()) if line]

    def _make_definition(self, content: list[nodes.Node]) -> nodes.Node:
        """Build a definition list from signatures and what they mean."""
        terms = [nodes.term(line, line, classes=["sig"]) for line in self._get_lines()]
        return nodes.definition_list(
            "", nodes.definition_list_item("", *terms, nodes.definition("", *content)), classes=["object"]
        )


def get_display_text(text: str) -> str:
    """Return the displayed text of a reference: its title, or the last part of its target."""
    titled = _TITLED.fullmatch(text)
    if titled is not None:
        return titled[1]
    return text.rpartition(".")[2] if text.startswith("~") else text.lstrip("!")


def _render_role(
    name: str, rawtext: str, text: str, _lineno: int, _inliner: Any, _options: Any = None, _content: Any = None
) -> tuple[list[Any], list[Any]]:
    display_text = get_display_text(nodes.unescape(text))
    is_text = name.lower().rpartition(":")[2] in _READ_AS_TEXT
    return [nodes.inline(rawtext, display_text) if is_text else nodes.literal(rawtext, display_text)], []


def register(directive_names: Iterable[str], role_names: Iterable[str]) -> None:
    """Register the names that docutils doesn't know."""
    for name in directive_names:
        if name in _WITH_MORE_OPTIONS:
            directives.register_directive(name, _WITH_MORE_OPTIONS[name])
        elif name in _CODE or name not in en.directives:
            directives.register_directive(name, _GenericDirective)
    for name in role_names:
        if name not in en.roles:
            roles.register_local_role(name, _render_role)
