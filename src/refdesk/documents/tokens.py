"""A text in the embedding model's tokens, BERT's uncased word pieces: how many there are, and which.

This needs no more than the vocabulary, and most words come again: each is looked up once. The library made for it would
bring some thirty megabytes. One thing differs on purpose: `[SEP]` in a document is five letters, never a control token.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache, lru_cache
from importlib import resources

MAX_WORD = 100
"""Longer words are one unknown token to the model."""

WORD_CACHE_SIZE = 65_536
"""Words whose pieces are remembered, which bounds the memory that strange texts can take."""

UNKNOWN = "[UNK]"

_WORDS = re.compile(r"[!-/:-@\[-`{-~]|[^\s!-/:-@\[-`{-~]+")
_IDEOGRAPH = re.compile(
    r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b81f\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f]"
)
_NON_ASCII = re.compile(r"[^\t\n\r -~]+")
_CONTROLS = frozenset(range(32)).union({127}).difference(map(ord, "\t\n\r"))
_ASCII = {code: None if code in _CONTROLS else chr(code).lower() for code in range(128)}
"""Lower case without control characters, in one pass."""


def count_tokens(text: str) -> int:
    """The word pieces of a text, without the two that mark its ends."""
    return sum(map(_count_pieces, _WORDS.findall(_normalize(text))))


@lru_cache(maxsize=WORD_CACHE_SIZE)
def count_word_tokens(word: str) -> int:
    """The same for a single word, most of which come again."""
    return count_tokens(word)


def token_ids(text: str, limit: int) -> list[int]:
    """The first `limit` word pieces of a text as numbers of the vocabulary, without the two that mark its ends."""
    return _load_vocabulary().ids(text, limit)


class WordPieces:
    """A vocabulary of word pieces, and texts cut by it; a piece's number is its line in the file."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self._numbers = {piece: number for number, piece in enumerate(pieces)}
        self._unknown = (self.number(UNKNOWN),)
        self.word = lru_cache(maxsize=WORD_CACHE_SIZE)(self._split_word)
        """The pieces of one word."""

    def number(self, piece: str) -> int:
        """The number of a piece that has to be there; raises `KeyError`."""
        return self._numbers[piece]

    def ids(self, text: str, limit: int) -> list[int]:
        """The first `limit` pieces of a text."""
        found: list[int] = []
        for word in _WORDS.findall(_normalize(text)):
            found += self.word(word)
            if len(found) >= limit:
                return found[:limit]
        return found

    def _split_word(self, word: str) -> tuple[int, ...]:
        """The longest known piece first; a word with an unknown rest is unknown as a whole."""
        numbers = self._numbers
        if len(word) > MAX_WORD:
            return self._unknown
        if (whole := numbers.get(word)) is not None:
            return (whole,)
        found: list[int] = []
        start, prefix = 0, ""
        while start < len(word):
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in numbers), None)
            if end is None:
                return self._unknown
            found.append(numbers[prefix + word[start:end]])
            start, prefix = end, "##"
        return tuple(found)


def _normalize(text: str) -> str:
    """Lower case, accents and control characters dropped: the model does not see them."""
    if text.isascii():
        return text.translate(_ASCII)
    return _NON_ASCII.sub(_normalize_run, text).lower()


def _normalize_run(run: re.Match[str]) -> str:
    """Characters beyond ASCII and its controls, which no neighbour changes."""
    text = unicodedata.normalize("NFD", "".join(map(_clean_character, run[0])))
    return "".join(map(_normalize_character, text))


@lru_cache(maxsize=4096)
def _clean_character(character: str) -> str:
    """A space for every kind of space, nothing for what is not seen, and ideographs as words of their own."""
    if character in "\t\n\r":
        return " "
    category = unicodedata.category(character)
    if category in ("Cc", "Cf", "Co") or character == "\ufffd":
        return ""
    if category.startswith("Z"):
        return " "
    return f" {character} " if _IDEOGRAPH.match(character) else character


@lru_cache(maxsize=4096)
def _normalize_character(character: str) -> str:
    category = unicodedata.category(character)
    if category == "Mn":
        return ""
    return f" {character} " if category.startswith("P") else character.lower()


@lru_cache(maxsize=WORD_CACHE_SIZE)
def _count_pieces(word: str) -> int:
    return len(_load_vocabulary().word(word))


@cache
def _load_vocabulary() -> WordPieces:
    return WordPieces(resources.files(__package__).joinpath("wordpiece.txt").read_text("utf-8").splitlines())
