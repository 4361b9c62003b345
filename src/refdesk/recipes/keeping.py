"""The pages of one version, kept in a folder: replaced all at once, and without touching those that stay the same.

A page that is not touched keeps its stamp, by which the engine knows that it need not be read anew.
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
from refdesk.recipes.archives import Page

PAGES = "pages"
RECORD = "source.json"


@dataclass(frozen=True, slots=True)
class Record:
    """Where the kept pages came from, and what the server said to know them by."""

    url: str
    release: str = ""
    etag: str | None = None
    last_modified: str | None = None


@dataclass(frozen=True, slots=True)
class KeptPages:
    """The pages in a folder."""

    folder: Path

    @property
    def pages(self) -> Path:
        """The folder of the pages themselves."""
        return self.folder / PAGES

    def record(self) -> Record | None:
        """Where they came from; None when there are none, or they were not all written."""
        try:
            return Record(**json.loads((self.folder / RECORD).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def paths(self) -> list[str]:
        """All pages, by their paths below the folder, in order."""
        found = (path for path in self.pages.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.pages).as_posix() for path in found)

    def replace(self, pages: Iterable[Page], check: Callable[[Path], Record]) -> None:
        """Keep these pages and no others; not one is touched before all are there and `check`, which is given the
        folder of those that are new, has said where they come from."""
        self.folder.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(dir=self.folder, prefix=".new-"))
        try:
            wanted = {path: self._stage(staged, path, data) for path, data in pages}
            if not wanted:
                raise CannotConvert("There is not one page where the documentation should be; nothing was taken.")
            record = check(staged)
            self._swap(staged, wanted)
            self._write(record)
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def first(self, path: str, staged: Path) -> bytes:
        """A page as it will be."""
        for folder in (staged, self.pages):
            if (folder / path).is_file():
                return (folder / path).read_bytes()
        return b""

    def _stage(self, staged: Path, path: str, data: bytes) -> bool:
        """Write a page to the side unless it is as it was; whether it was written."""
        kept = self.pages / path
        if kept.is_file() and kept.stat().st_size == len(data) and kept.read_bytes() == data:
            return False
        target = staged / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        return True

    def _swap(self, staged: Path, wanted: dict[str, bool]) -> None:
        # Without a record, what is half done is taken for nothing and done again.
        (self.folder / RECORD).unlink(missing_ok=True)
        for path in self.paths():
            if path not in wanted:
                (self.pages / path).unlink()
        for path in (path for path, is_new in wanted.items() if is_new):
            target = self.pages / path
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(staged / path, target)

    def _write(self, record: Record) -> None:
        draft = self.folder / f".{RECORD}"
        draft.write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
        os.replace(draft, self.folder / RECORD)
