"""How much of one document may be read: so many calls and tokens a minute, and no blocked word."""

from __future__ import annotations

import re
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Literal

from refdesk.errors import RateLimited, ToolFailure

WINDOW_SECONDS = 60.0

MAX_DOCUMENTS = 2_000
MAX_TENANTS = 10_000
"""That are counted at a time. One that is being read is never forgotten early, or it could be read twice; so beyond
these bounds a tenant, and only it, has to wait."""

REDACTED = "[redacted]"

_MARKUP = re.compile(r"[*`\\]")
"""What Markdown puts inside a word."""


class TextBlocked(ToolFailure):
    """The text holds a word that this desk does not hand out."""


@dataclass(slots=True)
class Reading:
    """A call that was let in: when, and how many tokens it takes."""

    at: float
    tokens: int


class _Readings:
    """The readings of one document within the window, oldest first."""

    def __init__(self) -> None:
        self.entries: deque[Reading] = deque()

    @property
    def tokens(self) -> int:
        return sum(entry.tokens for entry in self.entries)

    def expire(self, now: float) -> None:
        while self.entries and self.entries[0].at <= now - WINDOW_SECONDS:
            self.entries.popleft()


class ReadingRate:
    """A moving window for each document of each tenant."""

    def __init__(self, calls: int, tokens: int, *, now: Callable[[], float] = time.monotonic) -> None:
        self._calls = calls
        self._tokens = tokens
        self._now = now
        self._tenants: dict[str, dict[str, _Readings]] = {}

    def admit(self, tenant: str, document: str, reserve: int = 0) -> Reading:
        """Let a call in that may take so many tokens, or refuse it until the window has room."""
        now = self._now()
        readings = self._of(tenant, document, now)
        if len(readings.entries) >= self._calls or readings.tokens >= self._tokens:
            raise RateLimited(
                f"This document was read too often or too much in the last minute (at most {self._calls} calls and "
                f"{self._tokens} tokens); wait, or read another.",
                retry_after=self._room_at(readings) - now,
            )
        reading = Reading(now, reserve)
        readings.entries.append(reading)
        return reading

    def _room_at(self, readings: _Readings) -> float:
        """When enough of what was read is out of the window."""
        calls, tokens = len(readings.entries), readings.tokens
        for entry in readings.entries:
            calls, tokens = calls - 1, tokens - entry.tokens
            if calls < self._calls and tokens < self._tokens:
                return entry.at + WINDOW_SECONDS
        return self._now() + WINDOW_SECONDS

    def _of(self, tenant: str, document: str, now: float) -> _Readings:
        if tenant not in self._tenants and len(self._tenants) >= MAX_TENANTS:
            self._tenants = {name: rest for name, documents in self._tenants.items() if (rest := _live(documents, now))}
        documents = self._tenants.setdefault(tenant, {})
        if document not in documents and len(documents) >= MAX_DOCUMENTS:
            documents = self._tenants[tenant] = _live(documents, now)
        if self._is_full(tenant, document):
            raise RateLimited(
                "Too many documents are being read at once; try again in a minute.", retry_after=WINDOW_SECONDS
            )
        readings = documents.setdefault(document, _Readings())
        readings.expire(now)
        return readings

    def _is_full(self, tenant: str, document: str) -> bool:
        documents = self._tenants[tenant]
        return len(self._tenants) > MAX_TENANTS or (document not in documents and len(documents) >= MAX_DOCUMENTS)


def _live(documents: dict[str, _Readings], now: float) -> dict[str, _Readings]:
    """Those of which something was read within the window."""
    for readings in documents.values():
        readings.expire(now)
    return {name: readings for name, readings in documents.items() if readings.entries}


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

    def blocks(self, text: str) -> bool:
        """Whether a text holds such a word, also where hyphens stand between its words."""
        return self._pattern is not None and bool(self._pattern.search(_folded(text.replace("-", " "))))

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
            # Not to be found in what stands for it.
            if not self._pattern.search(_folded(text.replace(REDACTED, " "))):
                return text
        # What only looks different (full-width letters, invisible characters between them) cannot be cut out exactly.
        if self._pattern.search(_folded(text)):
            raise TextBlocked("This text holds a word that this desk does not hand out; read another part.")
        return text


def _folded(text: str) -> str:
    """Text as a reader hears it: without case, accents, invisible characters and markup."""
    decomposed = unicodedata.normalize("NFKD", _MARKUP.sub("", unescape(text)))
    return (
        "".join(c for c in decomposed if c.isascii() or unicodedata.category(c) not in ("Mn", "Cf")).casefold().strip()
    )
