"""What an answer says of itself when it was not made for this call. Its parts are shared, never changed."""

from __future__ import annotations

from typing import Any, NamedTuple

from refdesk.calls import text_content

WireAnswer = dict[str, Any]
"""An answer as it goes out, not what it was made from: to give it once more costs a look-up."""

STALE_NOTE = (
    "(The knowledge base cannot answer at the moment: this is what it answered some minutes ago. "
    "Ask again later where being up to date matters.)"
)


class Given(NamedTuple):
    """An answer, and what it is."""

    answer: WireAnswer
    is_kept: bool
    """Whether it was made for an earlier call, or for another one at the same time."""
    is_stale: bool = False
    """Whether its time is up, and a new one could not be had."""


def marked(given: Given) -> WireAnswer:
    """The answer, saying that it was kept where it has a word for that, and in any case when its time is up."""
    answer = given.answer
    marks = {"cached": True} if given.is_kept and "cached" in answer.get("structuredContent", {}) else {}
    if given.is_stale:
        marks["stale"] = True
        answer = {**answer, "content": [*answer["content"], text_content(STALE_NOTE)]}
    if marks and "structuredContent" in answer:
        return {**answer, "structuredContent": {**answer["structuredContent"], **marks}}
    return answer
