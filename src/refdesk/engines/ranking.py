"""Ranking of search candidates: fusion of lexical and semantic scores, then reranking by text.

Pure functions. `fuse` sees the scores of hundreds of candidates, `rank` the texts of the best ones. The weights are a
compromise between titles, questions, sentences and claims. Differences between neighbouring values are below what such
test sets can resolve.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import exp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from refdesk.engines import analyzer

Scores = NDArray[np.float64]

QUESTION_LEXICAL_WEIGHT, STATEMENT_LEXICAL_WEIGHT, LEXICAL_WEIGHT = 0.45, 0.6, 0.5
"""Weight of the lexical score for English questions and statements, and for keywords and other languages; the semantic
score has the rest. Who asks rarely uses the words of the answer, but claims and error messages do."""

DEFINITION_LEXICAL_WEIGHT = 0.3
"""The same for a query that asks what something is: its one or two words occur everywhere."""

HEADING_WEIGHT = 0.1
"""Bonus for a passage whose headings contain all query terms, proportional for a part of them."""

INNER_HEADING_WEIGHT = 0.1
"""The same for the innermost heading below the title, which says most about the passage. The title counts once."""

NAME_WEIGHT = 0.2
"""Bonus for a passage that defines all identifiers of the query."""

DEFINITION_WEIGHT = 0.15
"""Bonus for a passage with a sentence that defines what the query asks for: "A submodule is …"."""

SUPPORT_WEIGHT = 0.15
"""Bonus for a passage whose document has another section that scores as well: a page about the topic beats one that
mentions it.

Other passages of the same section don't count, or long texts would be preferred to short ones.
"""

LINK_LIST_PENALTY = 0.2
"""Penalty for a passage that is mostly links (a table of contents, an index)."""

LINK_LIST_SHARE = 0.5
"""Share of the text that is in links for such a passage."""

MIN_LINKS = 4
"""A passage with fewer links isn't checked."""

LEAD_WEIGHT, LEAD_CHUNKS = 0.05, 4
"""Bonus for the first chunk of a document, and how many chunks have a part of it: a page begins with what it is about,
which decides between passages that score alike."""

SAME_DOCUMENT_FACTOR = 0.8
"""Factor for each further section of a document, relative to the previous one, so that results are diverse."""

PLACE_CHUNKS = 3
"""Distance up to which chunks of a section are the same place. Distant parts of a long section may both be found."""

DUPLICATE_OVERLAP = 0.9
"""Share of common words from which two passages under the same headings are duplicates."""

RELEVANCE_DEPTH = 3
"""Number of top passages that determine the relevance of the results."""

COSINE_SHARE = 0.8
"""Weight of the cosine in the evidence for an answer; the share of query terms found has the rest."""

EVEN_EVIDENCE, EVIDENCE_SCALE = 0.41, 0.08
"""Evidence at which an answer is as likely as not, and how fast the probability changes around it.

Calibrated for the built-in model on 148 questions about three manuals and a handbook: below it are two thirds of those
without an answer, and 6 % of the others.
"""

MIN_CONFIDENCE = 0.5
"""Score of the best passage below which the documents probably have no answer."""

HEADING_CACHE_SIZE = 16_384
"""Headings whose terms are cached: most are shared by many passages."""

MAX_NAME_QUERY = 6
"""Terms of a query that is hardly more than an identifier, which itself counts with its parts."""

_TERM_LINE = re.compile(r"^(?:\*\*(.+)\*\*|`([^`\n(]+)[^`\n]*`)$", re.MULTILINE)
"""Term of a definition list in Markdown: a line in bold or code, of which arguments don't count."""


class ChunkCandidate(NamedTuple):
    """Chunk that may answer the query."""

    key: int
    fused: float
    """Score from `fuse`, relative to all candidates."""
    similarity: float | None
    """Cosine with the query, or None if unknown."""
    document: int
    section: str
    path: tuple[str, ...]
    title: str
    text: str
    version: str = ""
    ordinal: int = 0
    """Position in its document."""


@dataclass(frozen=True, slots=True)
class RankedChunk:
    """Chunk in the final order. Scores are between 0 and 1, descending; near 0 it isn't an answer."""

    key: int
    score: float
    base_score: float
    """The same without the discount for further passages of a document."""


@dataclass(slots=True)
class _Scored:
    """Candidate with its current score."""

    candidate: ChunkCandidate
    score: float
    base_score: float = 0.0


