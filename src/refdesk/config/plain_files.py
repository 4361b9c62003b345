"""Small text files: read where a person may have put anything under the name, written by several processes."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def read_plain_text(path: Path, most_bytes: int) -> str:
    """The text of a regular file; raises FileNotFoundError, or ValueError with what is wrong in words."""
    try:
        with open(path.expanduser(), "rb", opener=_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ValueError("is no plain file")
            content = file.read(most_bytes + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except RuntimeError:
        raise ValueError("is in a home folder that is not known") from None
    if len(content) > most_bytes:
        raise ValueError(f"is larger than the {most_bytes:,} bytes that are read")
    try:
        return content.decode("utf-8-sig")
    except ValueError:
        raise ValueError("is not UTF-8 text") from None


def _at_once(path: str, flags: int) -> int:
    """A pipe without a writer would be waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def replace_text(path: Path, text: str) -> None:
    """Put a text in the place of a file's, as a whole, for its owner's eyes only; a link stays a link."""
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
    """Have the disk keep the new file under the name: what was taken out must not come back with the power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def while_alone(path: Path) -> Iterator[None]:
    """While no other process writes this file; the lock is beside it, as the file itself is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
