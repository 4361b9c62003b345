"""A bar on the terminal; nothing at all where standard error is not one."""

from __future__ import annotations

import shutil
import sys
from typing import Protocol

BAR = 24
"""Characters of the bar itself."""


class Terminal(Protocol):
    """As much of a text stream as a bar needs."""

    def isatty(self) -> bool: ...

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...


class ProgressBar:
    """How far a batch of things is: those that are done, and how far those under way are."""

    def __init__(self, total: int, stream: Terminal | None = None) -> None:
        self._total = total
        self._stream: Terminal = stream or sys.stderr
        self._shown = self._stream.isatty()
        self._done = 0
        self._parts: dict[str, float] = {}

    def advance(self, name: str, share: float, doing: str) -> None:
        """Part of one thing is done: a share from 0 to 1."""
        self._parts[name] = min(max(share, 0.0), 1.0)
        self._draw(f"{name}: {doing}" if doing else name)

    def finish(self, name: str) -> None:
        """One thing is done, well or not."""
        self._parts.pop(name, None)
        self._done += 1
        self._draw(name)

    def report(self, done: int, share: float, doing: str) -> None:
        """All of it at once, for who counts on their own: how many are done, and the share of all work that is."""
        self._done = done
        self._show(share, doing)

    def clear(self) -> None:
        """Leave the line as it was found."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _draw(self, words: str) -> None:
        self._show((self._done + sum(self._parts.values())) / max(self._total, 1), words)

    def _show(self, share: float, words: str) -> None:
        if not self._shown:
            return
        filled = round(BAR * min(max(share, 0.0), 1.0))
        line = f"[{'#' * filled}{'.' * (BAR - filled)}] {self._done}/{self._total} {words}"
        width = shutil.get_terminal_size().columns - 1
        self._stream.write("\r\x1b[K" + "".join(c for c in line if c.isprintable())[:width])
        self._stream.flush()
