"""Text of headings and cells on one line, lines of preformatted blocks, and formulas."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from selectolax.lexbor import LexborNode

from .boilerplate import is_boilerplate
from .inline import collapse_whitespace

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
_EXPONENT_BASE = re.compile(r"[\d)\]]$|(?:^|[^\w])[A-Za-z]$")
_INDEX_BASE = re.compile(r"\d$|(?:^|[^\w])[A-Za-z]$")
_ORDINAL = frozenset("st nd rd th er e o a re tm sm".split())
_SCRIPT = re.compile("([\ue000\ue001])([^\ue000-\ue002]{0,40})\ue002")
_SCRIPT_MARKS = dict.fromkeys((0xE000, 0xE001, 0xE002))
_SCRIPT_STARTS = {"sup": "\ue000", "sub": "\ue001"}
_LINE_EDGE = re.compile(r"\n?\0+")
_TEX = 'annotation[encoding="application/x-tex"], annotation[encoding="application/x-latex"]'


def extract_text(node: LexborNode) -> str:
    """Return the text of an element on one line."""
    text = "".join(_iter_pieces(node, _get_word_separator))
    if "\ue002" in text:
        text = _SCRIPT.sub(_replace_script, text).translate(_SCRIPT_MARKS)
    return collapse_whitespace(text).strip()


def _replace_script(match: re.Match[str]) -> str:
    before = match.string[max(match.start() - 2, 0) : match.start()]
    return format_script("sup" if match[1] == "\ue000" else "sub", before, match[2])


def format_script(tag: str, before: str, text: str) -> str:
    """Return a superscript or subscript with the mark that it needs: `2^32`, `x_i`, but `1st` and `H2O`."""
    text = text.strip()
    is_simple = text.lstrip("-+−").isalnum()
    if tag == "sub":
        needs_mark = _INDEX_BASE.search(before) is not None and (text[:1].isalpha() or before[-1:].isdigit())
        return f"_{text}" if needs_mark and is_simple else text
    if not text or text.lower() in _ORDINAL or _EXPONENT_BASE.search(before) is None:
        return text
    return f"^{text}" if is_simple else f"^({text})"


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
        text = _LINE_EDGE.sub("\n", "".join(_iter_pieces(node, _get_line_separator)))
    lines = [line.rstrip() for line in text.replace("\xa0", " ").split("\n")]
    return "\n".join(lines).strip("\n")


def extract_formula(node: LexborNode) -> str:
    """Return a formula as TeX if the page has it, else its characters."""
    source = node.css_first(_TEX)
    if source is not None:
        return source.text().strip()
    return (node.attributes.get("alttext") or "").strip() or " ".join(node.text().split())


def _get_word_separator(tag: str) -> str:
    return "" if tag in _INLINE else " "


def _get_line_separator(tag: str) -> str:
    """Return a mark for both ends of a line element; consecutive marks make one line break."""
    return "\0" if tag in _LINE_TAGS else ""


def _iter_pieces(root: LexborNode, get_separator: Callable[[str], str]) -> Iterator[str]:
    """Yield the texts below an element with their separators."""
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
