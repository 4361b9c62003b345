"""Static files of the console, read once and looked up by exact path."""

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

_VIEW_PATH = re.compile(r"(?:[\w-]+(?:/[\w-]+)*)?", re.ASCII)
"""Paths that are answered with the index page, which routes to the view itself."""

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
"""Media types by suffix. Other files aren't served."""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A static file with its response headers."""

    body: bytes
    media_type: str
    etag: str
    """Quoted, as in the header."""


class Assets:
    """Static files by path below `/console/`."""

    def __init__(self, folder: Traversable | None = None) -> None:
        self._folder = folder or files("refdesk.console") / "pages"

    def find(self, path: str) -> StaticFile | None:
        """Return a file by path, the index page for a view's path, or None.

        The path is never looked up on disk, so it can't escape the folder.
        """
        name = INDEX if _VIEW_PATH.fullmatch(path) else path
        return self._files.get(name)

    @cached_property
    def _files(self) -> dict[str, StaticFile]:
        return dict(_read(self._folder, PurePosixPath()))


def _read(folder: Traversable, parent: PurePosixPath) -> Iterator[tuple[str, StaticFile]]:
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        path = parent / entry.name
        if entry.is_dir():
            yield from _read(entry, path)
        elif (media_type := TYPES.get(path.suffix)) is not None:
            body = entry.read_bytes()
            yield str(path), StaticFile(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
