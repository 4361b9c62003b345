"""reStructuredText, rendered to HTML by docutils and read from there.

Docutils doesn't know the directives and roles of Sphinx, so each one in use is registered in a form that keeps its
content. Nothing is included, executed or resolved. Docutils is imported on first use, since that takes longer than most
conversions.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from refdesk.documents.model import Document, Heading
from refdesk.errors import CannotConvert

from .decoding import decode_text
from .html import parse_fragment
from .source import SourceFile

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def _render(text: str, directives: Iterable[str]) -> str:
    from docutils.core import publish_parts
    from docutils.utils import SystemMessage

    from .rst_names import register

    roles = {name.lower() for pair in _ROLE.findall(text) for name in pair if name}
    register(sorted(directives)[:MAX_UNKNOWN_NAMES], sorted(roles)[:MAX_UNKNOWN_NAMES])
    try:
        parts = publish_parts(text, writer="html5", settings_overrides=_SETTINGS)
    except RecursionError as error:
        raise CannotConvert("The file nests too deep to be read; it is broken or made to do harm.") from error
    except SystemMessage as error:
        raise CannotConvert(f"The file is no valid reStructuredText: {error}.") from error
    return str(parts["html_body"])
