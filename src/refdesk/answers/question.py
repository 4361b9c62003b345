"""What is asked, and what is written in answer. Values only; every writer speaks in them."""

from __future__ import annotations

from dataclasses import dataclass

EXTRACTIVE = "extractive"
"""The name of the model that is none: sentences of the documents themselves, quoted."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and how its answer is to be written."""

    text: str
    max_tokens: int = 500
    temperature: float = 0.7
    model: str | None = None
    """The model that the caller wants, in place of the one that is set."""


@dataclass(frozen=True, slots=True)
class Written:
    """An answer. Its citation `[1]` means the first of the hits that it was written from."""

    text: str
    cited: tuple[int, ...]
    """Positions, from 0, of the hits that it cites."""
    model: str
    """`extractive`, or the model's name."""
    found: bool
    """Whether the documents hold an answer; when not, the text says so."""
