"""Text to the words it is indexed and searched by.

A plain word is folded to lower case without accents and stemmed. A name that people write and copy as one (`pg_dump`,
`--no-owner`, `postgresql.conf`, `getResult`) is kept whole, so that it finds itself, and split, so that its parts find
it. Scripts without spaces are cut into pairs of characters. Pure: the same text gives the same words everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from tantivy import Filter, TextAnalyzer, TextAnalyzerBuilder, Tokenizer

VERSION = 1
"""Counts the changes to what a text becomes here; an index made with another version is made anew."""

MAX_WORD = 64
"""Longer runs of characters (keys, hashes, data in a URL) are nothing that anybody types."""

FORMS_KEPT = 1 << 16
"""Distinct words whose forms are remembered; a large manual has about 30,000, and stemming one takes 3 µs."""

QUERIES_KEPT = 64
"""Queries whose words are remembered: each is asked of several indexes, and then of what they found."""

PART_WEIGHT = 0.7
"""What a part of a name counts in a query, where the name itself counts 1."""

COMMON_WORDS = frozenset(
    """
    a about after all also am an and any are as at be because been before being both but by can cannot could did do
    does doing done don during e.g each either else ever every few for from get gets got had has have having he her
    here his how however i i.e if in into is isn it its itself just let like may me might more most much must my
    need no nor not of off on once one only onto or other our ours out over own please quite rather s same shall she
    should show since so some still such t tell than that the their them then there these they this those through
    thus to too under until up upon us use used uses using very via want was way we were what when where whether
    which while who whom whose why will with within without would yes you your
    """.split()
)
"""Words that say nothing about what a text is about; in a heading they still tell one from another."""

_LINK = re.compile(
    r"!?\[((?:[^\[\]]++|\[[^\[\]]*+\])*+)\]"  # its text, in which brackets may stand
    r"\((?:<[^>\n]*>|[^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+\"[^\"\n]*\")?\)"
)
_RULE = re.compile(r"^[ \t]*(?:```\S*|~~~\S*|\|(?:\s*:?-+:?\s*\|)+|[-*_]{3,})[ \t]*$", re.MULTILINE)
_LEADER = re.compile(r"^[ \t]*(?:#{1,6}[ \t]+|>[ \t]?|[-*+][ \t]+)", re.MULTILINE)
_MARKS = str.maketrans({"`": None, "|": " "})
_BLANKS = re.compile(r"[ \t]*\n\s*|[ \t]{2,}")

_SPACELESS = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
"""Thai, Kana, Han and Hangul."""

_LETTER = rf"(?:(?![{_SPACELESS}])\w)"
_WORD = re.compile(
    rf"[{_SPACELESS}]+"
    r"|(?<![\w-])-[a-zA-Z](?![\w-])"  # an option of one letter
    rf"|{_LETTER}+(?:[-.:/@+'’]+{_LETTER}+)*(?:\+\+|\#)?"
)
_PLAIN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_RUN = re.compile(f"[{_SPACELESS}]+")
_ENDING = re.compile(r"['’](?:s|t|re|ve|ll|d|m)$", re.IGNORECASE)
_BETWEEN_NAMES = re.compile(r"\W+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z][a-z])")


def _analyser(*filters: Filter) -> TextAnalyzer:
    builder = TextAnalyzerBuilder(Tokenizer.raw())
    for one in filters:
        builder = builder.filter(one)
    return builder.build()


_folding = _analyser(Filter.lowercase(), Filter.ascii_fold())
_stemming = _analyser(Filter.lowercase(), Filter.ascii_fold(), Filter.stemmer("English"))


def plain_text(markdown: str) -> str:
    """The text as it is read: of a link its words and not its address, no fences, rules, ticks or table bars."""
    return _BLANKS.sub(_blank, _without_marks(_LEADER.sub("", _without_links(markdown)))).strip()


def _without_links(markdown: str) -> str:
    """Of a link its words alone; no fences and rules either."""
    return _RULE.sub("", _LINK.sub(r"\1", markdown) if "](" in markdown else markdown)


def _without_marks(text: str) -> str:
    return text.replace("**", "").translate(_MARKS)


def _blank(match: re.Match[str]) -> str:
    return "\n" if "\n" in match[0] else " "


def link_lengths(markdown: str) -> tuple[int, int]:
    """Characters of text that stand in links, and those that are only marks and addresses of links; roughly, as a link
    with brackets in its text or its address counts for less."""
    pieces = markdown.split("](")
    inside = marks = 0
    for before, after in pairwise(pieces):
        inside += len(before) - before.rfind("[") - 1
        marks += after.find(")") + len("[]()")
    return inside, marks


def context_of(title: str, path: Sequence[str]) -> tuple[str, ...]:
    """The titles that a passage stands under, the document's first, each once: `Notes` alone says nothing."""
    return tuple(path) if not title or title in path else (title, *path)


def index_words(text: str) -> list[str]:
    """Every word in the order of the text, with all of its forms."""
    return [form for word in _WORD.findall(text) for form in _forms(word)]


def words_in(markdown: str, asked: Mapping[str, float]) -> set[str]:
    """Those of the words asked for that a text has: what `index_words` of its plain text says, in less time."""
    written = set(_WORD.findall(_without_marks(_without_links(markdown))))
    return {form for word in written for form in _forms(word) if form in asked}


@lru_cache(maxsize=QUERIES_KEPT)
def query_words(text: str) -> Mapping[str, float]:
    """The words that a query asks for and how much each counts: as often as it stands there, a part of a name less."""
    weights: dict[str, float] = {}
    for word in _WORD.findall(text):
        for number, form in enumerate(_forms(word)):
            weights[form] = weights.get(form, 0.0) + (PART_WEIGHT if number else 1.0)
    return weights


def is_common(form: str) -> bool:
    """Whether it is the form of a word that says nothing about what a text is about."""
    return form in _COMMON_FORMS


@lru_cache(maxsize=FORMS_KEPT)
def _forms(word: str) -> tuple[str, ...]:
    """What one word of the text is indexed as: one form for a plain word, the whole and its parts for a name."""
    if _PLAIN.fullmatch(word):
        return (_stem(word),) if len(word) <= MAX_WORD else ()
    if _RUN.match(word):
        return _pairs(word)
    return tuple(form for form in _name_forms(_ENDING.sub("", word)) if len(form) <= MAX_WORD)


def _name_forms(name: str) -> Iterator[str]:
    """The name, the names inside of it (`information_schema` in `information_schema.columns`), and their words."""
    names = [part for part in _BETWEEN_NAMES.split(name) if part]
    if names != [name]:
        yield _fold(name)
    for part in names:
        yield from _part_forms(part)


def _part_forms(part: str) -> Iterator[str]:
    words = [word for piece in part.split("_") for word in _HUMP.split(piece) if word]
    if words and words != [part]:
        yield _fold(part)
    for word in words:
        yield _stem(word)


def _pairs(run: str) -> tuple[str, ...]:
    return tuple(a + b for a, b in pairwise(run)) or (run,)


def _fold(name: str) -> str:
    return _folding.analyze(name)[0]


def _stem(word: str) -> str:
    return _stemming.analyze(word)[0]


_COMMON_FORMS = frozenset(form for word in COMMON_WORDS for form in _forms(word))
