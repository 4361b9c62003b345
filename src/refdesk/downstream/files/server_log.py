"""Log file of a server's stderr, shown by `refdesk servers logs`."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from refdesk.config.secrets import without
from refdesk.support.fs import make_private_folder

MAX_BYTES = 131_072
"""Size at which a file is rotated. A server has at most two files."""

ROTATED_SUFFIX = ".log.1"

MAX_LINE_CHARACTERS = 4096
"""Characters kept of a line."""

LINES_PER_SECOND = 200
"""Lines written per second. The rest of a flood is only counted: writing it would block the event loop."""

logger = logging.getLogger(__name__)


def log_path(folder: Path, name: str) -> Path:
    """Return the path of a server's log file."""
    return folder / "logs" / f"{name}.log"


class ServerLog:
    """Log file writer, called with each line. Several processes may write to the same file.

    The file is open only while a line is written, so there is nothing to close.
    """

    def __init__(
        self, folder: Path, name: str, secrets: Iterable[str] = (), *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = log_path(folder, name)
        self._secrets = tuple(secrets)
        self._now = now
        self._second = 0.0
        self._quota = 0
        self._dropped = 0
        self._is_disabled = False

    def __call__(self, line: str) -> None:
        """Write a line. On the first I/O error the log is disabled: a full disk must not affect the server."""
        if self._is_disabled or not self._consume_quota():
            return
        text = without(self._secrets, line.rstrip("\r\n"))[:MAX_LINE_CHARACTERS]
        notice = f"({self._dropped} lines were left out)\n" if self._dropped else ""
        self._dropped = 0
        try:
            self._write(f"{notice}{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {text}\n".encode("utf-8", "replace"))
        except OSError as error:
            self._is_disabled = True
            logger.warning("downstream.log_lost", extra={"fields": {"path": str(self.path), "why": error.strerror}})

    def _consume_quota(self) -> bool:
        if self._now() - self._second >= 1:
            self._second, self._quota = self._now(), LINES_PER_SECOND
        self._quota -= 1
        if self._quota < 0:
            self._dropped += 1
        return self._quota >= 0

    def _write(self, line: bytes) -> None:
        make_private_folder(self.path.parent)
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, line)
            if os.fstat(file).st_size >= MAX_BYTES:
                with suppress(FileNotFoundError):  # another process has just rotated it
                    os.replace(self.path, self.path.with_suffix(ROTATED_SUFFIX))
        finally:
            os.close(file)


def read_last_lines(folder: Path, name: str, lines: int) -> list[str]:
    """Return the newest lines of a server's log, or none if there is no file."""
    kept: deque[str] = deque(maxlen=max(lines, 0))
    path = log_path(folder, name)
    for each in (path.with_suffix(ROTATED_SUFFIX), path):
        if each.is_file():
            kept.extend(each.read_text("utf-8", "replace").splitlines())
    return list(kept)
