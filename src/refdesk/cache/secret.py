"""Secret that signs cache entries in Redis."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from refdesk.errors import StorageError

FILE_NAME = "cache.secret"
BYTES = 32


def load_cache_secret(data: Path) -> bytes:
    """Return the secret of all processes on a data folder."""
    try:
        return _load_or_create_secret(data)
    except OSError as error:
        raise StorageError(f"cannot keep a secret in {data}: {error.strerror}") from error


def _load_or_create_secret(data: Path) -> bytes:
    """Read the secret file; the first process creates it atomically."""
    data.mkdir(parents=True, exist_ok=True)
    path = data / FILE_NAME
    if not path.exists():
        with NamedTemporaryFile(dir=data, prefix=f".{FILE_NAME}.") as draft:
            draft.write(secrets.token_bytes(BYTES))
            draft.flush()
            with suppress(FileExistsError):
                os.link(draft.name, path)
    return path.read_bytes()
