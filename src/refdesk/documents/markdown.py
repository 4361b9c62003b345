"""Markdown to sections: where each heading's text begins and ends, and the passages in it that a search returns.

Only headings and fenced code matter here; everything else is text that is kept as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_PASSAGE_CHARACTERS = 1600
"""About 400 tokens: long enough to hold an explanation with its example, short enough that five fit an answer."""

_HEADING = re.compile(r"^ {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and the text below it, up to the next heading."""

    id: str
    title: str
    level: int
    path: tuple[str, ...]
    """The titles from the document's top down to this section, itself included."""
    text: str


def parse_sections(markdown: str) -> list[Section]:
    """All sections in order; text before the first heading belongs to a section without a title."""
    sections: list[Section] = []
    open_titles: list[tuple[int, str]] = []
    ids: dict[str, int] = {}
    for level, title, text in _split_at_headings(markdown):
        open_titles = [(depth, name) for depth, name in open_titles if depth < level] if level else []
        if title:
            open_titles.append((level, title))
        if title or text:
            path = tuple(name for _, name in open_titles)
            sections.append(Section(_unique_id(title, ids), title, level, path, text))
    return sections


def title_of(sections: list[Section], fallback: str) -> str:
    """The first heading of the highest rank, or the fallback."""
    headings = [section for section in sections if section.title]
    return min(headings, key=lambda section: section.level).title if headings else fallback


def passages(section: Section) -> Iterator[str]:
    """The section's text in pieces no longer than a passage, cut between blocks where it can be."""
    piece = ""
    for block in _blocks(section.text):
        if piece and len(piece) + len(block) + 2 > MAX_PASSAGE_CHARACTERS:
            yield piece
            piece = ""
        piece = f"{piece}\n\n{block}" if piece else block
    if piece or section.title:
        yield piece


def _split_at_headings(markdown: str) -> Iterator[tuple[int, str, str]]:
    level, title, lines = 0, "", list[str]()
    fence = ""
    for line in markdown.splitlines():
        fence = _fence_after(line, fence)
        heading = None if fence else _HEADING.match(line)
        if heading is None:
            lines.append(line)
            continue
        yield level, title, "\n".join(lines).strip()
        level, title, lines = len(heading[1]), heading[2].strip(), []
    yield level, title, "\n".join(lines).strip()


def _fence_after(line: str, fence: str) -> str:
    """The fence that is open after this line: a fence closes only by its own mark, at least as long."""
    mark = _FENCE.match(line)
    if mark is None:
        return fence
    if not fence:
        return mark[1]
    closes = mark[1][0] == fence[0] and len(mark[1]) >= len(fence) and line.strip() == mark[1]
    return "" if closes else fence


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs, with fenced code kept whole; one that is longer than a passage is cut at line ends."""
    block: list[str] = []
    fence = ""
    for line in text.splitlines():
        fence = _fence_after(line, fence)
        if line.strip() or fence:
            block.append(line)
        elif block:
            yield from _cut("\n".join(block))
            block = []
    if block:
        yield from _cut("\n".join(block))


def _cut(block: str) -> Iterator[str]:
    while len(block) > MAX_PASSAGE_CHARACTERS:
        end = block.rfind("\n", 1, MAX_PASSAGE_CHARACTERS)
        end = end if end > 0 else block.rfind(" ", 1, MAX_PASSAGE_CHARACTERS)
        end = end if end > 0 else MAX_PASSAGE_CHARACTERS
        yield block[:end].rstrip()
        block = block[end:].lstrip("\n")
    if block:
        yield block


def _unique_id(title: str, taken: dict[str, int]) -> str:
    slug = re.sub(r"[^\w]+", "-", title.lower()).strip("-") or "top"
    count = taken[slug] = taken.get(slug, 0) + 1
    return slug if count == 1 else f"{slug}-{count}"
