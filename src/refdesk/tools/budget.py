"""How much of one document may be read: so many calls and tokens a minute, and no blocked word."""

from __future__ import annotations

import re
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from refdesk.errors import RateLimited, ToolFailure

WINDOW_SECONDS = 60.0

MAX_KEYS = 10_000
"""Documents that are counted at a time; one that is being read is never forgotten early, or it could be read twice."""

REDACTED = "[redacted]"

_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")


class TextBlocked(ToolFailure):
    """The text holds a word that this desk does not hand out."""


@dataclass(slots=True)
class _Reads:
    """What was read of one document within the window: when, and how many tokens."""

    entries: deque[tuple[float, int]] = field(default_factory=deque)
    tokens: int = 0


class ReadingRate:
    """A moving window per key; keys are tuples, so no two can be spelled alike."""

    def __init__(self, calls: int, tokens: int, *, now: Callable[[], float] = time.monotonic) -> None:
        self._calls = calls
        self._tokens = tokens
        self._now = now
        self._reads: dict[tuple[str, ...], _Reads] = {}

    def admit(self, key: tuple[str, ...]) -> None:
        """Count a call, or refuse it until the window has room."""
        now = self._now()
        reads = self._current(key, now)
        if len(reads.entries) >= self._calls or reads.tokens >= self._tokens:
            raise RateLimited(
                f"This document was read too often or too much in the last minute (at most {self._calls} calls and "
                f"{self._tokens} tokens); wait, or read another.",
                retry_after=self._room_at(reads) - now,
            )
        reads.entries.append((now, 0))

    def spend(self, key: tuple[str, ...], tokens: int) -> None:
        """Count what a call handed out."""
        reads = self._reads.get(key)
        if reads is not None and reads.entries:
            at, spent = reads.entries.pop()
            reads.entries.append((at, spent + tokens))
            reads.tokens += tokens

    def _room_at(self, reads: _Reads) -> float:
        """When enough of what was read is out of the window."""
        calls, tokens = len(reads.entries), reads.tokens
        for at, spent in reads.entries:
            calls, tokens = calls - 1, tokens - spent
            if calls < self._calls and tokens < self._tokens:
                return at + WINDOW_SECONDS
        return self._now() + WINDOW_SECONDS

    def _current(self, key: tuple[str, ...], now: float) -> _Reads:
        if key not in self._reads and len(self._reads) >= MAX_KEYS:
            self._forget_idle(now)
        reads = self._reads.setdefault(key, _Reads())
        _expire(reads, now)
        return reads

    def _forget_idle(self, now: float) -> None:
        for key, reads in list(self._reads.items()):
            _expire(reads, now)
            if not reads.entries:
                del self._reads[key]
        if len(self._reads) >= MAX_KEYS:
            raise RateLimited(
                "Too many documents are being read at once; try again in a minute.", retry_after=WINDOW_SECONDS
            )


def _expire(reads: _Reads, now: float) -> None:
    while reads.entries and reads.entries[0][0] <= now - WINDOW_SECONDS:
        reads.tokens -= reads.entries.popleft()[1]


class Blocklist:
    """Words that are not handed out, whole words in any case."""

    def __init__(self, keywords: Sequence[str], action: Literal["refuse", "redact"]) -> None:
        words = [_folded(word) for word in keywords if word.strip()]
        pattern = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
        self._pattern = re.compile(rf"(?<!\w)(?:{pattern})(?!\w)", re.IGNORECASE) if words else None
        self._redacts = action == "redact"

    @property
    def is_empty(self) -> bool:
        """Whether every text may be handed out."""
        return self._pattern is None

    def shown(self, text: str) -> str:
        """The text, or a few words in its place where it may not be handed out."""
        try:
            return self.screened(text)
        except TextBlocked:
            return "(not shown: it holds a word that this desk does not hand out)"

    def screened(self, text: str) -> str:
        """The text as it may be handed out."""
        if self._pattern is None:
            return text
        if self._redacts:
            text = self._pattern.sub(REDACTED, text)
        # What only looks different (full-width letters, invisible characters between them) cannot be cut out exactly.
        if self._pattern.search(_folded(text)):
            raise TextBlocked("This text holds a word that this desk does not hand out; read another part.")
        return text


def _folded(text: str) -> str:
    return _INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).casefold().strip()
