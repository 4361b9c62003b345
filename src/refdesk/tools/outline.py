"""What tools show of a document unasked, each part of it short: it goes into a model's window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from refdesk.documents.model import Section
from refdesk.tools.schema import Result
from refdesk.validation import shortened

MAX_CHARACTERS = 160
"""Of a title, a warning, a tag or a property; the longest honest titles have about a hundred."""

MAX_ENTRIES = 20
"""Of warnings, tags and properties."""


class OutlineEntry(Result):
    """A section in a table of contents."""

    id: str
    title: str
    level: int
    page: int | None = None

    @classmethod
    def of(cls, section: Section, shown: Callable[[str], str] = str) -> OutlineEntry:
        """The entry of a section, its title as it may be shown."""
        title = shown(shortened(section.title, MAX_CHARACTERS))
        return cls(id=section.id, title=title, level=section.level, page=section.page)

    def readable(self) -> str:
        page = f", p. {self.page}" if self.page else ""
        return f"{'  ' * max(self.level - 1, 0)}- {self.title or '(before the first heading)'} [{self.id}{page}]"


def brief(texts: Iterable[str], shown: Callable[[str], str] = str) -> list[str]:
    """The first of some texts, each cut short, and how many more there are."""
    every = list(texts)
    first = [shown(shortened(text, MAX_CHARACTERS)) for text in every[:MAX_ENTRIES]]
    return [*first, f"… {len(every) - MAX_ENTRIES} more"] if len(every) > MAX_ENTRIES else first


def brief_mapping(values: Mapping[str, str], shown: Callable[[str], str] = str) -> dict[str, str]:
    """The first of some values by name, each cut short."""
    names = list(values)[:MAX_ENTRIES]
    return dict(zip(brief(names, shown), brief((values[name] for name in names), shown), strict=True))


def brief_path(path: Sequence[str]) -> str:
    """Headings from the top down, as one line."""
    return " › ".join(shortened(title, MAX_CHARACTERS // 2) for title in path[-4:])
