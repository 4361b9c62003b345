"""A file that is to be changed: shown first, then written as a whole, with what was there kept beside it."""

from __future__ import annotations

import difflib
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from refdesk.cli.terminal import Ink, printable
from refdesk.config.plain_files import read_plain_text, replace_text
from refdesk.errors import CannotOpen

MOST_BYTES = 33_554_432
"""Claude Code keeps its history in the same file; more than this is no settings file."""

BACKUP = ".before-refdesk"
"""What the name of the copy ends in; there is one, of what was there before the last change."""

OWN_RIGHTS = 0o600
SHARED_RIGHTS = 0o644
"""A new file in a home is its owner's affair; one in a project is for everybody who works on it."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a file says, None when it is not there, and what it is to say."""

    path: Path
    before: str | None
    after: str
    is_shared: bool = False

    @property
    def is_nothing(self) -> bool:
        """Whether the file says so already."""
        return self.before == self.after

    def difference(self) -> list[str]:
        """The change as people know it from version control."""
        old = "/dev/null" if self.before is None else str(self.path)
        lines = difflib.unified_diff(
            (self.before or "").splitlines(), self.after.splitlines(), old, str(self.path), lineterm=""
        )
        return [printable(line) for line in lines]

    def write(self) -> Path | None:
        """Do it; where the copy of what was there is, if there was something. Raises CannotOpen."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if read_text(self.path) != self.before:
                raise CannotOpen(f"{self.path} has changed meanwhile; look again.")
            rights = _rights(self.path, SHARED_RIGHTS if self.is_shared else OWN_RIGHTS)
            if not rights & stat.S_IWUSR:
                # It could be replaced all the same; but somebody, or a program that writes it, meant it to stay.
                raise CannotOpen(f"{self.path} is read-only and left as it is.")
            backup = self._kept()
            replace_text(self.path, self.after)
            os.chmod(self.path, rights)
        except OSError as error:
            raise CannotOpen(f"{self.path} cannot be written: {error.strerror or error}.") from None
        return backup

    def _kept(self) -> Path | None:
        if self.before is None:
            return None
        backup = self.path.with_name(self.path.name + BACKUP)
        shutil.copy2(self.path, backup)
        return backup


def read_text(path: Path) -> str | None:
    """What a settings file says; None when there is none. Raises CannotOpen for one that cannot be read."""
    try:
        return read_plain_text(path, MOST_BYTES)
    except FileNotFoundError:
        return None
    except ValueError as wrong:
        raise CannotOpen(f"{path} {wrong}.") from None


def in_own_line_ends(text: str, edit: Callable[[str], str]) -> str:
    """The text as the edit makes it, which knows plain line ends alone; a file of Windows keeps its own."""
    plain = text.replace("\r\n", "\n")
    if text.count("\n") != text.count("\r\n") or plain == text:
        return edit(text)
    return edit(plain).replace("\n", "\r\n")


def _rights(path: Path, otherwise: int) -> int:
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        return otherwise


def coloured(lines: list[str], ink: Ink) -> Iterator[str]:
    """A difference, with what is added and taken away told apart where there are colours."""
    for line in lines:
        if line.startswith(("---", "+++")):
            yield ink.bold(line)
        elif line.startswith("+"):
            yield ink.green(line)
        elif line.startswith("-"):
            yield ink.red(line)
        else:
            yield line


def is_confirmed(question: str) -> bool:
    """Whether the person at the terminal agrees."""
    print(f"{question} [y/N] ", end="", flush=True, file=sys.stderr)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
