"""Input of a converter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
