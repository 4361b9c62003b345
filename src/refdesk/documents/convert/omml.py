"""Office formulas (OMML) to LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from xml.etree.ElementTree import Element

MATH: Final = "{m}"
MAX_DEPTH: Final = 30
"""Nesting depth of structures; deeper ones become plain text."""

_OPERATORS: Mapping[str, str] = {
    "∑": r"\sum",
    "∏": r"\prod",
    "∫": r"\int",
    "∮": r"\oint",
    "⋃": r"\bigcup",
    "⋂": r"\bigcap",
}
_ACCENTS: Mapping[str, str] = {"̂": r"\hat", "̃": r"\tilde", "̅": r"\bar", "⃗": r"\vec", "̇": r"\dot"}


def to_latex(formula: Element) -> str:
    """Convert a formula to LaTeX, without dollar signs."""
    return _convert_children(formula, 0).strip()


def _convert_children(node: Element, depth: int) -> str:
    return "".join(_convert_node(child, depth + 1) for child in node)


def _convert_node(node: Element, depth: int) -> str:
    name = node.tag.removeprefix(MATH)
    if name == "r":
        return "".join(text.text or "" for text in node.iter(f"{MATH}t"))
    if name.endswith("Pr"):
        return ""
    if depth > MAX_DEPTH:
        return "".join(text.text or "" for text in node.iter(f"{MATH}t"))
    write = _WRITERS.get(name)
    return write(node, depth) if write else _convert_children(node, depth)


def _convert_part(node: Element, name: str, depth: int) -> str:
    child = node.find(f"{MATH}{name}")
    return _convert_children(child, depth) if child is not None else ""


def _read_property(node: Element, name: str, default: str) -> str:
    found = node.find(f"*/{MATH}{name}")
    return found.get(f"{MATH}val", default) if found is not None else default


def _write_fraction(node: Element, depth: int) -> str:
    return rf"\frac{{{_convert_part(node, 'num', depth)}}}{{{_convert_part(node, 'den', depth)}}}"


def _write_root(node: Element, depth: int) -> str:
    degree = _convert_part(node, "deg", depth)
    return rf"\sqrt{f'[{degree}]' if degree else ''}{{{_convert_part(node, 'e', depth)}}}"


def _write_scripts(node: Element, depth: int) -> str:
    below, above = _convert_part(node, "sub", depth), _convert_part(node, "sup", depth)
    return _convert_part(node, "e", depth) + (f"_{{{below}}}" if below else "") + (f"^{{{above}}}" if above else "")


def _write_operator(node: Element, depth: int) -> str:
    sign = _read_property(node, "chr", "∫")
    below, above = _convert_part(node, "sub", depth), _convert_part(node, "sup", depth)
    limits = (f"_{{{below}}}" if below else "") + (f"^{{{above}}}" if above else "")
    return f"{_OPERATORS.get(sign, sign)}{limits} {_convert_part(node, 'e', depth)}"


def _write_delimiters(node: Element, depth: int) -> str:
    opening, closing = _read_property(node, "begChr", "("), _read_property(node, "endChr", ")")
    separator = _read_property(node, "sepChr", "|")
    parts = [_convert_children(part, depth) for part in node.findall(f"{MATH}e")]
    return rf"\left{_escape_delimiter(opening)}{separator.join(parts)}\right{_escape_delimiter(closing)}"


def _escape_delimiter(bracket: str) -> str:
    return {"": ".", "{": r"\{", "}": r"\}"}.get(bracket, bracket)


def _write_matrix(node: Element, depth: int) -> str:
    rows = (
        " & ".join(_convert_children(cell, depth) for cell in row.findall(f"{MATH}e"))
        for row in node.findall(f"{MATH}mr")
    )
    return r"\begin{matrix}" + r" \\ ".join(rows) + r"\end{matrix}"


def _write_lines(node: Element, depth: int) -> str:
    return r" \\ ".join(_convert_children(line, depth) for line in node.findall(f"{MATH}e"))


def _write_function(node: Element, depth: int) -> str:
    name = _convert_part(node, "fName", depth).strip()
    known = name.isascii() and name.isalpha()
    return ("\\" if known else "") + f"{name} {_convert_part(node, 'e', depth)}"


def _write_accent(node: Element, depth: int) -> str:
    accent = _ACCENTS.get(_read_property(node, "chr", "̂"), r"\hat")
    return f"{accent}{{{_convert_part(node, 'e', depth)}}}"


def _write_lower_limit(node: Element, depth: int) -> str:
    return f"{_convert_part(node, 'e', depth)}_{{{_convert_part(node, 'lim', depth)}}}"


def _write_upper_limit(node: Element, depth: int) -> str:
    return f"{_convert_part(node, 'e', depth)}^{{{_convert_part(node, 'lim', depth)}}}"


def _write_overline(node: Element, depth: int) -> str:
    return rf"\overline{{{_convert_part(node, 'e', depth)}}}"


_WRITERS: Mapping[str, Callable[[Element, int], str]] = {
    "f": _write_fraction,
    "rad": _write_root,
    "sSup": _write_scripts,
    "sSub": _write_scripts,
    "sSubSup": _write_scripts,
    "sPre": _write_scripts,
    "nary": _write_operator,
    "d": _write_delimiters,
    "m": _write_matrix,
    "eqArr": _write_lines,
    "func": _write_function,
    "acc": _write_accent,
    "limLow": _write_lower_limit,
    "limUpp": _write_upper_limit,
    "bar": _write_overline,
}
