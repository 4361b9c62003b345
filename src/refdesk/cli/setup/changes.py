"""File changes: shown as a diff, then written atomically with a backup."""

from __future__ import annotations

import difflib
import os
import shutil
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from refdesk.cli.terminal import detect_style, sanitize
from refdesk.config.plain_files import read_plain_text
from refdesk.errors import CannotOpen
from refdesk.support.fs import replace_file

MAX_BYTES = 33_554_432
"""Upper bound for a settings file. Claude Code keeps its history in the same file."""

BACKUP_SUFFIX = ".before-refdesk"
"""Suffix of the backup, which holds the content before the last change."""

PRIVATE_MODE = 0o600
SHARED_MODE = 0o644
"""Mode of new files: private in a home folder, readable by everyone in a project."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """Old and new text of a file. The old text is None if the file doesn't exist."""

    path: Path
    before: str | None
    after: str
    is_shared: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the text stays the same."""
        return self.before == self.after

    def diff(self) -> list[str]:
        """Return the change as a unified diff."""
        old = "/dev/null" if self.before is None else str(self.path)
        lines = difflib.unified_diff(
            (self.before or "").splitlines(), self.after.splitlines(), old, str(self.path), lineterm=""
        )
        return [sanitize(line) for line in lines]

    def print_diff(self) -> None:
        """Print the change as a diff, in colour on a terminal."""
        style = detect_style(sys.stdout)
        colours = {"---": style.bold, "+++": style.bold, "+": style.green, "-": style.red}
        for line in self.diff():
            colour = next((colour for sign, colour in colours.items() if line.startswith(sign)), str)
            print(colour(line))
        sys.stdout.flush()

    def write(self) -> Path | None:
        """Write the change and return the backup's path, if there is one; raise CannotOpen if it fails."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if read_text(self.path) != self.before:
                raise CannotOpen(f"{self.path} has changed in the meantime. Try again.")
            default = SHARED_MODE if self.is_shared else PRIVATE_MODE
            mode = self.path.stat().st_mode & 0o777 if self.before is not None else default
            if not mode & stat.S_IWUSR:
                # Replacing it would work, but the owner or a program that writes it made it read-only on purpose.
                raise CannotOpen(f"{self.path} is read-only and was not changed.")
            backup = None
            if self.before is not None:
                backup = self.path.with_name(self.path.name + BACKUP_SUFFIX)
                shutil.copy2(self.path, backup)
            replace_file(self.path, self.after.encode())
            os.chmod(self.path, mode)
        except OSError as error:
            raise CannotOpen(f"{self.path} cannot be written: {error.strerror or error}.") from None
        return backup


def read_text(path: Path) -> str | None:
    """Return the text of a settings file, or None if it doesn't exist; raise CannotOpen if it can't be read."""
    try:
        return read_plain_text(path, MAX_BYTES)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CannotOpen(f"{path} {error}.") from None


def edit_keeping_line_endings(text: str, edit: Callable[[str], str]) -> str:
    """Apply an edit that only handles LF, keeping CRLF line endings."""
    plain = text.replace("\r\n", "\n")
    if text.count("\n") != text.count("\r\n") or plain == text:
        return edit(text)
    return edit(plain).replace("\n", "\r\n")
