"""Files that a caller may name: regular files beneath the folders that the operator opened, and nothing else.

A path is walked from the folder's own descriptor, one component at a time, without ever letting the system follow a
link: links are read and walked too, `..` goes back to a folder that is held open, and nothing leads above the first.
What is checked is what is opened, so swapping a folder for a link in between changes nothing. A link that leads to
another file in the same folder works, relative or absolute; one that leads out is as good as missing. A hard link is a
regular file like any other: whoever may make one in an open folder decides what is in it.
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
from types import TracebackType
from urllib.parse import unquote, urlsplit

from refdesk.errors import CannotOpen

MAX_PATH_CHARACTERS = 4096
"""The longest path that Linux takes."""

MAX_LINKS = 40
"""Links followed on one path, as many as Linux does; more are a circle."""

MAX_STEPS = 200
"""Components walked on one path, those of its links included; every folder among them is held open meanwhile."""

MAX_NAMES_COMPARED = 500
"""Entries of a folder that are looked at for a name like the one that is missing."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Without waiting: what was a file a moment ago may be a pipe now."""

_MISSING_ERRNOS = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ELOOP,  # a link where a moment ago was none
        errno.EINVAL,  # no link any more
        errno.ENXIO,  # a pipe or a socket now
        errno.ENAMETOOLONG,
        errno.ESTALE,
    }
)
"""What the system says of a path that leads to no file, or does so no longer."""


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """An open file; leaving its `with` block closes it."""

    fd: int
    name: str
    size: int
    path: Path
    """Where it is in truth, beneath its root and after links."""

    def __enter__(self) -> OpenedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self.fd)


class Roots:
    """The folders in which a caller may name files. Opening reads the disk, so it belongs in a thread."""

    def __init__(self, folders: Sequence[Path], closed: Sequence[Path] = ()) -> None:
        """`closed` are files and folders that stay shut although a root holds them."""
        self._roots = tuple(Root(folder.absolute()) for folder in folders)
        self._closed = tuple(Path(os.path.realpath(path)) for path in closed)

    def open(self, path: str) -> OpenedFile:
        """Open a file by its path, absolute or relative to one of the folders, or by its `file:` URI."""
        if not self._roots:
            raise CannotOpen("No folder is open to this desk, so no file can be named. The operator can open one.")
        wanted = _parse_path(path)
        failures: list[_LookupFailure] = []
        for root in self._roots:
            try:
                return self._check_permitted(root.open(wanted), root)
            except _LookupFailure as failure:
                failures.append(failure)
        raise CannotOpen(self._format_failure(wanted, failures))

    def _check_permitted(self, file: OpenedFile, root: Root) -> OpenedFile:
        """The file, unless it is one of this desk's own or hidden, as those with keys and passwords are."""
        real = Path(os.path.realpath(root.folder)) / file.path.relative_to(root.folder)
        beneath = file.path.relative_to(root.folder).parts
        if any(part.startswith(".") for part in beneath) or any(real.is_relative_to(path) for path in self._closed):
            with file:
                raise _LookupFailure
        return file

    def _format_failure(self, path: str, failures: Sequence[_LookupFailure]) -> str:
        """The one failure that says most; that a file exists elsewhere is never one of them."""
        for failure in failures:
            if failure.reason:
                return f"{_format_path(path)} {failure.reason}. Name a file that can be read."
        folders = ", ".join(str(root.folder) for root in self._roots)
        hints = [failure.nearest for failure in failures if failure.nearest]
        hint = f" Did you mean {hints[0]!r}?" if hints else " Check the path."
        return f"There is no file {_format_path(path)} under the folders open to this desk: {folders}.{hint}"


