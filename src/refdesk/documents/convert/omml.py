"""Office formulas (OMML) to LaTeX."""

from __future__ import annotations

from typing import Final
from xml.etree.ElementTree import Element

MAX_DEPTH: Final = 30
"""Nesting depth of structures; deeper ones become plain text."""

_OPERATORS = {"∑": r"\sum", "∏": r"\prod", "∫": r"\int", "∮": r"\oint", "⋃": r"\bigcup", "⋂": r"\bigcap"}
_ACCENTS = {"̂": r"\hat", "̃": r"\tilde", "̅": r"\bar", "⃗": r"\vec", "̇": r"\dot"}
_DELIMITERS = {"": ".", "{": r"\{", "}": r"\}"}


def to_latex(formula: Element) -> str:
    """Convert a formula to LaTeX, without dollar signs."""
    return _convert_children(formula, 0).strip()


def _convert_children(node: Element, depth: int) -> str:
    return "".join(_convert_node(child, depth + 1) for child in node)


def _convert_node(node: Element, depth: int) -> str:
    name = node.tag.removeprefix("{m}")
    if name != "r" and name.endswith("Pr"):
        return ""
    if name == "r" or depth > MAX_DEPTH:
        return "".join(text.text or "" for text in node.iter("{m}t"))

    def part(name: str) -> str:
        child = node.find(f"{{m}}{name}")
        return _convert_children(child, depth) if child is not None else ""

    def scripts() -> str:
        below, above = part("sub"), part("sup")
        return (f"_{{{below}}}" if below else "") + (f"^{{{above}}}" if above else "")

    def prop(name: str, default: str) -> str:
        found = node.find(f"*/{{m}}{name}")
        return found.get("{m}val", default) if found is not None else default

    match name:
        case "f":
            return rf"\frac{{{part('num')}}}{{{part('den')}}}"
        case "rad":
            degree = part("deg")
            return rf"\sqrt{f'[{degree}]' if degree else ''}{{{part('e')}}}"
        case "sSup" | "sSub" | "sSubSup" | "sPre":
            return part("e") + scripts()
        case "nary":
            sign = prop("chr", "∫")
            return f"{_OPERATORS.get(sign, sign)}{scripts()} {part('e')}"
        case "d":
            opening, closing = prop("begChr", "("), prop("endChr", ")")
            inner = prop("sepChr", "|").join(_convert_children(each, depth) for each in node.findall("{m}e"))
            return rf"\left{_DELIMITERS.get(opening, opening)}{inner}\right{_DELIMITERS.get(closing, closing)}"
        case "m":
            rows = (
                " & ".join(_convert_children(cell, depth) for cell in row.findall("{m}e"))
                for row in node.findall("{m}mr")
            )
            return r"\begin{matrix}" + r" \\ ".join(rows) + r"\end{matrix}"
        case "eqArr":
            return r" \\ ".join(_convert_children(line, depth) for line in node.findall("{m}e"))
        case "func":
            function = part("fName").strip()
            known = function.isascii() and function.isalpha()
            return ("\\" if known else "") + f"{function} {part('e')}"
        case "acc":
            return _ACCENTS.get(prop("chr", "̂"), r"\hat") + f"{{{part('e')}}}"
        case "limLow":
            return f"{part('e')}_{{{part('lim')}}}"
        case "limUpp":
            return f"{part('e')}^{{{part('lim')}}}"
        case "bar":
            return rf"\overline{{{part('e')}}}"
    return _convert_children(node, depth)
