"""Words as a search compares them: without endings, names taken apart, rare ones worth more. Pure text in, values out.

This is no stemmer out of a textbook: two forms of a word need only come out equal, and a wrong match costs little here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from refdesk.documents.tokens import token_ids

COMMON = frozenset(
    "a about actually all also am an and any anyone are as at be because been being but by can cannot come could did "
    "do does doing done each else even every exactly explain find for from get gets getting give given go goes good "
    "had has have having he help her here him his how i if in instead into is isn it its just know let like lot make "
    "many may me mean might more most much must my need needs no not now of off on one only or other our out over own "
    "please possible really same say see shall she should show so some someone something still such take tell than "
    "that the their them then there these they thing things this those through to too up us use used uses using very "
    "want was way ways we well were what whatever when where whether which while who whose why will with within "
    "without won would you your yourself don doesn didn aren wasn ve ll re".split()
)
"""Words that say nothing of what a question is about."""

FIRST_WORD_ID, WORD_IDS = 1996, 28_000
"""The embedding model's vocabulary lists whole words from the most to the least frequent one in English: so a word's
place in it, from the first word on, tells how rare it is."""

UNKNOWN_ID = 100
"""What the vocabulary has for a word of which it knows nothing."""

RARE = math.log(WORD_IDS)
"""The weight of a word that the vocabulary does not have in one piece: a name, mostly, and what a question is about."""

NAME_WORTH = 2.0
"""What a word is worth by weight that is spelled as a name, with a capital or an underscore within the question: an
answer without what was named is an answer to something else."""

PARTS_WORTH = 0.5
"""What the parts of a name are worth, found without the name: `max connections` for `max_connections`."""

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
    """A word of a question: what it weighs, and its parts where it is a name of several."""

    form: str
    weight: float
    parts: frozenset[str]

    def share_in(self, forms: frozenset[str]) -> float:
        """How much of the word, from 0 to 1, is among the forms of a text."""
        if self.form in forms:
            return 1.0
        return PARTS_WORTH * len(self.parts & forms) / len(self.parts) if self.parts else 0.0


def terms_of(question: str) -> tuple[Term, ...]:
    """The telling words of a question, each once; all of its words when none tells."""
    names = dict.fromkeys(_names(question))
    telling = [name for name in names if name.lower() not in COMMON and (len(name) > 1 or not name.isascii())]
    terms: dict[str, Term] = {}
    for name in telling or names:
        form = _whole(name)
        terms.setdefault(form, _term(name, form, is_name=_is_name(name, question)))
    return tuple(terms.values())


def forms_of(text: str) -> frozenset[str]:
    """The words of a text without their endings; of names, the whole and the parts."""
    return frozenset(form for name in _names(text) for form in _forms(name))


def share_of(terms: tuple[Term, ...], forms: frozenset[str], context: frozenset[str], context_worth: float) -> float:
    """How much of a question, by weight, a text has; what only its context has (headings above it) is worth less."""
    whole = sum(term.weight for term in terms)
    found = sum(term.weight * max(term.share_in(forms), context_worth * term.share_in(context)) for term in terms)
    return found / whole if whole else 0.0


def _is_name(name: str, question: str) -> bool:
    begins = question.lstrip(" \"'¿¡(").startswith(name) and name[1:].islower()
    return "_" in name or (not name.islower() and not name.isdigit() and not begins and not question.isupper())


def _term(name: str, form: str, is_name: bool) -> Term:
    worth = NAME_WORTH if is_name else 1.0
    return Term(form, worth * _weight(name.lower()), _forms(name) - {form})


def _names(text: str) -> Iterator[str]:
    """Words and names; runs of ideographs, which have no blanks between words, as overlapping pairs."""
    for name in _NAME.findall(text):
        if not _IDEOGRAPHS.search(name):
            yield name
            continue
        for run in _IDEOGRAPHS.findall(name):
            yield from (run[at : at + 2] for at in range(max(1, len(run) - 1)))
        yield from _NAME.findall(_IDEOGRAPHS.sub(" ", name))


@lru_cache(maxsize=65_536)
def _forms(name: str) -> frozenset[str]:
    parts = _PART.findall(name)
    return frozenset((_whole(name), *(_stem(part.lower()) for part in parts if len(part) > 1)))


def _whole(name: str) -> str:
    return _stem(name.lower()) if name.isalpha() else name.lower()


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    if not word.isascii():
        return word
    for ending in _ENDINGS:
        least = 3 if ending in _SHORT_ENDINGS else 4
        if word.endswith(ending) and len(word) - len(ending) >= least and not word.endswith("ss"):
            return _undoubled(word.removesuffix(ending))
    return word


def _undoubled(stem: str) -> str:
    """`setting` and `set`: a consonant that was doubled for the ending is one again."""
    doubled = len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "aeioulsz"
    return stem[:-1] if doubled else stem


@lru_cache(maxsize=16_384)
def _weight(word: str) -> float:
    ids = token_ids(word, 2)
    return math.log(max(2, ids[0] - FIRST_WORD_ID)) if len(ids) == 1 and ids[0] != UNKNOWN_ID else RARE
