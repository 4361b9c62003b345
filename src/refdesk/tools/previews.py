"""Outlines and shortened metadata of documents for tool results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from refdesk.documents.model import Section
from refdesk.tools.json_schema import Result
from refdesk.validation import shorten

MAX_CHARACTERS = 160
"""Length of a title, warning, tag or property; the longest real titles have about a hundred."""

MAX_ENTRIES = 20
"""Number of warnings, tags and properties."""


class OutlineEntry(Result):
    """A section in a table of contents."""

    id: str
    title: str
    level: int
    page: int | None = None

    @classmethod
    def of(cls, section: Section, mask: Callable[[str], str] = str) -> OutlineEntry:
        """Return the entry of a section, with its title masked."""
        title = mask(shorten(section.title, MAX_CHARACTERS))
        return cls(id=section.id, title=title, level=section.level, page=section.page)

    def readable(self) -> str:
        page = f", p. {self.page}" if self.page else ""
        return f"{'  ' * max(self.level - 1, 0)}- {self.title or '(before the first heading)'} [{self.id}{page}]"


def shorten_all(texts: Iterable[str], mask: Callable[[str], str] = str) -> list[str]:
    """Return the first texts, each shortened, and the number of omitted ones."""
    all_texts = list(texts)
    first = [mask(shorten(text, MAX_CHARACTERS)) for text in all_texts[:MAX_ENTRIES]]
    return [*first, f"… {len(all_texts) - MAX_ENTRIES} more"] if len(all_texts) > MAX_ENTRIES else first


def shorten_mapping(values: Mapping[str, str], mask: Callable[[str], str] = str) -> dict[str, str]:
    """Return the first entries of a mapping, each shortened."""
    names = list(values)[:MAX_ENTRIES]
    return dict(zip(shorten_all(names, mask), shorten_all((values[name] for name in names), mask), strict=True))


def format_path(path: Sequence[str]) -> str:
    """Format headings, from the top down, as one line."""
    return " › ".join(shorten(title, MAX_CHARACTERS // 2) for title in path[-4:])
