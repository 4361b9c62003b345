"""Progress bar on standard error. It prints nothing if that isn't a terminal."""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

BAR_WIDTH = 24
"""Characters of the bar itself."""


class ProgressBar:
    """Progress of a batch, including partial progress of its items."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._total = total
        self._stream = stream or sys.stderr
        self._is_enabled = self._stream.isatty()
        self._done = 0
        self._parts: dict[str, float] = {}

    def advance(self, name: str, fraction: float, activity: str) -> None:
        """Set the progress of one item, from 0 to 1."""
        self._parts[name] = min(max(fraction, 0.0), 1.0)
        self.update(self._done, self._sum_up(), f"{name}: {activity}" if activity else name)

    def finish(self, name: str) -> None:
        """Count one item as done, whether it succeeded or failed."""
        self._parts.pop(name, None)
        self._done += 1
        self.update(self._done, self._sum_up(), name)

    def _sum_up(self) -> float:
        return (self._done + sum(self._parts.values())) / max(self._total, 1)

    def update(self, done: int, fraction: float, activity: str) -> None:
        """Set the number of finished items and the overall fraction directly."""
        self._done = done
        if not self._is_enabled:
            return
        filled = round(BAR_WIDTH * min(max(fraction, 0.0), 1.0))
        line = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done}/{self._total} {activity}"
        width = shutil.get_terminal_size().columns - 1
        self._stream.write("\r\x1b[K" + "".join(c for c in line if c.isprintable())[:width])
        self._stream.flush()

    def clear(self) -> None:
        """Erase the bar's line."""
        if self._is_enabled:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
