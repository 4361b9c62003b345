"""A table of contents as tools show it."""

from __future__ import annotations

from collections.abc import Callable

from refdesk.documents.model import Section
from refdesk.tools.schema import Result


class OutlineEntry(Result):
    """A section in a table of contents."""

    id: str
    title: str
    level: int
    page: int | None = None

    @classmethod
    def of(cls, section: Section, shown: Callable[[str], str] = str) -> OutlineEntry:
        """The entry of a section, its title as it may be shown."""
        return cls(id=section.id, title=shown(section.title), level=section.level, page=section.page)

    def readable(self) -> str:
        page = f", p. {self.page}" if self.page else ""
        return f"{'  ' * max(self.level - 1, 0)}- {self.title or '(before the first heading)'} [{self.id}{page}]"
