"""Questions to a corpus, drawn from its own chunks: half of them headings, half sentences, always the same."""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Sequence

import orjson

FEWEST_WORDS, MOST_WORDS = 5, 15
"""Of a sentence: about what agents send when they search documentation."""

SEED = 4
_SENTENCE = re.compile(r"[A-Z][^.!?\n|`*\[\]]+[.!?]")


def questions(database: sqlite3.Connection, count: int) -> list[str]:
    """So many different questions, from chunks all over the corpus."""
    keys = [row[0] for row in database.execute("SELECT key FROM chunks ORDER BY key")]
    random.Random(SEED).shuffle(keys)
    found: dict[str, None] = {}
    for key in keys:
        path, text = database.execute("SELECT path, text FROM chunks WHERE key = ?", (key,)).fetchone()
        made = heading(orjson.loads(path)) if len(found) % 2 else sentence(text)
        if made:
            found[made] = None
        if len(found) == count:
            break
    return list(found)


def heading(path: Sequence[str]) -> str | None:
    """The last two headings that a chunk stands under."""
    named = " ".join(path[-2:])
    return named if 1 < len(named.split()) <= MOST_WORDS else None


def sentence(text: str) -> str | None:
    """The first sentence of a usual length."""
    for match in _SENTENCE.finditer(text):
        if FEWEST_WORDS <= len(match[0].split()) <= MOST_WORDS:
            return match[0][:-1]
    return None
