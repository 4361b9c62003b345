"""A document's blocks while they are found one after the other, and what each does to the one before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeGuard

from refdesk.documents.model import Block, Code, Heading, ListItem, Paragraph, Picture, Span, Table


class BlockBuilder:
    """Joins what formats keep apart: lines of code, the paragraphs of an item, a table and its caption."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._continuations: list[tuple[str, tuple[Span, ...]]] = []
        """What the last block goes on with; joined once it is complete, so that lines are not copied for each other."""
        self._blank_lines = 0
        self._titles: list[int] = []
        self._line_of_code: str | None = None
        """The last block as it would stand in a listing, if it is a paragraph that its font makes code."""

    def add(self, block: Block) -> None:
        """Append a block."""
        last = self._blocks[-1] if self._blocks else None
        if isinstance(block, Code) and isinstance(last, Code):
            self._continuations.append(("\n" * (self._blank_lines + 1) + block.text, ()))
        else:
            self._flush()
            self._append(block, last)
        self._blank_lines = 0
        self._line_of_code = None

    def _append(self, block: Block, last: Block | None) -> None:
        if isinstance(block, Table) and _is_caption(last) and not self._is_picture_caption():
            block = replace(block, caption=last.text)
            self._blocks.pop()
        elif _is_caption(block) and isinstance(last, Picture) and last.caption == block.text:
            self._blocks[-1] = replace(last, caption="")
        self._blocks.append(block)

    def add_title(self, title: Heading) -> None:
        """Append the document's own title, which is dropped if a heading turns out to repeat it."""
        self._titles.append(len(self._blocks))
        self.add(title)

    def add_monospaced(self, lines: str, paragraph: Paragraph, *, sure: bool = False) -> None:
        """Append a paragraph that only its look makes code: one such line may be a name, several are a listing."""
        if sure or "\n" in lines or self._line_of_code is not None:
            if self._line_of_code is not None:
                self._blocks[-1] = Code(self._line_of_code, place=paragraph.place)
            self.add(Code(lines, place=paragraph.place))
        elif self._blocks and isinstance(self._blocks[-1], Code):
            self.add(Code(lines, place=paragraph.place))
        else:
            self.add(paragraph)
            self._line_of_code = lines

    def add_blank_line(self) -> None:
        """An empty paragraph, which only means something between lines of code."""
        self._blank_lines += 1

    @property
    def is_in_list(self) -> bool:
        """Whether the last block is an item."""
        return bool(self._blocks) and isinstance(self._blocks[-1], ListItem)

    def continue_item(self, text: str, spans: tuple[Span, ...] = ()) -> None:
        """Another paragraph of the item that was added last."""
        self._continuations.append((f"\n\n{text}", _shift_spans(spans, 2)))

    def _flush(self) -> None:
        """Give the last block all that it goes on with."""
        if not self._continuations:
            return
        last = self._blocks[-1]
        assert isinstance(last, Code | ListItem)
        texts: list[str] = []
        spans: list[Span] = []
        length = len(last.text)
        for text, text_spans in self._continuations:
            spans += _shift_spans(text_spans, length)
            texts.append(text)
            length += len(text)
        self._continuations.clear()
        completed = replace(last, text=last.text + "".join(texts))
        self._blocks[-1] = (
            replace(completed, spans=(*completed.spans, *spans)) if isinstance(completed, ListItem) else completed
        )

    def build(self) -> tuple[Block, ...]:
        """All blocks."""
        self._flush()
        repeated = {at for at in (0, *self._titles) if self._is_repeated(at)}
        return tuple(block for at, block in enumerate(self._blocks) if at not in repeated)

    def _is_picture_caption(self) -> bool:
        """Whether the caption at the end stands right below a picture."""
        return len(self._blocks) > 1 and isinstance(self._blocks[-2], Picture)

    def _is_repeated(self, at: int) -> bool:
        """Whether the next heading says the same as a title; exporters add the name of a site or book to titles.

        A paragraph at the very beginning may be a title as well, but only one that the heading repeats to the letter.
        """
        title = self._blocks[at] if at < len(self._blocks) else None
        following = (block for block in self._blocks[at + 1 :] if isinstance(block, Heading))
        heading = next(following, None)
        if heading is None or not isinstance(title, Heading | Paragraph):
            return False
        if isinstance(title, Paragraph) or at not in self._titles:
            return isinstance(title, Paragraph) and title.text == heading.text
        long, short = sorted((_normalize_words(title.text), _normalize_words(heading.text)), key=len, reverse=True)
        return bool(short) and f" {short} " in f" {long} "


class NoteCollector:
    """Foot- and endnotes, numbered as the text comes to refer to them, and told at the end of the section."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._pending: deque[str] = deque()

    def cite(self, note_id: str) -> str:
        """What stands in the text for a note."""
        if note_id not in self._numbers:
            self._numbers[note_id] = len(self._numbers) + 1
            self._pending.append(note_id)
        return f"[{self._numbers[note_id]}]"

    def take(self, read_text: Callable[[str], str]) -> Iterator[Paragraph]:
        """The notes referred to since the last time, and those that they refer to in turn."""
        while self._pending:
            note_id = self._pending.popleft()
            yield Paragraph(f"{self.cite(note_id)} {read_text(note_id)}", role="footnote")


def _shift_spans(spans: Iterable[Span], by: int) -> tuple[Span, ...]:
    return tuple(replace(span, start=span.start + by, end=span.end + by) for span in spans)


def _is_caption(block: Block | None) -> TypeGuard[Paragraph]:
    return isinstance(block, Paragraph) and block.role == "caption"


def _normalize_words(text: str) -> str:
    return " ".join("".join(char if char.isalnum() else " " for char in text.lower()).split())
