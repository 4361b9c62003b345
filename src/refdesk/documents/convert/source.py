"""Input of a converter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from refdesk.documents.model import Block, Heading

Progress = Callable[[float, float, str], None]
"""Called with the amount done, the total, and a description."""


def ignore_progress(_done: float, _total: float, _doing: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class PageRange:
    """Pages to convert, counted from 1, both ends included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class SourceFile:
    """Bytes of a file with its metadata."""

    data: bytes
    name: str
    """File name, a fallback for the title and a hint for the format."""
    charset: str | None = None
    """Encoding declared by the server."""
    url: str = ""
    """URL of the file, the base of relative links."""
    pages: PageRange | None = None
    progress: Progress = ignore_progress

    def select_pages(self, total: int) -> range:
        """Return the numbers of the pages to convert, counted from 1; all unless some are selected."""
        if self.pages is None:
            return range(1, total + 1)
        return range(max(self.pages.first, 1), min(self.pages.last, total) + 1)

    def choose_title(self, properties: Mapping[str, str], blocks: Iterable[Block] = ()) -> str:
        """Return the title of the document: from its metadata, its first heading or the name of the file."""
        headings = (block.text for block in blocks if isinstance(block, Heading))
        return properties.get("title") or next(headings, "") or PurePath(self.name).stem
