"""Terms of questions and texts, for extractive answers. The analyzer of the full-text index finds and stems them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from refdesk.documents.tokens import token_ids
from refdesk.engines.analyzer import extract_index_terms, is_stop_word, split_words

_FILLERS = frozenset(
    extract_index_terms(
        "actually anyone come exactly explain find getting give given go goes good help him instead know lot make many "
        "mean now possible really say see someone something take thing things ways well whatever won yourself doesn "
        "didn aren wasn ve ll re"
    )
)
"""Words that don't say what a question is about, beyond the stop words of the index."""

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
    words = dict(split_words(question))
    significant = {
        word: stems
        for word, stems in words.items()
        if not is_stop_word(stems[0]) and stems[0] not in _FILLERS and (len(word) > 1 or not word.isascii())
    }
    terms: dict[str, Term] = {}
    for word, (stem, *parts) in (significant or words).items():
        worth = NAME_FACTOR if _is_name(word, question) else 1.0
        terms.setdefault(stem, Term(stem, worth * _weigh(word.lower()), frozenset(parts) - {stem}))
    return tuple(terms.values())


def extract_stems(text: str) -> frozenset[str]:
    """Return the stems of a text; of names, the whole and the parts."""
    return frozenset(extract_index_terms(text))


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


@lru_cache(maxsize=16_384)
def _weigh(word: str) -> float:
    ids = token_ids(word, 2)
    return math.log(max(2, ids[0] - FIRST_WORD_ID)) if len(ids) == 1 and ids[0] != UNKNOWN_ID else RARE_WEIGHT
