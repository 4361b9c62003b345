"""Pages of one version, stored in a folder and replaced as a whole.

Unchanged files aren't rewritten, so their stamp stays the same and the engine doesn't index them again.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from refdesk.errors import CannotConvert
from refdesk.ingest.recipes.archives import Page
from refdesk.support.fs import replace_file

PAGES_FOLDER = "pages"
SOURCE_FILE = "source.json"


@dataclass(frozen=True, slots=True)
class PageSource:
    """Origin of the stored pages, with the HTTP validators of the download."""

    url: str
    release: str = ""
    etag: str | None = None
    last_modified: str | None = None


@dataclass(frozen=True, slots=True)
class PageStore:
    """Folder with the pages of one version."""

    folder: Path

    @property
    def pages(self) -> Path:
        """Folder that holds the pages themselves."""
        return self.folder / PAGES_FOLDER

    def read_source(self) -> PageSource | None:
        """Return the origin of the pages, or None if there are none or the last write was interrupted."""
        try:
            return PageSource(**json.loads((self.folder / SOURCE_FILE).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def list_paths(self) -> list[str]:
        """Return the sorted paths of all pages, relative to the folder."""
        found = (path for path in self.pages.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.pages).as_posix() for path in found)

    def replace(self, pages: Iterable[Page], check: Callable[[Path], PageSource]) -> None:
        """Replace all pages.

        Nothing is changed until all new pages are staged and `check`, called with the staging folder, has returned
        their origin.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(dir=self.folder, prefix=".new-"))
        try:
            paths = set()
            for path, data in pages:
                paths.add(path)
                current, target = self.pages / path, staged / path
                if current.is_file() and current.stat().st_size == len(data) and current.read_bytes() == data:
                    target.unlink(missing_ok=True)  # an archive may have a page twice
                else:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(data)
            if not paths:
                raise CannotConvert("The documentation has no pages, so nothing was imported.")
            source = check(staged)
            # Without the source file, an interrupted replacement counts as empty and is repeated.
            (self.folder / SOURCE_FILE).unlink(missing_ok=True)
            for path in {*self.list_paths()} - paths:
                (self.pages / path).unlink()
            for path in paths:
                if (staged / path).is_file():
                    (self.pages / path).parent.mkdir(parents=True, exist_ok=True)
                    os.replace(staged / path, self.pages / path)
            content = json.dumps(asdict(source), indent=2) + "\n"
            replace_file(self.folder / SOURCE_FILE, content.encode(), is_durable=False)
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def read_page(self, path: str, staged: Path) -> bytes:
        """Return the content a page will have after the replacement."""
        for folder in (staged, self.pages):
            if (folder / path).is_file():
                return (folder / path).read_bytes()
        return b""
