"""Command line inputs: local files and page ranges."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from refdesk.cli.arguments import Misuse
from refdesk.documents.conversions import File
from refdesk.documents.convert.source import PageRange
from refdesk.documents.file_names import clean_name
from refdesk.errors import CannotOpen


@contextmanager
def open_file(path: Path) -> Iterator[File]:
    """Open a local file for conversion."""
    try:
        # Don't block on a pipe without a writer.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise CannotOpen(f"{path} can't be opened: {error.strerror or error}.") from None
    try:
        if not path.is_file():
            raise CannotOpen(f"{path} isn't a file.")
        yield File(fd, clean_name(path.name) or "document", os.fstat(fd).st_size)
    finally:
        os.close(fd)


def parse_page_range(text: str | None) -> PageRange | None:
    """Parse `3` or `3-7`."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", text)
    pages = PageRange(int(match[1]), int(match[2] or match[1])) if match else None
    if pages is None or not 1 <= pages.first <= pages.last:
        raise Misuse("--pages: must be a page or a range such as 3-7, counted from 1")
    return pages
