"""Decks of slides out of pages: each heading a slide, with as much of what follows as a slide holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from lxml.html import HtmlElement

from .programs import convert_by_pandoc
from .structure import DEFINITION
from .truth import blocks_of

LINES = 12
WORDS = 100
"""What fits on a slide; longer blocks are passed over."""
SLIDES = 14


def deck_of(elements: Iterable[HtmlElement]) -> str:
    """The Markdown of a deck, which is its truth as well."""
    made = chain.from_iterable(_slides(element) for element in elements)
    return "\n\n".join(slide for slide, _ in zip(made, range(SLIDES), strict=False)) + "\n"


def deck_by_pandoc(source: Path, target: Path) -> None:
    """A PPTX with a slide for each heading."""
    convert_by_pandoc(source, target, "--from=gfm", "--slide-level=2")


def _slides(element: HtmlElement) -> Iterator[str]:
    """A slide of text, then one for each table and code block: pandoc gives a table a slide of its own."""
    title, text, shown = "", list[str](), list[str]()
    for block in [*map(_unmarked, blocks_of(element)), "# end"]:
        if block.startswith("#"):
            yield from _written(title, text, shown)
            title, text, shown = block.lstrip("# "), [], []
        elif block.startswith(("|", "```")):
            shown += [block] if _fits([block]) else []
        elif not block.startswith("<") and _fits([*text, block]):
            text.append(block)


def _written(title: str, text: list[str], shown: list[str]) -> Iterator[str]:
    if not title:
        return
    if text:
        yield "\n\n".join([f"## {title}", *text])
    for number, block in enumerate(shown[:2], start=1):
        yield f"## {title}: example {number}\n\n{block}"


def _unmarked(block: str) -> str:
    return block.replace(f"{DEFINITION}\n", "")


def _fits(blocks: list[str]) -> bool:
    text = "\n".join(blocks)
    return text.count("\n") < LINES and len(text.split()) <= WORDS
