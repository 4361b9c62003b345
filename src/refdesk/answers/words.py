"""Term extraction and stemming for extractive answers.

The stemmer is deliberately simple: two forms of a word only have to come out equal, and a wrong match costs little
here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from refdesk.documents.tokens import token_ids

STOP_WORDS = frozenset(
    "a about actually all also am an and any anyone are as at be because been being but by can cannot come could did "
    "do does doing done each else even every exactly explain find for from get gets getting give given go goes good "
    "had has have having he help her here him his how i if in instead into is isn it its just know let like lot make "
    "many may me mean might more most much must my need needs no not now of off on one only or other our out over own "
    "please possible really same say see shall she should show so some someone something still such take tell than "
    "that the their them then there these they thing things this those through to too up us use used uses using very "
    "want was way ways we well were what whatever when where whether which while who whose why will with within "
    "without won would you your yourself don doesn didn aren wasn ve ll re".split()
)
"""Words that do not say what a question is about."""

FIRST_WORD_ID, WORD_IDS = 1996, 28_000
"""The embedding model's vocabulary lists whole words by frequency in English, so a word's id indicates its rarity."""

UNKNOWN_ID = 100
"""Vocabulary id of unknown words."""

RARE_WEIGHT = math.log(WORD_IDS)
"""Weight of a word that is not in the vocabulary as a whole: usually a name, and the topic of a question."""

NAME_FACTOR = 2.0
"""Factor for names, spelled with a capital or an underscore: an answer without the name is about something else."""

PARTS_FACTOR = 0.5
"""Factor for the parts of a name without the name: `max connections` for `max_connections`."""

_NAME = re.compile(r"[^\W_]+(?:[_.:/-]+[^\W_]+)*")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
_IDEOGRAPHS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_ENDINGS = (
    "izations", "ization", "ations", "ation", "ators", "ator", "ating", "ated", "ates", "ate", "ments", "ment",
    "ings", "ing", "ions", "ion", "ies", "ied", "ers", "er", "ed", "es", "ly", "s", "e", "y",
)  # fmt: skip
_SHORT_ENDINGS = frozenset(("ing", "ings", "ies", "ied", "ed", "es", "s", "e", "y"))


@dataclass(frozen=True, slots=True)
class Term:
    """A word of a question, with its weight and its parts if it is a compound name."""

    stem: str
    weight: float
    parts: frozenset[str]

    def match(self, stems: frozenset[str]) -> float:
        """Return how much of the term, from 0 to 1, is among the stems of a text."""
        if self.stem in stems:
            return 1.0
        return PARTS_FACTOR * len(self.parts & stems) / len(self.parts) if self.parts else 0.0


def extract_terms(question: str) -> tuple[Term, ...]:
    """Return the distinct significant words of a question; all of its words if none is."""
    names = dict.fromkeys(_split_words(question))
    telling = [name for name in names if name.lower() not in STOP_WORDS and (len(name) > 1 or not name.isascii())]
    terms: dict[str, Term] = {}
    for name in telling or names:
        stem = _normalize(name)
        terms.setdefault(stem, _build_term(name, stem, is_name=_is_name(name, question)))
    return tuple(terms.values())


def extract_stems(text: str) -> frozenset[str]:
    """Return the stems of a text; of names, the whole and the parts."""
    return frozenset(stem for name in _split_words(text) for stem in _stem_parts(name))


def measure_coverage(
    terms: tuple[Term, ...], stems: frozenset[str], context: frozenset[str], context_weight: float
) -> float:
    """Return the weighted share of a question that a text contains; terms only in its context count less."""
    whole = sum(term.weight for term in terms)
    found = sum(term.weight * max(term.match(stems), context_weight * term.match(context)) for term in terms)
    return found / whole if whole else 0.0


def _is_name(name: str, question: str) -> bool:
    begins = question.lstrip(" \"'¿¡(").startswith(name) and name[1:].islower()
    return "_" in name or (not name.islower() and not name.isdigit() and not begins and not question.isupper())


def _build_term(name: str, stem: str, is_name: bool) -> Term:
    worth = NAME_FACTOR if is_name else 1.0
    return Term(stem, worth * _weigh(name.lower()), _stem_parts(name) - {stem})


def _split_words(text: str) -> Iterator[str]:
    """Yield words and names; runs of ideographs as overlapping pairs, as they have no spaces."""
    for name in _NAME.findall(text):
        if not _IDEOGRAPHS.search(name):
            yield name
            continue
        for run in _IDEOGRAPHS.findall(name):
            yield from (run[at : at + 2] for at in range(max(1, len(run) - 1)))
        yield from _NAME.findall(_IDEOGRAPHS.sub(" ", name))


@lru_cache(maxsize=65_536)
def _stem_parts(name: str) -> frozenset[str]:
    parts = _PART.findall(name)
    return frozenset((_normalize(name), *(_stem(part.lower()) for part in parts if len(part) > 1)))


def _normalize(name: str) -> str:
    return _stem(name.lower()) if name.isalpha() else name.lower()


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    if not word.isascii():
        return word
    for ending in _ENDINGS:
        least = 3 if ending in _SHORT_ENDINGS else 4
        if word.endswith(ending) and len(word) - len(ending) >= least and not word.endswith("ss"):
            return _undouble(word.removesuffix(ending))
    return word


def _undouble(stem: str) -> str:
    """Undo the doubling of a consonant before an ending: `setting` and `set`."""
    doubled = len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "aeioulsz"
    return stem[:-1] if doubled else stem


@lru_cache(maxsize=16_384)
def _weigh(word: str) -> float:
    ids = token_ids(word, 2)
    return math.log(max(2, ids[0] - FIRST_WORD_ID)) if len(ids) == 1 and ids[0] != UNKNOWN_ID else RARE_WEIGHT
