"""A question in plain words becomes a full-text expression. Pure text in, text out."""

from __future__ import annotations

import re

_WORD = re.compile(r"\w+(?:[_./:-]\w+)*", re.UNICODE)
_STOP_WORDS = frozenset(
    "a an and any are as at be by can could do does for from had has have how i if in into is it its me my of on or "
    "our should so than that the their them then there these they this to use was we what when where which who why "
    "will with would you your".split()
)


def build_match_expression(query: str) -> str | None:
    """Any of the query's words, quoted so that none is taken for an operator; None when it has no word at all.

    A compound such as `max_connections` stays one phrase, which the index matches word after word.
    """
    words = list(dict.fromkeys(word.lower() for word in _WORD.findall(query)))
    significant = [word for word in words if word not in _STOP_WORDS] or words
    return " OR ".join(f'"{word}"' for word in significant) if significant else None
