"""Which of the passages that were found answer best: words and meaning weighed against each other, then looked at.

Pure: values in, values out. `fuse` sees the scores of hundreds of candidates, `rank` the texts of the best ones.
The weights are small, few and the same for everything: a compromise between titles, questions, sentences and claims,
whose neighbours differ by less than such sets can tell apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from refdesk.engines.embedded import analyzer

Scores = NDArray[np.float64]

LEXICAL_WEIGHT = 0.5
"""What words count, where meaning counts the rest. More helps titles and costs claims that are worded otherwise."""

HEADING_WEIGHT = 0.1
"""For a passage under headings that hold all the words of the query; in part for a part of them."""

SUPPORT_WEIGHT = 0.2
"""For a passage whose document has other sections that are as good: a page about the matter beats one that mentions it.

Other passages of the same section do not count, or long texts would be preferred to short ones.
"""

SUPPORTERS = 2
"""Other sections of the document that are counted for that."""

LINK_LIST_PENALTY = 0.2
"""For a passage that is mainly links (a table of contents, an index): it names the matter and says nothing of it."""

LINK_LIST_SHARE = 0.5
"""As much of its text stands in links then."""

FEW_LINKS = 4
"""With fewer links than this a passage is no list of them, and none is looked for."""

NEXT_OF_DOCUMENT = 0.8
"""What each further section of one document counts, relative to the one before it, so that others are seen too."""

COPY_SHARE = 0.9
"""Two passages under the same headings that share as many of their words are the same passage, twice."""

LEAST_COSINE, MOST_COSINE = 0.15, 0.6
"""Below the first a passage has nothing to do with the query, from the second on all; of the model we carry."""

SURE_OF = 2
"""The first passages, of which one has to be near what was asked for the answer to be sure."""

HEADINGS_KEPT = 16_384
"""Headings whose words are remembered: most stand over many passages."""


class Candidate(NamedTuple):
    """A chunk that may answer, with what is known of it."""

    key: int
    fused: float
    """What `fuse` made of it among all that were found."""
    nearness: float | None
    """How near it is in meaning; None where nobody knows."""
    document: int
    section: str
    path: tuple[str, ...]
    title: str
    text: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A chunk in its place. The score is between 0 and 1 and falls with the place; near 0 it is no answer."""

    key: int
    score: float


@dataclass(slots=True)
class _Placed:
    """A candidate with the score that it is ordered by."""

    candidate: Candidate
    score: float


def fuse(lexical: Scores, semantic: Scores, *, weight: float = LEXICAL_WEIGHT) -> Scores:
    """A score between 0 and 1 for each candidate, from what words and what meaning say of it; NaN is silence.

    Each counts relative to its own best. Whoever knows how near in meaning the candidates are that only words found
    gives that too: nearness falls off so slowly that to take it for 0 would be far from the truth. A candidate whose
    meaning nobody knows yet is judged by its words, and where one of both says nothing at all, the other stands alone.
    """
    by_words, by_meaning = _relative(lexical), _relative(semantic)
    if np.isnan(by_words).all():
        return np.fmax(by_meaning, 0.0)
    said = np.fmax(by_words, 0.0)  # of a number and NaN, the number
    return weight * said + (1 - weight) * np.where(np.isnan(by_meaning), said, by_meaning)


def best_of(keys: NDArray[np.int64], scores: Scores, count: int) -> NDArray[np.intp]:
    """The places of the best scores, the best first; of equal ones the lower key's."""
    if len(scores) > count:
        lowest = np.partition(scores, -count)[-count]
        places = np.flatnonzero(scores >= lowest)
    else:
        places = np.arange(len(scores))
    return places[np.lexsort((keys[places], -scores[places]))[:count]]


def rank(query: str, candidates: Sequence[Candidate], limit: int) -> list[Ranked]:
    """The best passages, one of each section and none twice."""
    asked = _Asked(query)
    placed = _in_order(_looked_at(asked, candidates))
    placed = _in_order(_spread_over_documents(_one_of_each_section(placed)))
    best = _without_copies(placed, limit)
    if not best:
        return []
    relevance = _relevance(asked, best)
    highest = max(best[0].score, 1e-9)
    return [Ranked(one.candidate.key, relevance * max(one.score, 0.0) / highest) for one in best]


class _Asked:
    """The words of a query that say what it is about, or all where none does, and what each counts."""

    def __init__(self, query: str) -> None:
        asked = analyzer.query_words(query)
        self.weights = {word: weight for word, weight in asked.items() if not analyzer.is_common(word)} or asked
        self._whole = sum(self.weights.values())

    def share(self, found: Set[str]) -> float:
        """How much of it was found."""
        return sum([self.weights[word] for word in found]) / self._whole if found else 0.0

    def in_headings(self, candidate: Candidate) -> set[str]:
        """The words that stand in the headings over a passage."""
        found = set[str]()
        for heading in analyzer.context_of(candidate.title, candidate.path):
            found |= self.weights.keys() & _words_of(heading)
        return found


