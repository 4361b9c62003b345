"""What a converter is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[float, float, str], None]
"""Done, total, and what is being done."""


def ignore_progress(_done: float, _total: float, _doing: str) -> None:
    """Progress that nobody waits for."""


@dataclass(frozen=True, slots=True)
class PageRange:
    """Pages to convert, counted from 1, both ends included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file's bytes and what is known of them from outside."""

    data: bytes
    name: str
    """The file's name; only a fallback for the title and a hint where the content does not tell its format."""
    charset: str | None = None
    """The encoding that a server stated for text."""
    url: str = ""
    """Where the file came from; relative links are resolved against it."""
    pages: PageRange | None = None
    progress: Progress = ignore_progress
