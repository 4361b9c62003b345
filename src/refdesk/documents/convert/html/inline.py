"""Text of elements: inline text with spans, text on one line, preformatted lines, formulas and link targets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from urllib.parse import urljoin

from selectolax.lexbor import LexborNode

from refdesk.documents.convert.blocks import format_script
from refdesk.documents.model import Span, SpanKind

from .boilerplate import is_boilerplate

MAX_TARGET = 2000
"""Characters; longer targets hold data."""

_CONTROLS = re.compile(r"[\x00-\x20]+")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_LINK_SCHEMES = frozenset(("http", "https", "mailto", "ftp", "ftps", "tel"))
"""Schemes that address a resource, unlike `javascript:` and `data:`."""


@lru_cache(maxsize=4096)
def resolve_link(target: str, base: str) -> str:
    """Resolve a link target; empty for fragments of the same page and unsupported schemes."""
    target = _CONTROLS.sub("", target)
    if not target or target[0] == "#" or len(target) > MAX_TARGET:
        return ""
    scheme = _SCHEME.match(target)
    if scheme is not None:
        return target if scheme[1].lower() in _LINK_SCHEMES else ""
    if not base:
        return target
    try:
        return urljoin(base, target)
    except ValueError:
        return ""


_BLANKS = re.compile(r"[ \t\n\r\f\xa0]+")
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))
"""Soft hyphens and zero-width characters, which would split words in search."""


def collapse_whitespace(text: str) -> str:
    """Collapse each run of whitespace to one space, also at the ends."""
    text = _BLANKS.sub(" ", text)
    return text if text.isascii() else text.translate(_INVISIBLE)


class InlineText:
    """Text of the current block; spans open at its end continue in the next block."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.length = 0
        self._at_blank = True
        self._open: dict[SpanKind, tuple[str, int]] = {}
        self._spans: list[Span] = []

    @property
    def tail(self) -> str:
        """The last two characters."""
        return "".join(self._parts[-2:])[-2:]

    def add(self, text: str) -> None:
        text = collapse_whitespace(text)
        if self._at_blank and text[:1] == " ":
            text = text[1:]
        if text:
            self._append(text)
            self._at_blank = text[-1] == " "

    def add_line_break(self) -> None:
        """Append a line break in place of a preceding space."""
        if not self._parts:
            return
        if self._at_blank:
            self._parts[-1] = self._parts[-1][:-1] + "\n"
        else:
            self._append("\n")
        self._at_blank = True

    def open(self, kind: SpanKind, target: str = "") -> bool:
        """Start a span; return False if one of this kind is open already."""
        if kind in self._open:
            return False
        self._open[kind] = target, self.length
        return True

    def close(self, kind: SpanKind) -> None:
        target, start = self._open.pop(kind)
        self._end_span(kind, target, start)

    def take(self) -> tuple[str, tuple[Span, ...]]:
        """Return the text and its spans, and start anew."""
        for kind, (target, start) in self._open.items():
            self._end_span(kind, target, start)
            self._open[kind] = target, 0
        text = "".join(self._parts).rstrip()
        spans = _merge_spans(text, self._spans) if self._spans else ()
        self._parts, self.length, self._at_blank, self._spans = [], 0, True, []
        return text, spans

    def _append(self, text: str) -> None:
        self._parts.append(text)
        self.length += len(text)

    def _end_span(self, kind: SpanKind, target: str, start: int) -> None:
        if self.length > start:
            self._spans.append(Span(start, self.length, kind, target))


def _merge_spans(text: str, spans: list[Span]) -> tuple[Span, ...]:
    """Trim and sort the spans, outer before inner, and merge adjacent equal ones."""
    joined: list[Span] = []
    last: dict[tuple[SpanKind, str], int] = {}
    for span in sorted(spans, key=lambda span: (span.start, -span.end, span.kind == "code")):
        piece = text[span.start : span.end]
        start, end = span.start + len(piece) - len(piece.lstrip()), span.start + len(piece.rstrip())
        if start >= end:
            continue
        before = last.get((span.kind, span.target))
        if before is not None and joined[before].end >= start:
            first = joined[before]
            joined[before] = Span(first.start, max(first.end, end), span.kind, span.target)
            continue
        last[span.kind, span.target] = len(joined)
        joined.append(Span(start, end, span.kind, span.target))
    return tuple(joined)


_INLINE = frozenset(
    """a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark math output q ruby rt s samp
    small span strike strong sub sup time tt u var wbr script""".split()
)
"""Elements that don't separate words."""

_LINE_TAGS = frozenset(("div", "li", "p", "tr"))
"""Elements that highlighters use for each line."""

_NOT_CODE = (
    "button, script, style, .lineno, .linenos, .linenodiv, .gutter, .rouge-gutter, .line-numbers-rows, .headerlink, "
    ".copybtn, .copy-button, [data-line-number]:empty, a[aria-hidden=true]"
)
_SCRIPT = re.compile("([\ue000\ue001])([^\ue000-\ue002]{0,40})\ue002")
_SCRIPT_MARKS = dict.fromkeys((0xE000, 0xE001, 0xE002))
_SCRIPT_STARTS = {"sup": "\ue000", "sub": "\ue001"}
_LINE_EDGE = re.compile(r"\n?\0+")
_TEX = 'annotation[encoding="application/x-tex"], annotation[encoding="application/x-latex"]'


