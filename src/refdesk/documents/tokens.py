"""Token counts: the WordPiece tokenizer of the embedding model (BERT, uncased), and estimates for other models.

The tokenizer needs only the vocabulary, and caches words since most repeat. The tokenizers library would add some
thirty megabytes. One difference is intended: `[SEP]` in a document is plain text, never a control token.
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
"""Cached words, which bounds the memory that unusual texts can take."""

UNKNOWN = "[UNK]"

CHARACTERS_PER_TOKEN = 4
"""Estimate for text that isn't tokenized, and for words that the vocabulary lacks."""

MAX_CHARACTERS_PER_TOKEN = 20
"""Lower bound of an estimate: runs of blanks or of one letter are few tokens in the vocabulary, but many to models."""

_WORDS = re.compile(r"[!-/:-@\[-`{-~]|[^\s!-/:-@\[-`{-~]+")
_IDEOGRAPH = re.compile(
    r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b81f\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f]"
)
_NON_ASCII = re.compile(r"[^\t\n\r -~]+")
_CONTROLS = frozenset(range(32)).union({127}).difference(map(ord, "\t\n\r"))
_ASCII = {code: None if code in _CONTROLS else chr(code).lower() for code in range(128)}
"""Lower case without control characters, in one pass."""


def count_tokens(text: str) -> int:
    """Count the tokens of a text, without the two special ones."""
    return sum(map(_count_pieces, _WORDS.findall(_normalize(text))))


def measure_tokens(text: str) -> int:
    """Estimate the tokens of a text as language models count them. A long word isn't one unknown token to them."""
    return max(sum(map(_measure_word, _WORDS.findall(_normalize(text)))), len(text) // MAX_CHARACTERS_PER_TOKEN)


@lru_cache(maxsize=WORD_CACHE_SIZE)
def measure_word(word: str) -> int:
    """Estimate the tokens of a single word, cached."""
    return measure_tokens(word)


def estimate_tokens(characters: int) -> int:
    """Estimate the tokens of so many characters, where tokenizing would cost too much."""
    return characters // CHARACTERS_PER_TOKEN


def token_ids(text: str, limit: int) -> list[int]:
    """Return the ids of the first `limit` tokens of a text, without the two special ones."""
    return _load_vocabulary().ids(text, limit)


class WordPieces:
    """WordPiece vocabulary; the id of a piece is its line number."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self._numbers = {piece: number for number, piece in enumerate(pieces)}
        self._unknown = (self.number(UNKNOWN),)
        self.word = lru_cache(maxsize=WORD_CACHE_SIZE)(self._split_word)
        """The cached pieces of one word."""

    def number(self, piece: str) -> int:
        """Return the id of a piece. Raises `KeyError`."""
        return self._numbers[piece]

    def ids(self, text: str, limit: int) -> list[int]:
        """Return the ids of the first `limit` pieces of a text."""
        found: list[int] = []
        for word in _WORDS.findall(_normalize(text)):
            found += self.word(word)
            if len(found) >= limit:
                return found[:limit]
        return found

    def _split_word(self, word: str) -> tuple[int, ...]:
        """Split a word greedily into the longest known pieces; an unknown rest makes the whole word unknown."""
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
    """Lower the case and drop accents and control characters, as the model does."""
    return text.translate(_ASCII) if text.isascii() else _NON_ASCII.sub(_normalize_run, text).lower()


def _normalize_run(run: re.Match[str]) -> str:
    """Normalize characters beyond ASCII, which don't depend on their neighbours."""
    text = unicodedata.normalize("NFD", "".join(map(_clean_character, run[0])))
    return "".join(map(_normalize_character, text))


@lru_cache(maxsize=4096)
def _clean_character(character: str) -> str:
    """Map any whitespace to a space, drop invisible characters, and separate ideographs."""
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


@lru_cache(maxsize=WORD_CACHE_SIZE)
def _measure_word(word: str) -> int:
    return len(word) // CHARACTERS_PER_TOKEN if len(word) > MAX_WORD else _count_pieces(word)


@cache
def _load_vocabulary() -> WordPieces:
    return WordPieces(resources.files(__package__).joinpath("wordpiece.txt").read_text("utf-8").splitlines())