def fuse(lexical: Scores, semantic: Scores, *, weight: float = LEXICAL_WEIGHT, highest: float | None = None) -> Scores:
    """Combine lexical scores and cosines into one score relative to the best candidate. NaN means unknown.

    With `highest`, the highest possible lexical score, lexical scores are shares of it: the best match of a long query
    often has only a few of its terms, and then the cosine decides. That needs a model that knows the query's language.
    Otherwise each score is normalized by its maximum.

    Callers should also pass the cosine of candidates that only the lexical search found: cosines fall off so slowly
    that assuming 0 would be far off. A candidate without a cosine is judged by its lexical score. If one of the two is
    unknown for all candidates, the other is used alone.
    """
    lexical_score = _normalize(lexical) if highest is None else np.maximum(lexical, 0.0) / highest
    semantic_score = _normalize(semantic) if highest is None else np.maximum(semantic, 0.0)
    if np.isnan(lexical_score).all():
        fused = np.fmax(semantic_score, 0.0)
    else:
        lexical_part = np.fmax(lexical_score, 0.0)  # NaN becomes 0
        semantic_part = np.where(np.isnan(semantic_score), lexical_part, semantic_score)
        fused = weight * lexical_part + (1 - weight) * semantic_part
    most = fused.max(initial=0.0)
    return fused / most if most > 0 else fused


def select_top(keys: NDArray[np.int64], scores: Scores, count: int) -> NDArray[np.intp]:
    """Return the indices of the best scores in descending order. Ties are broken by the lower key."""
    if len(scores) > count:
        lowest = np.partition(scores, -count)[-count]
        places = np.flatnonzero(scores >= lowest)
    else:
        places = np.arange(len(scores))
    return places[np.lexsort((keys[places], -scores[places]))[:count]]


def compute_coverages(query: str, candidates: Sequence[ChunkCandidate]) -> list[float]:
    """Return the weighted share of the query terms that each candidate contains."""
    query_terms = _QueryTerms(query)
    return [_score_lexical(query_terms, candidate) for candidate in candidates]


def rank(query: str, candidates: Sequence[ChunkCandidate], limit: int) -> list[RankedChunk]:
    """Return the best passages: one per place, without duplicates."""
    query_terms = _QueryTerms(query)
    scored = _sort(_score_candidates(query_terms, candidates))
    scored = _sort(_discount_same_document(_deduplicate_places(scored)))
    best = _drop_duplicates(scored, limit)
    if not best:
        return []
    relevance = _estimate_relevance(query_terms, best)
    scale = relevance / max(best[0].score, 1e-9)
    return [
        RankedChunk(one.candidate.key, scale * max(one.score, 0.0), scale * max(one.base_score, 0.0)) for one in best
    ]


class _QueryTerms:
    """Query terms with their weights, without stop words unless there are no others."""

    def __init__(self, query: str) -> None:
        terms = analyzer.weigh_query_terms(query)
        self.weights = {word: weight for word, weight in terms.items() if not analyzer.is_stop_word(word)} or terms
        self._total = sum(self.weights.values())
        self._names = analyzer.find_name_terms(query)
        self._definition = analyzer.build_definition_pattern(query)

    def compute_coverage(self, found: Set[str]) -> float:
        """Return the weighted share of the terms that were found."""
        return sum([self.weights[word] for word in found]) / self._total if found else 0.0

    def compute_name_share(self, candidate: ChunkCandidate) -> float:
        """Return the square root of the share of the query's identifiers that a passage defines.

        It defines what its innermost heading names and, for queries that are hardly more than an identifier, the terms
        on lines of their own. In a longer query, such as an error message, the identifier is rarely what it is about.
        """
        if not self._names:
            return 0.0
        terms = _TERM_LINE.findall(candidate.text) if len(self.weights) <= MAX_NAME_QUERY else ()
        defined = set[str]()
        for term in (*candidate.path[-1:], *chain.from_iterable(terms)):
            defined |= self._names & _extract_heading_terms(term)
        return float((len(defined) / len(self._names)) ** 0.5)

    def is_defined_in(self, candidate: ChunkCandidate) -> bool:
        """Whether a passage defines what the query asks for."""
        return (
            self._definition is not None
            and self._definition.search(analyzer.strip_markdown(candidate.text)) is not None
        )

    def find_in_headings(self, candidate: ChunkCandidate) -> set[str]:
        """Return the terms found in the headings of a passage."""
        found = set[str]()
        for heading in analyzer.build_heading_path(candidate.title, candidate.path):
            found |= self.weights.keys() & _extract_heading_terms(heading)
        return found


def _normalize(found: Scores) -> Scores:
    """Divide scores by the highest one. Negative scores become 0."""
    most = np.fmax.reduce(found, initial=0.0)
    return np.maximum(found, 0.0) / most if most > 0 else np.where(np.isnan(found), np.nan, 1.0)


def _sort(scored: Iterable[_Scored]) -> list[_Scored]:
    return sorted(scored, key=lambda one: (-one.score, one.candidate.key))