def _relative(found: Scores) -> Scores:
    """The scores as shares of the best one; what is below 0 has nothing to do with the query."""
    most = np.fmax.reduce(found, initial=0.0)
    return np.maximum(found, 0.0) / most if most > 0 else np.where(np.isnan(found), np.nan, 1.0)


def _in_order(placed: Iterable[_Placed]) -> list[_Placed]:
    return sorted(placed, key=lambda one: (-one.score, one.candidate.key))


def _looked_at(asked: _Asked, candidates: Sequence[Candidate]) -> Iterator[_Placed]:
    """Each candidate with all that speaks for it and against it."""
    best = _best_sections(candidates)
    for one in candidates:
        score = one.fused + HEADING_WEIGHT * asked.share(asked.in_headings(one))
        if one.document in best:
            score += SUPPORT_WEIGHT * _support(one.section, best[one.document])
        if _is_link_list(one.text):
            score -= LINK_LIST_PENALTY
        yield _Placed(one, score)


def _best_sections(candidates: Sequence[Candidate]) -> dict[int, list[tuple[float, str]]]:
    """Of each document that has several its best sections, by the best passage of each: one more than are counted."""
    found: dict[int, dict[str, float]] = {}
    for one in candidates:
        sections = found.setdefault(one.document, {})
        sections[one.section] = max(one.fused, sections.get(one.section, 0.0))
    return {
        document: sorted(((score, section) for section, score in sections.items()), reverse=True)[: SUPPORTERS + 1]
        for document, sections in found.items()
        if len(sections) > 1
    }


def _support(section: str, best: Sequence[tuple[float, str]]) -> float:
    """The mean of the document's best other sections; those that it does not have count 0."""
    return sum([score for score, other in best if other != section][:SUPPORTERS]) / SUPPORTERS


@lru_cache(maxsize=HEADINGS_KEPT)
def _words_of(heading: str) -> frozenset[str]:
    return frozenset(analyzer.index_words(heading))


def _is_link_list(text: str) -> bool:
    if text.count("](") < FEW_LINKS:
        return False
    inside, marks = analyzer.link_lengths(text)
    return inside > LINK_LIST_SHARE * (len(text) - marks)


def _one_of_each_section(placed: Iterable[_Placed]) -> Iterator[_Placed]:
    seen: set[tuple[int, str]] = set()
    for one in placed:
        place = (one.candidate.document, one.candidate.section)
        if place not in seen:
            seen.add(place)
            yield one


def _spread_over_documents(placed: Iterable[_Placed]) -> Iterator[_Placed]:
    factors: dict[int, float] = {}
    for one in placed:
        factor = factors.get(one.candidate.document, 1.0)
        factors[one.candidate.document] = factor * NEXT_OF_DOCUMENT
        one.score *= factor
        yield one


def _without_copies(placed: Iterable[_Placed], limit: int) -> list[_Placed]:
    """The first ones of which none says the same as one before it; other versions of a text are other texts."""
    kept: list[_Placed] = []
    said: dict[tuple[object, ...], list[str]] = {}
    for one in placed:
        if len(kept) >= limit:
            break
        candidate = one.candidate
        before = said.setdefault((candidate.title, candidate.path, candidate.version), [])
        if not any(_is_copy(candidate.text, other) for other in before):
            before.append(candidate.text)
            kept.append(one)
    return kept


def _is_copy(text: str, other: str) -> bool:
    one, two = set(text.casefold().split()), set(other.casefold().split())
    return len(one & two) >= COPY_SHARE * len(one | two)


def _relevance(asked: _Asked, best: Sequence[_Placed]) -> float:
    """How sure it is that there is an answer among the first few, from 0 to 1."""
    if all(one.candidate.nearness is None for one in best):
        return max(_by_words(asked, one.candidate) for one in best[:SURE_OF])
    most = 0.0
    for one in best[:SURE_OF]:
        by_meaning = _by_meaning(one.candidate)
        if 1 + by_meaning > 2 * most:  # else no words could make it more, and to find them takes long
            most = max(most, (_by_words(asked, one.candidate) + by_meaning) / 2)
    return most


def _by_words(asked: _Asked, candidate: Candidate) -> float:
    found = asked.in_headings(candidate)
    if len(found) < len(asked.weights):
        found |= analyzer.words_in(candidate.text, asked.weights)
    return asked.share(found)


def _by_meaning(candidate: Candidate) -> float:
    cosine = candidate.nearness or 0.0
    return min(max((cosine - LEAST_COSINE) / (MOST_COSINE - LEAST_COSINE), 0.0), 1.0)
