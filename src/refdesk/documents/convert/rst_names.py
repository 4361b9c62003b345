"""Generic directives and roles for names that docutils doesn't know: content is kept, markup isn't."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive, directives, roles
from docutils.parsers.rst.directives import body, images, tables
from docutils.parsers.rst.languages import en

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
