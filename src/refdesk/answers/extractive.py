"""The offline writer: sentences of the documents that answer a question, quoted word for word, with their sources.

It writes nothing of its own but the citations, and one sentence when the documents do not hold the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np
from anyio import to_thread
from numpy.typing import NDArray

from refdesk.answers.question import EXTRACTIVE, Question, Written
from refdesk.answers.quoting import Place, Selection, quotes
from refdesk.answers.sentences import Piece, pieces, readable, says_something
from refdesk.answers.words import Term, forms_of, share_of, terms_of
from refdesk.engines.base import Hit
from refdesk.errors import DependencyError

Vectors = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Awaitable[Vectors]]
"""Texts to vectors of length one, in one call."""

Parts = Sequence[Sequence[Piece]]
"""The pieces of each hit."""

MAX_HITS = 20
"""Hits beyond these add work, not answers."""

MAX_EMBEDDED = 24
"""Sentences that are compared by meaning: 40 found and refused as many of the questions below, at more cost."""

CONTEXT_WORTH = 0.6
"""A word that only the headings above a sentence have is worth so much of one in the sentence."""

BY_WORDS, BY_MEANING, BY_RANK = 0.40, 0.45, 0.15
"""What a sentence's score is made of, by weight."""

STANDALONE = {"sentence": 1.0, "row": 0.9, "code": 0.8}
"""Code and rows say less by themselves than a sentence that matches as well."""

GOOD_ENOUGH = 0.8
"""A piece is quoted when it scores so much of what the best one does."""

ALREADY_SAID = 0.8
"""A piece that shares so many of its words with another says the same again."""

ENOUGH_WORDS = 0.64
"""Without a model of meaning: how much of the question the best passage must have for the documents to answer it."""

ENOUGH_SUPPORT = 0.62
SUPPORT_BY_WORDS, SUPPORT_BY_MEANING = 0.6, 0.4
"""With one: that, and how near the nearest sentence is. All were chosen on one set: of 199 questions and phrases that
the PostgreSQL manual answers 195 are answered, and of 75 that it does not answer 69 are refused, all but 6 of the 35
that only seem to be about it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A piece of a hit that may be quoted."""

    place: Place
    piece: Piece
    forms: frozenset[str]
    context: frozenset[str]
    """The words of its hit's title and headings, and of the term that it defines."""
    words: float
    """How much of the question it has, by words."""
    heading: str


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate with its final score."""

    candidate: Candidate
    score: float
    meaning: float | None


async def extract(question: Question, hits: Sequence[Hit], embed: Embed | None = None) -> Written:
    """The answer in the documents' own sentences; `found` is False when they do not hold one."""
    terms = terms_of(question.text)
    parts = await to_thread.run_sync(lambda: [pieces(hit.text) for hit in hits[:MAX_HITS]])
    candidates = await to_thread.run_sync(_candidates, terms, parts, hits)
    likely = sorted(candidates, key=lambda one: -_before_meaning(one, hits))[:MAX_EMBEDDED]
    meanings = await _meanings(question.text, likely, embed) if embed and likely else None
    scored = _scored(likely, hits, meanings)
    if not scored or not _is_supported(terms, candidates, scored):
        return not_found(hits)
    return _quoted(question, scored, parts, hits)


def not_found(hits: Sequence[Hit]) -> Written:
    """The plain sentence that the documents do not hold the answer, with the nearest of them."""
    nearest: dict[str, int] = {}
    for position, hit in enumerate(hits):
        nearest.setdefault(hit.document.id, position)
    cited = tuple(nearest.values())[:3]
    if not cited:
        return Written("The documents do not hold the answer: nothing in them matches.", (), EXTRACTIVE, found=False)
    named = ", ".join(f"“{hits[at].document.title}” [{at + 1}]" for at in cited)
    return Written(f"The documents do not hold the answer; nearest to it are {named}.", cited, EXTRACTIVE, found=False)


