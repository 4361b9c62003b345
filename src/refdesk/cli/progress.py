"""Progress bar on standard error. It prints nothing if that isn't a terminal."""

from __future__ import annotations

import shutil
import sys
from typing import Protocol

BAR_WIDTH = 24
"""Characters of the bar itself."""


class ProgressStream(Protocol):
    """The part of a text stream that a progress bar needs."""

    def isatty(self) -> bool: ...

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...


class ProgressBar:
    """Progress of a batch, including partial progress of its items."""

    def __init__(self, total: int, stream: ProgressStream | None = None) -> None:
        self._total = total
        self._stream: ProgressStream = stream or sys.stderr
        self._is_enabled = self._stream.isatty()
        self._done = 0
        self._parts: dict[str, float] = {}

    def advance(self, name: str, fraction: float, activity: str) -> None:
        """Set the progress of one item, from 0 to 1."""
        self._parts[name] = min(max(fraction, 0.0), 1.0)
        self._redraw(f"{name}: {activity}" if activity else name)

    def finish(self, name: str) -> None:
        """Count one item as done, whether it succeeded or failed."""
        self._parts.pop(name, None)
        self._done += 1
        self._redraw(name)

    def update(self, done: int, fraction: float, activity: str) -> None:
        """Set the number of finished items and the overall fraction directly."""
        self._done = done
        self._render(fraction, activity)

    def clear(self) -> None:
        """Erase the bar's line."""
        if self._is_enabled:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _redraw(self, label: str) -> None:
        self._render((self._done + sum(self._parts.values())) / max(self._total, 1), label)

    def _render(self, fraction: float, label: str) -> None:
        if not self._is_enabled:
            return
        filled = round(BAR_WIDTH * min(max(fraction, 0.0), 1.0))
        line = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {self._done}/{self._total} {label}"
        width = shutil.get_terminal_size().columns - 1
        self._stream.write("\r\x1b[K" + "".join(c for c in line if c.isprintable())[:width])
        self._stream.flush()
