"""Small text files: safe reads of user-supplied paths, atomic replacement, and inter-process locks."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def read_plain_text(path: Path, max_bytes: int) -> str:
    """Return the text of a regular file; raise FileNotFoundError, or ValueError with a reason."""
    try:
        with open(path.expanduser(), "rb", opener=_open_nonblocking) as file:
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


def _open_nonblocking(path: str, flags: int) -> int:
    """Open a file without blocking on a pipe that has no writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def replace_text(path: Path, text: str) -> None:
    """Replace a file's text atomically, with mode 0600. A symbolic link stays a link."""
    target = Path(os.path.realpath(path))
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, prefix=".new-", delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, target)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    _sync(target.parent)


def _sync(folder: Path) -> None:
    """Flush a folder's entries to disk, so that deleted content can't reappear after a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold an exclusive inter-process lock on a file. The lock file is a sibling, as the file itself gets replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