def _score_candidates(query_terms: _QueryTerms, candidates: Sequence[ChunkCandidate]) -> Iterator[_Scored]:
    """Add heading and support bonuses and the link list penalty to each candidate's score."""
    best = _collect_best_sections(candidates)
    for one in candidates:
        score = one.fused + HEADING_WEIGHT * query_terms.compute_coverage(query_terms.find_in_headings(one))
        if len(headings := analyzer.build_heading_path(one.title, one.path)) > 1:
            inner = query_terms.weights.keys() & _extract_heading_terms(headings[-1])
            score += INNER_HEADING_WEIGHT * query_terms.compute_coverage(inner)
        score += NAME_WEIGHT * query_terms.compute_name_share(one)
        score += DEFINITION_WEIGHT * query_terms.is_defined_in(one)
        if one.document in best:
            score += SUPPORT_WEIGHT * next(support for support, other in best[one.document] if other != one.section)
        score += LEAD_WEIGHT * max(1 - (one.ordinal - 1) / LEAD_CHUNKS, 0.0)
        if _is_link_list(one.text):
            score -= LINK_LIST_PENALTY
        yield _Scored(one, score)


def _collect_best_sections(candidates: Sequence[ChunkCandidate]) -> dict[int, list[tuple[float, str]]]:
    """Return the two best sections of each document that has several."""
    found: dict[int, dict[str, float]] = {}
    for one in candidates:
        sections = found.setdefault(one.document, {})
        sections[one.section] = max(one.fused, sections.get(one.section, 0.0))
    return {
        document: sorted(((score, section) for section, score in sections.items()), reverse=True)[:2]
        for document, sections in found.items()
        if len(sections) > 1
    }


@lru_cache(maxsize=HEADING_CACHE_SIZE)
def _extract_heading_terms(heading: str) -> frozenset[str]:
    return frozenset(analyzer.extract_index_terms(heading))


def _is_link_list(text: str) -> bool:
    if text.count("](") < MIN_LINKS:
        return False
    inside, marks = analyzer.measure_links(text)
    return inside > LINK_LIST_SHARE * (len(text) - marks)


def _deduplicate_places(scored: Iterable[_Scored]) -> Iterator[_Scored]:
    """Yield the best candidate of each place: chunks of a section that are near each other."""
    seen: dict[tuple[int, str], list[int]] = {}
    for one in scored:
        ordinals = seen.setdefault((one.candidate.document, one.candidate.section), [])
        if all(abs(one.candidate.ordinal - other) > PLACE_CHUNKS for other in ordinals):
            ordinals.append(one.candidate.ordinal)
            yield one


def _discount_same_document(scored: Iterable[_Scored]) -> Iterator[_Scored]:
    factors: dict[int, float] = {}
    for one in scored:
        factor = factors.get(one.candidate.document, 1.0)
        factors[one.candidate.document] = factor * SAME_DOCUMENT_FACTOR
        one.base_score = one.score
        one.score *= factor
        yield one


def _drop_duplicates(scored: Iterable[_Scored], limit: int) -> list[_Scored]:
    """Return the first candidates without near-duplicates. Other versions of a text are kept."""
    kept: list[_Scored] = []
    texts: dict[tuple[object, ...], list[str]] = {}
    for one in scored:
        if len(kept) >= limit:
            break
        candidate = one.candidate
        previous = texts.setdefault((candidate.title, candidate.path, candidate.version), [])
        if not any(_is_duplicate(candidate.text, other) for other in previous):
            previous.append(candidate.text)
            kept.append(one)
    return kept


def _is_duplicate(text: str, other: str) -> bool:
    one, two = set(text.casefold().split()), set(other.casefold().split())
    return len(one & two) >= DUPLICATE_OVERLAP * len(one | two)


def _estimate_relevance(query_terms: _QueryTerms, best: Sequence[_Scored]) -> float:
    """Estimate the probability that the top passages contain an answer.

    Without embeddings, it is the share of the query terms in the best of them.
    """
    top = [one.candidate for one in best[:RELEVANCE_DEPTH]]
    coverage = max(_score_lexical(query_terms, candidate) for candidate in top)
    cosines = [candidate.similarity for candidate in top if candidate.similarity is not None]
    if not cosines:
        return coverage
    evidence = COSINE_SHARE * max(cosines) + (1 - COSINE_SHARE) * coverage
    return 1 / (1 + exp((EVEN_EVIDENCE - evidence) / EVIDENCE_SCALE))


def _score_lexical(query_terms: _QueryTerms, candidate: ChunkCandidate) -> float:
    found = query_terms.find_in_headings(candidate)
    if len(found) < len(query_terms.weights):
        found |= analyzer.match_terms(candidate.text, query_terms.weights)
    return query_terms.compute_coverage(found)
