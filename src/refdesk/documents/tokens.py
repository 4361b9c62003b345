"""How many tokens a text has for the embedding model: BERT's uncased word pieces, counted and not encoded.

Counting needs no more than the vocabulary, and most words come again: each is looked up once. The library that encodes
would bring some thirty megabytes for this.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache
from importlib import resources

MAX_WORD = 100
"""Longer words are one unknown token to the model."""

_WORDS = re.compile(r"[!-/:-@\[-`{-~]|[^\s!-/:-@\[-`{-~]+")
_IDEOGRAPH = re.compile(r"[㐀-鿿豈-﫿𠀀-𯨟]")


def count_tokens(text: str) -> int:
    """The word pieces of a text, without the two that mark its ends."""
    return sum(map(_pieces, _WORDS.findall(_plain(text))))


@lru_cache(maxsize=65_536)
def count_word_tokens(word: str) -> int:
    """The same for a single word, most of which come again."""
    return count_tokens(word)


def _plain(text: str) -> str:
    """Lower case, accents dropped: the model does not see them."""
    text = text.lower()
    if text.isascii():
        return text
    return "".join(map(_plain_character, unicodedata.normalize("NFD", text)))


@lru_cache(maxsize=4096)
def _plain_character(character: str) -> str:
    category = unicodedata.category(character)
    if category in ("Mn", "Cf"):
        return ""
    stands_alone = category.startswith("P") or _IDEOGRAPH.match(character)
    return f" {character} " if stands_alone else character


@lru_cache(maxsize=65_536)
def _pieces(word: str) -> int:
    """The pieces of one word, the longest known one first; a word with an unknown rest is one unknown token."""
    vocabulary = _vocabulary()
    if word in vocabulary or len(word) > MAX_WORD:
        return 1
    count = start = 0
    while start < len(word):
        prefix = "##" if start else ""
        end = next((end for end in range(len(word), start, -1) if prefix + word[start:end] in vocabulary), None)
        if end is None:
            return 1
        count, start = count + 1, end
    return count


@cache
def _vocabulary() -> frozenset[str]:
    return frozenset(resources.files(__package__).joinpath("wordpiece.txt").read_text("utf-8").splitlines())
