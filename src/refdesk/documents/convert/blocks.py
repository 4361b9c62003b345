"""A document's blocks while they are found one after the other, and what each does to the one before it."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from refdesk.documents.model import Block, Code, Heading, ListItem, Paragraph, Picture, Span, Table


class Blocks:
    """Joins what formats keep apart: lines of code, the paragraphs of an item, a table and its caption."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._blank_lines = 0
        self._title_at: int | None = None

    def add(self, block: Block) -> None:
        """Append a block."""
        last = self._blocks[-1] if self._blocks else None
        if isinstance(block, Code) and isinstance(last, Code):
            block = replace(last, text=last.text + "\n" * (self._blank_lines + 1) + block.text)
            self._blocks.pop()
        elif isinstance(block, Table) and _is_caption(last) and not self._captions_picture():
            block = replace(block, caption=last.text)
            self._blocks.pop()
        elif _is_caption(block) and isinstance(last, Picture) and last.caption == block.text:
            self._blocks[-1] = replace(last, caption="")
        self._blank_lines = 0
        self._blocks.append(block)

    def add_title(self, text: str) -> None:
        """Append the document's own title, which is dropped if a heading turns out to repeat it."""
        self._title_at = len(self._blocks)
        self.add(Heading(text, 1))

    def blank_line(self) -> None:
        """An empty paragraph, which only means something between lines of code."""
        self._blank_lines += 1

    @property
    def in_list(self) -> bool:
        """Whether the last block is an item."""
        return bool(self._blocks) and isinstance(self._blocks[-1], ListItem)

    def continue_item(self, text: str, spans: tuple[Span, ...] = ()) -> None:
        """Another paragraph of the item that was added last."""
        item = self._blocks.pop()
        assert isinstance(item, ListItem)
        start = len(item.text) + 2
        moved = (replace(span, start=span.start + start, end=span.end + start) for span in spans)
        self._blocks.append(replace(item, text=f"{item.text}\n\n{text}", spans=(*item.spans, *moved)))

    def done(self) -> tuple[Block, ...]:
        """All blocks."""
        repeated = self._title_at is not None and self._title_is_repeated(self._title_at)
        return tuple(block for index, block in enumerate(self._blocks) if not (repeated and index == self._title_at))

    def _captions_picture(self) -> bool:
        """Whether the caption at the end stands right below a picture."""
        return len(self._blocks) > 1 and isinstance(self._blocks[-2], Picture)

    def _title_is_repeated(self, at: int) -> bool:
        """Whether the first heading says the same again; exporters add a name of the site or book to the title."""
        title = self._blocks[at]
        first = next((block for block in self._blocks[at + 1 :] if isinstance(block, Heading)), None)
        if first is None or not isinstance(title, Heading):
            return False
        long, short = sorted((_words(title.text), _words(first.text)), key=len, reverse=True)
        return bool(short) and f" {short} " in f" {long} "


def _is_caption(block: Block | None) -> TypeGuard[Paragraph]:
    return isinstance(block, Paragraph) and block.role == "caption"


def _words(text: str) -> str:
    return " ".join("".join(char if char.isalnum() else " " for char in text.lower()).split())
