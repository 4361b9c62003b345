"""Full-text query expressions from plain questions."""

from __future__ import annotations

import re

_WORD = re.compile(r"\w+(?:[_./:-]\w+)*", re.UNICODE)
_STOP_WORDS = frozenset(
    "a an and any are as at be by can could do does for from had has have how i if in into is it its me my of on or "
    "our should so than that the their them then there these they this to use was we what when where which who why "
    "will with would you your".split()
)


def build_match_expression(query: str) -> str | None:
    """Build an FTS5 expression that matches any of the query's words, or None if there are none.

    Words are quoted, so none is read as an operator. A compound such as `max_connections` becomes a phrase.
    """
    words = list(dict.fromkeys(word.lower() for word in _WORD.findall(query)))
    significant = [word for word in words if word not in _STOP_WORDS] or words
    return " OR ".join(f'"{word}"' for word in significant) if significant else None
