"""The intervals at which work on queued documents is looked for and tried again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Intervals in seconds."""

    look: float = 2.0
    """Between two looks for work that another process has queued or left behind."""
    trouble: float = 5.0
    """Before work is taken up again that a full disk or the like has stopped."""
    first_retry: float = 2.0
    """Before the second attempt to read a document or to have it embedded; each further one waits three times as
    long."""


PAUSES = Pauses()