def extract_text(node: LexborNode) -> str:
    """Return the text of an element on one line."""
    text = "".join(_iter_pieces(node, _get_word_separator))

    def replace_script(match: re.Match[str]) -> str:
        before = match.string[max(match.start() - 2, 0) : match.start()]
        return format_script("sup" if match[1] == "\ue000" else "sub", before, match[2])

    if "\ue002" in text:
        text = _SCRIPT.sub(replace_script, text).translate(_SCRIPT_MARKS)
    return collapse_whitespace(text).strip()


def is_footnote_mark(node: LexborNode) -> bool:
    """Whether a superscript is a link to a note."""
    above = node.parent
    return node.css_first("a") is not None or (above is not None and above.tag == "a")


def extract_code(node: LexborNode) -> str:
    """Return the lines of a `pre` without empty ones at either end.

    The element isn't walked if it can be avoided, since highlighters wrap each word.
    """
    for unwanted in node.css(_NOT_CODE):
        unwanted.decompose()
    if node.css_first("br, div, li, p, tr") is None:
        text = node.text()
    else:
        text = _LINE_EDGE.sub("\n", "".join(_iter_pieces(node, lambda tag: "\0" if tag in _LINE_TAGS else "")))
    lines = [line.rstrip() for line in text.replace("\xa0", " ").split("\n")]
    return "\n".join(lines).strip("\n")


def extract_formula(node: LexborNode) -> str:
    """Return a formula as TeX if the page has it, else its characters."""
    if (source := node.css_first(_TEX)) is not None:
        return source.text().strip()
    return (node.attributes.get("alttext") or "").strip() or " ".join(node.text().split())


def _get_word_separator(tag: str) -> str:
    return "" if tag in _INLINE else " "


def _iter_pieces(root: LexborNode, get_separator: Callable[[str], str]) -> Iterator[str]:
    stack: list[LexborNode | str] = [root.first_child] if root.first_child is not None else []
    while stack:
        step = stack.pop()
        if isinstance(step, str):
            yield step
            continue
        if (following := step.next) is not None:
            stack.append(following)
        tag = step.tag or "-"
        if tag == "-text":
            yield step.text_content or ""
        elif tag == "br":
            yield "\n"
        elif tag == "math":
            yield extract_formula(step)
        elif tag[0] != "-" and not is_boilerplate(tag, step.attributes, step):
            separator = end = get_separator(tag)
            if tag in _SCRIPT_STARTS and get_separator is _get_word_separator and not is_footnote_mark(step):
                separator, end = _SCRIPT_STARTS[tag], "\ue002"
            yield separator
            stack.append(end)
            if (inner := step.first_child) is not None:
                stack.append(inner)


_CLASS = re.compile(
    r"(?:^|\s)(?:language|lang|highlight-source|brush|src|highlight)[-:]\s*([\w+#.-]+)"
    r"|(?:^|\s)(?:sourceCode|hljs|code)\s+([\w+#.-]+)"
)
_NO_LANGUAGE = frozenset(
    """default none no text txt plain plaintext plain-text nohighlight unknown raw output code highlight source
    literal-block sourcecode numbersource block wrapper notranslate copyable line-numbers linenums""".split()
)
_ALIASES = dict.fromkeys(("python3", "py", "py3", "ipython3"), "python") | {"js": "javascript", "pycon3": "pycon"}

_LANGUAGES = frozenset(
    """rust python bash shell console json yaml toml xml html css javascript typescript java kotlin scala go ruby php
    perl lua sql c cpp csharp swift haskell elixir erlang clojure dart diff ini make cmake dockerfile""".split()
)
"""Names that are unambiguous as a class of their own."""

_ANCESTORS = 7
"""Ancestors inspected: with line numbers, the class is on the `div` around a table that holds the `pre`."""
_STOPS = frozenset(("body", "main", "article", "section", "li", "blockquote"))


def detect_language(node: LexborNode) -> str:
    """Return the language of a `pre`, or an empty string."""
    element: LexborNode | None = node.css_first("code")
    above: LexborNode | None = node
    for _ in range(_ANCESTORS + 2):
        for name in _iter_own_names(element) if element is not None else ():
            language = _ALIASES.get(name.lower(), name.lower())
            if language not in _NO_LANGUAGE and len(language) <= 30:
                return language
        if above is None or above.tag in _STOPS:
            break
        element, above = above, above.parent
    return ""


def _iter_own_names(node: LexborNode) -> Iterator[str]:
    attributes = node.attributes
    yield from filter(None, (attributes.get("data-lang"), attributes.get("data-language")))
    classes = attributes.get("class") or ""
    for by_prefix, by_neighbour in _CLASS.findall(classes):
        yield by_prefix or by_neighbour
    if node.tag in ("pre", "code"):
        yield from (name for name in classes.split() if name in _LANGUAGES)
