"""Files that others read or write, too: safe reads, atomic replacement, locks and stamps that show changes."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, EMFILE, ENFILE, ENOMEM, ENOSPC, EROFS
from pathlib import Path
from typing import TypeAlias

FileStamp: TypeAlias = tuple[int, int, int] | None
"""Inode, size and modification time of a file; None if there is no readable one."""


MACHINE_FAULTS = frozenset({EDQUOT, EMFILE, ENFILE, ENOMEM, ENOSPC, EROFS})
"""Errors of the machine, whatever file is used: no room on the disk, or no memory or file descriptors left."""


def find_machine_fault(error: BaseException | None) -> str:
    """Return the message of the fault of the machine that caused an error, empty if none did."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in MACHINE_FAULTS:
            return os.strerror(error.errno)
        error = error.__cause__
    return ""


def read_plain_text(path: Path, max_bytes: int) -> str:
    """Return the text of a regular file; raise FileNotFoundError, or ValueError with a reason."""
    try:
        # Opening a pipe without a writer must not block.
        with open(path.expanduser(), "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError("is not a regular file")
            content = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except RuntimeError:
        raise ValueError("is in an unknown home folder") from None
    if len(content) > max_bytes:
        raise ValueError(f"is larger than {max_bytes:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except ValueError:
        raise ValueError("is not UTF-8 text") from None


def replace_file(path: Path, content: bytes, *, is_durable: bool = True) -> None:
    """Replace a file's content atomically, with mode 0600. A symbolic link stays a link.

    With `is_durable`, the content is on disk when this returns, and deleted content can't reappear after a power
    failure.
    """
    target = Path(os.path.realpath(path))
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".new-", delete=False) as file:
        try:
            file.write(content)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
            os.replace(file.name, target)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    if is_durable:
        fsync_folder(target.parent)


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents, readable only by their owner. Existing ones stay as they are."""
    if not folder.is_dir():
        make_private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def fsync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold an exclusive inter-process lock on a file. The lock file is a sibling, as the file itself gets replaced."""
    make_private_folder(path.parent)
    with path.with_name(f".{path.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_stamp(path: Path | str) -> FileStamp:
    """Return a stamp that changes with the file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
