"""Read access to regular files below the configured root folders.

Paths are walked component by component from the root's file descriptor, without letting the kernel follow links. Links
are read and walked as well, and `..` returns to a folder that is still open, so nothing leads above the root. What is
checked is what is opened: swapping a folder for a link in between has no effect. A link to another file below the same
root works; one that leads outside is reported as missing. Hard links are regular files: anyone who can create them in a
root decides on its content.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from refdesk.errors import CannotOpen

MAX_PATH_CHARACTERS = 4096
"""PATH_MAX of Linux."""

MAX_LINKS = 40
"""Links followed per path, as on Linux; more are a loop."""

MAX_STEPS = 200
"""Components walked per path, those of links included; each folder stays open meanwhile."""

MAX_NAMES_COMPARED = 500
"""Folder entries compared with a missing name."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Non-blocking, since a file may have been replaced by a pipe."""

_MISSING_ERRNOS = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ELOOP,  # replaced by a link
        errno.EINVAL,  # no longer a link
        errno.ENXIO,  # replaced by a pipe or a socket
        errno.ENAMETOOLONG,
        errno.ESTALE,
    }
)
"""Errors that mean the path leads to no file, or no longer does."""


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """An open file; its `with` block closes it."""

    fd: int
    name: str
    size: int
    path: Path
    """Real path below its root, links resolved."""

    def __enter__(self) -> OpenedFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def open_local_file(path: Path) -> OpenedFile:
    """Open a file in any folder. Raises OSError, and CannotOpen if it isn't a regular file."""
    # Don't block on a pipe without a writer.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not path.is_file():
        os.close(fd)
        raise CannotOpen(f"{path} is not a file.")
    return OpenedFile(fd, path.name, os.fstat(fd).st_size, path)


class Roots:
    """Folders whose files callers may open. Opening blocks, so call it in a thread."""

    def __init__(self, folders: Sequence[Path], closed: Sequence[Path] = ()) -> None:
        """Open `folders`, except for the files and folders in `closed`."""
        shut = tuple(Path(os.path.realpath(path)) for path in closed)
        self._roots = tuple(Root(folder.absolute(), shut) for folder in folders)

    def open(self, path: str) -> OpenedFile:
        """Open a file by its path, absolute or relative to a root, or by its `file:` URI."""
        if not self._roots:
            raise CannotOpen("No folder is open to tools. Set convert.roots to the folders whose files they may open.")
        wanted = _parse_path(path)
        failures: list[_LookupFailure] = []
        for root in self._roots:
            try:
                return root.open(wanted)
            except _LookupFailure as failure:
                failures.append(failure)
        # The most informative failure; it never reveals that a file exists elsewhere.
        shown = _format_path(wanted)
        if reason := next((each.reason for each in failures if each.reason), ""):
            raise CannotOpen(f"{shown} {reason}. Name a file that can be read.")
        folders = ", ".join(str(root.folder) for root in self._roots)
        if not any(root.is_above(wanted) for root in self._roots):
            # Whether it exists or not: only the spelling of the path is looked at.
            folder = _format_path(os.path.dirname(os.path.normpath(wanted)))
            raise CannotOpen(
                f"{shown} is outside the folders that are open to tools: {folders}. Copy the file into one of them, or "
                f"add its folder {folder} to convert.roots."
            )
        nearest = next((each.nearest for each in failures if each.nearest), "")
        hint = f"Did you mean {nearest!r}?" if nearest else "Check the path."
        raise CannotOpen(f"There is no file {shown} in the folders that are open to tools: {folders}. {hint}")


