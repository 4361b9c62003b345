"""Polling and retry intervals of ingestion."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Intervals in seconds."""

    queue_poll: float = 2.0
    """Polling interval for work that another process has queued or left behind."""
    error: float = 5.0
    """Delay before work continues after an error such as a full disk."""
    first_retry: float = 2.0
    """Delay before the second attempt to convert or embed a document. It triples with each further attempt."""


PAUSES = Pauses()
