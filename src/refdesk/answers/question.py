"""Questions and written answers."""

from __future__ import annotations

from dataclasses import dataclass

EXTRACTIVE = "extractive"
"""Model name of extractive answers."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the options for its answer."""

    text: str
    max_tokens: int = 500
    temperature: float = 0.7
    model: str | None = None
    """The caller's choice of model, instead of the configured one."""


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """An answer; its citation `[1]` refers to the first of the hits it was written from."""

    text: str
    cited: tuple[int, ...]
    """Indexes, from 0, of the cited hits."""
    model: str
    """`extractive`, or the model's name."""
    found: bool
    """Whether an answer was found."""
