"""Small text files: safe reads of user-supplied paths."""

from __future__ import annotations

import os
import stat
from pathlib import Path


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
