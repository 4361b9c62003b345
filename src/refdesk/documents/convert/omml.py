"""Formulas of Word and PowerPoint (OMML) as LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from xml.etree.ElementTree import Element

MATH: Final = "{m}"
MAX_DEPTH: Final = 30
"""How deep fractions and roots may stand in one another; what is deeper is read as plain text."""

_OPERATORS: Mapping[str, str] = {
    "∑": r"\sum",
    "∏": r"\prod",
    "∫": r"\int",
    "∮": r"\oint",
    "⋃": r"\bigcup",
    "⋂": r"\bigcap",
}
_ACCENTS: Mapping[str, str] = {"̂": r"\hat", "̃": r"\tilde", "̅": r"\bar", "⃗": r"\vec", "̇": r"\dot"}


def latex_of(formula: Element) -> str:
    """The formula, without the dollar signs."""
    return _inside(formula, 0).strip()


def _inside(node: Element, depth: int) -> str:
    return "".join(_latex(child, depth + 1) for child in node)


def _latex(node: Element, depth: int) -> str:
    name = node.tag.removeprefix(MATH)
    if name == "r":
        return "".join(text.text or "" for text in node.iter(f"{MATH}t"))
    if name.endswith("Pr"):
        return ""
    if depth > MAX_DEPTH:
        return "".join(text.text or "" for text in node.iter(f"{MATH}t"))
    write = _WRITERS.get(name)
    return write(node, depth) if write else _inside(node, depth)


def _part(node: Element, name: str, depth: int) -> str:
    child = node.find(f"{MATH}{name}")
    return _inside(child, depth) if child is not None else ""


def _property(node: Element, name: str, default: str) -> str:
    found = node.find(f"*/{MATH}{name}")
    return found.get(f"{MATH}val", default) if found is not None else default


def _fraction(node: Element, depth: int) -> str:
    return rf"\frac{{{_part(node, 'num', depth)}}}{{{_part(node, 'den', depth)}}}"


def _root(node: Element, depth: int) -> str:
    degree = _part(node, "deg", depth)
    return rf"\sqrt{f'[{degree}]' if degree else ''}{{{_part(node, 'e', depth)}}}"


def _scripts(node: Element, depth: int) -> str:
    below, above = _part(node, "sub", depth), _part(node, "sup", depth)
    return _part(node, "e", depth) + (f"_{{{below}}}" if below else "") + (f"^{{{above}}}" if above else "")


def _operator(node: Element, depth: int) -> str:
    sign = _property(node, "chr", "∫")
    below, above = _part(node, "sub", depth), _part(node, "sup", depth)
    limits = (f"_{{{below}}}" if below else "") + (f"^{{{above}}}" if above else "")
    return f"{_OPERATORS.get(sign, sign)}{limits} {_part(node, 'e', depth)}"


def _delimited(node: Element, depth: int) -> str:
    opening, closing = _property(node, "begChr", "("), _property(node, "endChr", ")")
    separator = _property(node, "sepChr", "|")
    parts = [_inside(part, depth) for part in node.findall(f"{MATH}e")]
    return rf"\left{_sized(opening)}{separator.join(parts)}\right{_sized(closing)}"


def _sized(bracket: str) -> str:
    return {"": ".", "{": r"\{", "}": r"\}"}.get(bracket, bracket)


def _matrix(node: Element, depth: int) -> str:
    rows = (" & ".join(_inside(cell, depth) for cell in row.findall(f"{MATH}e")) for row in node.findall(f"{MATH}mr"))
    return r"\begin{matrix}" + r" \\ ".join(rows) + r"\end{matrix}"


def _lines(node: Element, depth: int) -> str:
    return r" \\ ".join(_inside(line, depth) for line in node.findall(f"{MATH}e"))


def _function(node: Element, depth: int) -> str:
    name = _part(node, "fName", depth).strip()
    known = name.isascii() and name.isalpha()
    return ("\\" if known else "") + f"{name} {_part(node, 'e', depth)}"


def _accent(node: Element, depth: int) -> str:
    accent = _ACCENTS.get(_property(node, "chr", "̂"), r"\hat")
    return f"{accent}{{{_part(node, 'e', depth)}}}"


def _below(node: Element, depth: int) -> str:
    return f"{_part(node, 'e', depth)}_{{{_part(node, 'lim', depth)}}}"


def _above(node: Element, depth: int) -> str:
    return f"{_part(node, 'e', depth)}^{{{_part(node, 'lim', depth)}}}"


def _overlined(node: Element, depth: int) -> str:
    return rf"\overline{{{_part(node, 'e', depth)}}}"


_WRITERS: Mapping[str, Callable[[Element, int], str]] = {
    "f": _fraction,
    "rad": _root,
    "sSup": _scripts,
    "sSub": _scripts,
    "sSubSup": _scripts,
    "sPre": _scripts,
    "nary": _operator,
    "d": _delimited,
    "m": _matrix,
    "eqArr": _lines,
    "func": _function,
    "acc": _accent,
    "limLow": _below,
    "limUpp": _above,
    "bar": _overlined,
}
