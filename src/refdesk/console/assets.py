"""The console's pages, as they lie in the package: read once, and found by their exact names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

INDEX = "index.html"

_VIEW = re.compile(r"(?:[\w-]+(?:/[\w-]+)*)?", re.ASCII)
"""What may be the address of a view: the page itself finds out which, so any such address is answered with it."""

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
"""What there is; a file of another kind is not served."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A file, and what a browser has to know of it."""

    body: bytes
    media_type: str
    etag: str
    """Quoted, as it stands in a header."""


class Assets:
    """The files by their paths below `/console/`."""

    def __init__(self, folder: Traversable | None = None) -> None:
        self._folder = folder or files("refdesk.console") / "pages"

    def find(self, path: str) -> Asset | None:
        """A file by its path, the index page for the address of a view, or None.

        Nothing is looked up on the disk by what somebody asks for, so that no path leads out of the folder.
        """
        name = INDEX if _VIEW.fullmatch(path) else path
        return self._known.get(name)

    @cached_property
    def _known(self) -> dict[str, Asset]:
        return dict(_read(self._folder, PurePosixPath()))


def _read(folder: Traversable, place: PurePosixPath) -> Iterator[tuple[str, Asset]]:
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        path = place / entry.name
        if entry.is_dir():
            yield from _read(entry, path)
        elif (media_type := TYPES.get(path.suffix)) is not None:
            body = entry.read_bytes()
            yield str(path), Asset(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