class _LookupFailure(Exception):
    """A path led to no file; has a reason that may be shown and the nearest name, if any."""

    def __init__(self, reason: str = "", nearest: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.nearest = nearest


@dataclass(frozen=True, slots=True)
class Root:
    """A root folder, which may itself be a link."""

    folder: Path
    closed: tuple[Path, ...] = ()

    def open(self, path: str) -> OpenedFile:
        """Open a file below this folder. Raises `_LookupFailure`."""
        parts = self.split_beneath(path)
        with ExitStack() as held:
            return _PathWalk(self, held).open(parts)

    def is_above(self, path: str) -> bool:
        """Return whether a path, as it is written, starts in this folder."""
        try:
            self.split_beneath(path)
        except _LookupFailure:
            return False
        return True

    def split_beneath(self, path: str) -> list[str]:
        """Return the components of a path below this folder; an absolute path has to start with the folder's own."""
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if not path.startswith("/"):
            return parts
        for folder in (self.folder, Path(os.path.realpath(self.folder))):
            own = list(folder.parts[1:])
            if parts[: len(own)] == own:
                return parts[len(own) :]
        raise _LookupFailure


class _PathWalk:
    """Walk from a root to a file; the folders on the way stay open until it ends."""

    def __init__(self, root: Root, held: ExitStack) -> None:
        self._root = root
        self._held = held
        self._real_folder = Path(os.path.realpath(root.folder))
        self._folders = [self._open_folder(os.fspath(root.folder), None)]
        self._names: list[str] = []
        self._links = 0

    def open(self, parts: Sequence[str]) -> OpenedFile:
        """Walk the components, links included, to a regular file and open it."""
        ahead = list(reversed(parts))
        for _ in range(MAX_STEPS):
            if not ahead:
                raise _LookupFailure("is a folder, not a file")
            name = ahead.pop()
            if name == "..":
                if not self._names:
                    raise _LookupFailure
                self._names.pop()
                self._folders.pop()
                continue
            if self._is_shut(name):
                raise _LookupFailure  # before anything shows whether it exists
            with _translate_os_errors():
                try:
                    mode = os.stat(name, dir_fd=self._folders[-1], follow_symlinks=False).st_mode
                except FileNotFoundError:
                    raise _LookupFailure(nearest=self._find_nearest(name)) from None
            if stat.S_ISLNK(mode):
                ahead += reversed(self._resolve_link(name))
            elif stat.S_ISDIR(mode):
                self._folders.append(self._open_folder(name, self._folders[-1]))
                self._names.append(name)
            elif ahead:
                raise _LookupFailure
            else:
                return self._open_file(name, mode)
        raise _LookupFailure

    def _is_shut(self, name: str) -> bool:
        """Return whether an entry is hidden, as files with keys and passwords are, or closed."""
        real = self._real_folder.joinpath(*self._names, name)
        return name.startswith(".") or any(real.is_relative_to(path) for path in self._root.closed)

    def _open_folder(self, name: str, folder: int | None) -> int:
        """Open a folder for the rest of the walk; only the root may be a link."""
        with _translate_os_errors():
            fd = os.open(name, _FOLDER & ~os.O_NOFOLLOW if folder is None else _FOLDER, dir_fd=folder)
        self._held.callback(os.close, fd)
        return fd

    def _resolve_link(self, name: str) -> list[str]:
        """Return the components of a link's target; an absolute target restarts from the root."""
        self._links += 1
        if self._links > MAX_LINKS:
            raise _LookupFailure
        with _translate_os_errors():
            target = os.readlink(name, dir_fd=self._folders[-1])
        parts = self._root.split_beneath(target)
        if target.startswith("/"):
            del self._folders[1:], self._names[:]
        return parts

    def _open_file(self, name: str, mode: int) -> OpenedFile:
        """Open a regular file, checked before and after: opening a device can have side effects."""
        if not stat.S_ISREG(mode):
            raise _LookupFailure("is not a regular file")
        with _translate_os_errors():
            fd = os.open(name, _FILE, dir_fd=self._folders[-1])
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise _LookupFailure("is not a regular file")
            os.set_blocking(fd, True)
        except BaseException:
            os.close(fd)
            raise
        return OpenedFile(fd, name, found.st_size, self._root.folder.joinpath(*self._names, name))

    def _find_nearest(self, name: str) -> str:
        """Return the path of the entry whose name is most similar to the missing one."""
        with _translate_os_errors(), os.scandir(self._folders[-1]) as entries:
            names = [entry.name for entry in islice(entries, MAX_NAMES_COMPARED)]
        folded = {known.casefold(): known for known in names if known.isprintable() and not self._is_shut(known)}
        match = get_close_matches(name.casefold(), folded, n=1)
        return str(PurePosixPath(*self._names, folded[match[0]])) if match else ""


@contextmanager
def _translate_os_errors() -> Iterator[None]:
    """Raise path errors as `_LookupFailure`; others, such as too many open files, pass through."""
    try:
        yield
    except PermissionError:
        raise _LookupFailure("can't be read: permission denied") from None
    except UnicodeError:  # not a valid file name
        raise _LookupFailure from None
    except OSError as error:
        if error.errno not in _MISSING_ERRNOS:
            raise
        raise _LookupFailure from None


def _parse_path(path: str) -> str:
    """Return the path, decoded if it is a `file:` URI."""
    if len(path) > MAX_PATH_CHARACTERS:
        raise CannotOpen(f"The path is longer than {MAX_PATH_CHARACTERS} characters. Name a file by its path.")
    plain = _parse_file_uri(path) if path[:5].lower() == "file:" else path
    if not plain.strip("/. ") or "\0" in plain:
        raise CannotOpen(f"{_format_path(path)} isn't a file path. Give a path in a folder that is open to tools.")
    return plain


def _parse_file_uri(uri: str) -> str:
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise CannotOpen(f"{_format_path(uri)} is not a valid file URI. Give a path instead.") from error
    if parts.netloc.lower() not in ("", "localhost"):
        raise CannotOpen(
            f"{_format_path(uri)} names a file on another host. Name one on this host, or give its http(s) URL."
        )
    return unquote(parts.path, errors="surrogateescape")


def _format_path(path: str) -> str:
    return repr(path if len(path) <= 200 else f"{path[:100]}…{path[-99:]}")
