"""What a person names on the command line: files and folders of their own, and URLs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from refdesk.cli.parser.arguments import Misuse
from refdesk.documents.conversions import File
from refdesk.documents.convert.source import PageRange
from refdesk.documents.file_names import clean_name
from refdesk.documents.folders import FoundFile, LeftOut, walk
from refdesk.errors import CannotOpen

MAX_FILES = 1_000_000
"""Of one folder; more than that is a disk that was named by mistake."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that was named and cannot be had, and why."""

    name: str
    cause: str


def is_url(text: str) -> bool:
    """Whether it is to be fetched."""
    return re.match(r"https?://", text, re.IGNORECASE) is not None


def documents_under(folder: Path, ignore: Sequence[str] = ()) -> tuple[list[FoundFile], list[LeftOut]]:
    """The documents in a folder and those below it, in order, and what could not be looked at."""
    found = list(walk(folder, ignore=ignore, max_files=MAX_FILES))
    return [one for one in found if isinstance(one, FoundFile)], [one for one in found if isinstance(one, LeftOut)]


@contextmanager
def opened(path: Path) -> Iterator[File]:
    """One's own file, open for reading."""
    try:
        # Not to wait for whoever might write to a pipe.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise CannotOpen(f"{path} cannot be opened: {error.strerror or error}.") from None
    try:
        if not path.is_file():
            raise CannotOpen(f"{path} is no file.")
        yield File(fd, clean_name(path.name) or "document", os.fstat(fd).st_size)
    finally:
        os.close(fd)


def page_range(text: str | None) -> PageRange | None:
    """`3` or `3-7`."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", text)
    pages = PageRange(int(match[1]), int(match[2] or match[1])) if match else None
    if pages is None or not 1 <= pages.first <= pages.last:
        raise Misuse("--pages: must be a page or a range such as 3-7, counted from 1")
    return pages
