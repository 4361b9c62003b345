"""Lines to running text: line breaks removed, words dehyphenated, code and emphasis marked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from refdesk.documents.model import Span, SpanKind

from .layout import Line
from .page_reader import Word

WHOLE_WORD = 3
"""Letters; shorter parts next to a hyphen are more often syllables."""

_HEAD = re.compile(r"[^\W\d_]+$")
_TAIL = re.compile(r"[^\W\d_]+")
_VOCABULARY = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")

Vocabulary = set[str]


def learn_words(vocabulary: Vocabulary, lines: Iterable[Line]) -> None:
    """Record the words inside of lines, where they can't be hyphenated."""
    for line in lines:
        text = line.text
        vocabulary.update(_VOCABULARY.findall(text[: text.rfind(" ")].lower() if text.endswith("-") else text.lower()))


def join_lines(lines: Sequence[Line], vocabulary: Vocabulary) -> tuple[str, tuple[Span, ...]]:
    """Join lines to one text with spans."""
    writer = _Writer(vocabulary)
    for line in lines:
        writer.add_line(line.words)
    text, kinds = "".join(writer.pieces), writer.kinds
    # Uniform formatting is dropped, unless it is code.
    is_uniform = len(kinds) == 1 and kinds[0][2] != "code"
    return text, () if is_uniform else tuple(Span(start, end, kind) for start, end, kind in kinds if kind)


class _Writer:
    """Builder of text and spans, word by word."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.pieces: list[str] = []
        self._length = 0
        self.kinds: list[tuple[int, int, SpanKind | None]] = []

    def add_line(self, words: Sequence[Word]) -> None:
        for place, word in enumerate(words):
            if self.pieces and not (place and word.glued):
                self._separate(word, first=not place)
            start = self._length
            self._add(word.text)
            kind = _classify_word(word)
            if self.kinds and self.kinds[-1][2] == kind:
                self.kinds[-1] = (self.kinds[-1][0], self._length, kind)
            else:
                self.kinds.append((start, self._length, kind))

    def _separate(self, word: Word, first: bool) -> None:
        last = self.pieces[-1]
        if not first or not last.endswith("-") or len(last) < 2:
            self._add(" ")
            return
        joint = _choose_joint(last[:-1], word.text, self._vocabulary)
        if not joint:  # drop the hyphen
            self.pieces[-1] = last[:-1]
            self._length -= 1
            start, end, kind = self.kinds[-1]
            self.kinds[-1] = (start, end - 1, kind)
        elif joint == " ":
            self._add(" ")

    def _add(self, text: str) -> None:
        self.pieces.append(text)
        self._length += len(text)


def _classify_word(word: Word) -> SpanKind | None:
    font = word.font
    if font.fixed:
        return "code"
    if font.bold:
        return "strong"
    return "emphasis" if font.italic and any(map(str.isalpha, word.text)) else None


def _choose_joint(before: str, after: str, vocabulary: Vocabulary) -> str:
    """Return what joins a word divided at a line end: nothing, its hyphen, or a space."""
    if before.endswith("-"):
        return " "
    head, tail = _HEAD.search(before), _TAIL.match(after)
    if head is None or tail is None or not tail[0][0].islower():
        return "-"
    start, end = head[0].lower(), tail[0].lower()
    if start + end in vocabulary:
        return ""
    if f"{start}-{end}" in vocabulary:
        return "-"
    both_words = min(len(start), len(end)) >= WHOLE_WORD and start in vocabulary and end in vocabulary
    return "-" if both_words else ""


def normalize_letters(text: str) -> str:
    """Return the letters and digits in lower case, for comparison."""
    return "".join(filter(str.isalnum, text.casefold()))