class _LookupFailure(Exception):
    """Why a path led to no file: a reason that may be told, or none, and perhaps the nearest name."""

    def __init__(self, reason: str = "", nearest: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.nearest = nearest


@dataclass(frozen=True, slots=True)
class Root:
    """One open folder. It may be a link itself: that is the operator's choice."""

    folder: Path

    def open(self, path: str) -> OpenedFile:
        """Open a file beneath this folder; `_Failure` if there is none."""
        parts = self.split_beneath(path)
        with ExitStack() as held:
            return _PathWalk(self, held).open(parts)

    def split_beneath(self, path: str) -> list[str]:
        """The components of a path from this folder on; an absolute path has to begin with the folder's own."""
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if not path.startswith("/"):
            return parts
        for folder in (self.folder, Path(os.path.realpath(self.folder))):
            own = list(folder.parts[1:])
            if parts[: len(own)] == own:
                return parts[len(own) :]
        raise _LookupFailure


class _PathWalk:
    """One walk from a root to a file; the folders on the way are held open until it ends."""

    def __init__(self, root: Root, held: ExitStack) -> None:
        self._root = root
        self._held = held
        self._folders = [self._open_folder(os.fspath(root.folder), None)]
        self._names: list[str] = []
        self._links = 0

    def open(self, parts: Sequence[str]) -> OpenedFile:
        """Walk the components, and those of the links among them, to a regular file."""
        ahead = list(reversed(parts))
        for _ in range(MAX_STEPS):
            if not ahead:
                raise _LookupFailure("is a folder, not a file")
            name = ahead.pop()
            if name == "..":
                self._leave_folder()
                continue
            mode = self._stat_mode(name)
            if stat.S_ISLNK(mode):
                ahead += reversed(self._resolve_link(name))
            elif stat.S_ISDIR(mode):
                self._enter_folder(name)
            elif ahead:
                raise _LookupFailure
            else:
                return self._open_file(name, mode)
        raise _LookupFailure

    def _stat_mode(self, name: str) -> int:
        with _translate_os_errors():
            try:
                return os.stat(name, dir_fd=self._folders[-1], follow_symlinks=False).st_mode
            except FileNotFoundError:
                raise _LookupFailure(nearest=self._find_nearest(name)) from None

    def _leave_folder(self) -> None:
        if not self._names:
            raise _LookupFailure
        self._names.pop()
        self._folders.pop()

    def _enter_folder(self, name: str) -> None:
        self._folders.append(self._open_folder(name, self._folders[-1]))
        self._names.append(name)

    def _open_folder(self, name: str, folder: int | None) -> int:
        """Open a folder for the rest of the walk; only the root may be reached over a link."""
        with _translate_os_errors():
            fd = os.open(name, _FOLDER & ~os.O_NOFOLLOW if folder is None else _FOLDER, dir_fd=folder)
        self._held.callback(os.close, fd)
        return fd

    def _resolve_link(self, name: str) -> list[str]:
        """Where a link leads, as components from here on; an absolute one starts again from the root."""
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
        """Open what is a regular file both before and after: opening a device can already do something."""
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
        """The path, from the root, of the entry whose name is most like the missing one."""
        with _translate_os_errors(), os.scandir(self._folders[-1]) as entries:
            names = [entry.name for entry in islice(entries, MAX_NAMES_COMPARED)]
        folded = {known.casefold(): known for known in names if known.isprintable() and not known.startswith(".")}
        match = get_close_matches(name.casefold(), folded, n=1)
        return str(PurePosixPath(*self._names, folded[match[0]])) if match else ""


@contextmanager
def _translate_os_errors() -> Iterator[None]:
    """Read what the system says of a path; trouble of its own, such as a full table of files, stays an error."""
    try:
        yield
    except PermissionError:
        raise _LookupFailure("may not be read by this desk") from None
    except UnicodeError:  # a name that no file can have
        raise _LookupFailure from None
    except OSError as error:
        if error.errno not in _MISSING_ERRNOS:
            raise
        raise _LookupFailure from None


def _parse_path(path: str) -> str:
    """The path itself, out of a `file:` URI if it came as one."""
    if len(path) > MAX_PATH_CHARACTERS:
        raise CannotOpen(f"The path is longer than {MAX_PATH_CHARACTERS} characters. Name a file by its path.")
    plain = _parse_file_uri(path) if path[:5].lower() == "file:" else path
    if not plain.strip("/. ") or "\0" in plain:
        raise CannotOpen(f"{_format_path(path)} names no file. Give a path under one of the folders open to this desk.")
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
    """A path fit for a message, whatever characters are in it."""
    return repr(path if len(path) <= 200 else f"{path[:100]}…{path[-99:]}")