def _candidates(terms: tuple[Term, ...], parts: Parts, hits: Sequence[Hit]) -> list[Candidate]:
    """Every piece that can be quoted, the same text only once: from the best hit that has it."""
    found: dict[str, Candidate] = {}
    for number, (hit, own) in enumerate(zip(hits, parts, strict=False)):
        above = forms_of(" ".join((hit.document.title, *hit.path)))
        context, lead = above, -1
        for place, piece in enumerate(own):
            if piece.kind in ("lead", "head"):
                context, lead = above | forms_of(piece.text), piece.block
                continue
            if piece.block > lead + 1:
                context = above
            if not says_something(piece.text):
                continue
            forms = forms_of(readable(piece.text))
            words = share_of(terms, forms, context, CONTEXT_WORTH)
            heading = hit.path[-1] if hit.path else hit.document.title
            candidate = Candidate(Place(number, place), piece, forms, context, words, heading)
            found.setdefault(" ".join(piece.text.split()).casefold(), candidate)
    return list(found.values())


def _rank_worth(candidate: Candidate, hits: Sequence[Hit]) -> float:
    """What the search thought of the hit, from 0 to 1: its place, and its score beside the best one's."""
    best = max(hit.score for hit in hits) or 1.0
    return 0.5 * hits[candidate.place.hit].score / best + 0.5 / (1 + candidate.place.hit)


def _before_meaning(candidate: Candidate, hits: Sequence[Hit]) -> float:
    score = BY_WORDS * candidate.words + BY_RANK * _rank_worth(candidate, hits)
    return score * STANDALONE[candidate.piece.kind]


async def _meanings(question: str, candidates: Sequence[Candidate], embed: Embed) -> list[float] | None:
    """How near each candidate is in meaning; None when the model cannot say, which words can do without."""
    texts = [question, *(f"{one.heading}: {readable(one.piece.text)}" for one in candidates)]
    try:
        vectors = np.asarray(await embed(texts), dtype=np.float32)
    except DependencyError:
        return None
    return [float(value) for value in np.nan_to_num(vectors[1:] @ vectors[0])]


def _scored(candidates: Sequence[Candidate], hits: Sequence[Hit], meanings: list[float] | None) -> list[Scored]:
    """Best first."""
    scored = []
    for number, one in enumerate(candidates):
        score = _before_meaning(one, hits)
        meaning = meanings[number] if meanings else None
        if meaning is not None:
            score += BY_MEANING * max(0.0, meaning) * STANDALONE[one.piece.kind]
        scored.append(Scored(one, score, meaning))
    return sorted(scored, key=lambda one: -one.score)


def _is_supported(terms: tuple[Term, ...], candidates: Sequence[Candidate], scored: Sequence[Scored]) -> bool:
    words = _passage_share(terms, candidates)
    meaning = max((one.meaning for one in scored if one.meaning is not None), default=None)
    if meaning is None:
        return words >= ENOUGH_WORDS
    return SUPPORT_BY_WORDS * words + SUPPORT_BY_MEANING * meaning >= ENOUGH_SUPPORT


def _passage_share(terms: tuple[Term, ...], candidates: Sequence[Candidate]) -> float:
    """How much of the question the best single passage has: words strewn over many passages answer nothing."""
    by_hit: dict[int, set[str]] = {}
    for one in candidates:
        by_hit.setdefault(one.place.hit, set(one.context)).update(one.forms, one.context)
    return max(share_of(terms, frozenset(forms), frozenset(), 0.0) for forms in by_hit.values())


def _quoted(question: Question, scored: Sequence[Scored], parts: Parts, hits: Sequence[Hit]) -> Written:
    """As many of the best pieces as say something new and fit."""
    selection = Selection(parts, question.max_tokens)
    said: list[frozenset[str]] = []
    for one in scored:
        if one.score < GOOD_ENOUGH * scored[0].score:
            break
        forms = one.candidate.forms
        if not any(_is_said(forms, other) for other in said) and selection.add(one.candidate.place):
            said.append(forms)
    if not selection.picked:
        return _too_long(scored[0].candidate.place.hit)
    quoted = quotes(tuple(dict.fromkeys((*selection.picked, *selection.places))), parts, hits)
    cited = tuple(dict.fromkeys(quote.hit for quote in quoted))
    return Written("\n\n".join(quote.text for quote in quoted), cited, EXTRACTIVE, found=True)


def _is_said(forms: frozenset[str], other: frozenset[str]) -> bool:
    return len(forms & other) >= ALREADY_SAID * len(forms | other)


def _too_long(hit: int) -> Written:
    text = f"The passage that answers this is longer than max_tokens allows: read it, or ask with more. [{hit + 1}]"
    return Written(text, (hit,), EXTRACTIVE, found=True)
