"""Cache results and the flags that mark them in a response. Answers are shared, so they are never mutated."""

from __future__ import annotations

from typing import Any, NamedTuple

from refdesk.calls import text_content

WireAnswer = dict[str, Any]
"""A tool result in its wire shape, so that a hit costs only a lookup."""

STALE_NOTE = (
    "(The knowledge base cannot answer at the moment: this is what it answered some minutes ago. "
    "Ask again later where being up to date matters.)"
)


class CacheResult(NamedTuple):
    """An answer and how it was obtained."""

    answer: WireAnswer
    is_cached: bool
    """Whether it was made for an earlier or a concurrent call."""
    is_stale: bool = False
    """Whether its TTL has passed and a new answer could not be made."""


def add_cache_flags(result: CacheResult) -> WireAnswer:
    """Return the answer with `cached` set where it has that field, and a note if it is stale."""
    answer = result.answer
    marks = {"cached": True} if result.is_cached and "cached" in answer.get("structuredContent", {}) else {}
    if result.is_stale:
        marks["stale"] = True
        answer = {**answer, "content": [*answer["content"], text_content(STALE_NOTE)]}
    if marks and "structuredContent" in answer:
        return {**answer, "structuredContent": {**answer["structuredContent"], **marks}}
    return answer
