"""Selection of pages to convert."""

from __future__ import annotations

from refdesk.documents.convert.source import SourceFile


def select_pages(source: SourceFile, total: int) -> range:
    """Return the numbers of the pages to convert, counted from 1; all unless the source names some."""
    if source.pages is None:
        return range(1, total + 1)
    return range(max(source.pages.first, 1), min(source.pages.last, total) + 1)
