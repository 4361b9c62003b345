"""Extractive answers: sentences quoted verbatim from the documents, with citations.

Works offline. It adds nothing but the citations, and one sentence if the documents don't answer the question.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np
from anyio import to_thread
from numpy.typing import NDArray

from refdesk.answers.question import EXTRACTIVE, Question, WrittenAnswer
from refdesk.answers.quoting import FragmentPosition, QuoteSelection, build_quotes
from refdesk.answers.sentences import Fragment, has_content, split_fragments, strip_markup
from refdesk.answers.words import Term, extract_stems, extract_terms, measure_coverage
from refdesk.engines.base import Hit
from refdesk.errors import DependencyError

Vectors = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Awaitable[Vectors]]
"""Embeds texts as unit vectors in one call."""

HitFragments = Sequence[Sequence[Fragment]]
"""The fragments of each hit."""

MAX_HITS = 20
"""Further hits add work, not answers."""

MAX_EMBEDDED_FRAGMENTS = 24
"""Fragments compared by embedding: 40 answered and refused as many of the questions below, at more cost."""

CONTEXT_WEIGHT = 0.6
"""Weight of a term that occurs only in the headings above a sentence."""

LEXICAL_WEIGHT, SEMANTIC_WEIGHT, RANK_WEIGHT = 0.40, 0.45, 0.15
"""Weights of a fragment's score."""

KIND_WEIGHTS = {"sentence": 1.0, "row": 0.9, "code": 0.8}
"""Code and rows say less on their own than a sentence that matches as well."""

MIN_RELATIVE_SCORE = 0.8
"""Fragments are quoted from this share of the best one's score."""

DUPLICATE_OVERLAP = 0.8
"""Share of common stems from which a fragment is a duplicate of another."""

MIN_LEXICAL_COVERAGE = 0.64
"""Without embeddings: share of the question that the best passage must contain to count as an answer."""

MIN_SUPPORT = 0.62
SUPPORT_LEXICAL_WEIGHT, SUPPORT_SEMANTIC_WEIGHT = 0.6, 0.4
"""With embeddings: that share, and the similarity of the nearest sentence. All were tuned on one set: of 199 questions
and phrases that the PostgreSQL manual answers, 195 are answered; of 75 that it doesn't answer, 69 are refused,
including all but 6 of the 35 that only seem to be about it."""


@dataclass(frozen=True, slots=True)
class QuoteCandidate:
    """A fragment of a hit that may be quoted."""

    position: FragmentPosition
    fragment: Fragment
    stems: frozenset[str]
    context: frozenset[str]
    """Stems of the hit's title and headings, and of the term that the fragment defines."""
    coverage: float
    """Weighted share of the question that the fragment contains."""
    heading: str


@dataclass(frozen=True, slots=True)
class ScoredCandidate:
    """A candidate with its final score."""

    candidate: QuoteCandidate
    score: float
    similarity: float | None


async def extract(question: Question, hits: Sequence[Hit], embed: Embed | None = None) -> WrittenAnswer:
    """Return an answer quoted from the hits; `found` is False if they don't contain one."""
    terms = extract_terms(question.text)
    fragments = await to_thread.run_sync(lambda: [split_fragments(hit.text) for hit in hits[:MAX_HITS]])
    candidates = await to_thread.run_sync(_collect_candidates, terms, fragments, hits)
    likely = sorted(candidates, key=lambda candidate: -_score_without_embedding(candidate, hits))[
        :MAX_EMBEDDED_FRAGMENTS
    ]
    similarities = await _compare_embeddings(question.text, likely, embed) if embed and likely else None
    scored = _score(likely, hits, similarities)
    if not scored or not _is_supported(terms, candidates, scored):
        return build_not_found(hits)
    return _quote_best(question, scored, fragments, hits)


def build_not_found(hits: Sequence[Hit]) -> WrittenAnswer:
    """Return the answer for a question that the documents do not answer, with the nearest documents."""
    nearest: dict[str, int] = {}
    for position, hit in enumerate(hits):
        nearest.setdefault(hit.document.id, position)
    cited = tuple(nearest.values())[:3]
    if not cited:
        return WrittenAnswer("No answer found in your documents.", (), EXTRACTIVE, found=False)
    titles = ", ".join(f"“{hits[at].document.title}” [{at + 1}]" for at in cited)
    return WrittenAnswer(f"No answer found in your documents. Closest: {titles}.", cited, EXTRACTIVE, found=False)


def _collect_candidates(terms: tuple[Term, ...], fragments: HitFragments, hits: Sequence[Hit]) -> list[QuoteCandidate]:
    """Return every fragment that can be quoted; identical texts once, from the best hit."""
    candidates: dict[str, QuoteCandidate] = {}
    for number, (hit, hit_fragments) in enumerate(zip(hits, fragments, strict=False)):
        heading_stems = extract_stems(" ".join((hit.document.title, *hit.path)))
        context, lead = heading_stems, -1
        for position, fragment in enumerate(hit_fragments):
            if fragment.kind in ("lead", "head"):
                context, lead = heading_stems | extract_stems(fragment.text), fragment.block
                continue
            if fragment.block > lead + 1:
                context = heading_stems
            if not has_content(fragment.text):
                continue
            stems = extract_stems(strip_markup(fragment.text))
            coverage = measure_coverage(terms, stems, context, CONTEXT_WEIGHT)
            heading = hit.path[-1] if hit.path else hit.document.title
            candidate = QuoteCandidate(FragmentPosition(number, position), fragment, stems, context, coverage, heading)
            candidates.setdefault(" ".join(fragment.text.split()).casefold(), candidate)
    return list(candidates.values())


def _score_rank(candidate: QuoteCandidate, hits: Sequence[Hit]) -> float:
    """Return the search's opinion of the hit, from 0 to 1: its rank and its relative score."""
    best = max(hit.score for hit in hits) or 1.0
    return 0.5 * hits[candidate.position.hit].score / best + 0.5 / (1 + candidate.position.hit)


def _score_without_embedding(candidate: QuoteCandidate, hits: Sequence[Hit]) -> float:
    score = LEXICAL_WEIGHT * candidate.coverage + RANK_WEIGHT * _score_rank(candidate, hits)
    return score * KIND_WEIGHTS[candidate.fragment.kind]


async def _compare_embeddings(question: str, candidates: Sequence[QuoteCandidate], embed: Embed) -> list[float] | None:
    """Return the similarity of each candidate to the question; None if the model is unavailable."""
    texts = [question, *(f"{candidate.heading}: {strip_markup(candidate.fragment.text)}" for candidate in candidates)]
    try:
        vectors = np.asarray(await embed(texts), dtype=np.float32)
    except DependencyError:
        return None
    return [float(value) for value in np.nan_to_num(vectors[1:] @ vectors[0])]


def _score(
    candidates: Sequence[QuoteCandidate], hits: Sequence[Hit], similarities: list[float] | None
) -> list[ScoredCandidate]:
    """Score the candidates, best first."""
    scored = []
    for number, candidate in enumerate(candidates):
        score = _score_without_embedding(candidate, hits)
        similarity = similarities[number] if similarities else None
        if similarity is not None:
            score += SEMANTIC_WEIGHT * max(0.0, similarity) * KIND_WEIGHTS[candidate.fragment.kind]
        scored.append(ScoredCandidate(candidate, score, similarity))
    return sorted(scored, key=lambda entry: -entry.score)


def _is_supported(
    terms: tuple[Term, ...], candidates: Sequence[QuoteCandidate], scored: Sequence[ScoredCandidate]
) -> bool:
    coverage = _measure_best_passage(terms, candidates)
    similarity = max((entry.similarity for entry in scored if entry.similarity is not None), default=None)
    if similarity is None:
        return coverage >= MIN_LEXICAL_COVERAGE
    return SUPPORT_LEXICAL_WEIGHT * coverage + SUPPORT_SEMANTIC_WEIGHT * similarity >= MIN_SUPPORT


def _measure_best_passage(terms: tuple[Term, ...], candidates: Sequence[QuoteCandidate]) -> float:
    """Return the coverage of the best single passage: terms spread over many passages answer nothing."""
    by_hit: dict[int, set[str]] = {}
    for candidate in candidates:
        by_hit.setdefault(candidate.position.hit, set(candidate.context)).update(candidate.stems, candidate.context)
    return max(measure_coverage(terms, frozenset(stems), frozenset(), 0.0) for stems in by_hit.values())


def _quote_best(
    question: Question, scored: Sequence[ScoredCandidate], fragments: HitFragments, hits: Sequence[Hit]
) -> WrittenAnswer:
    """Quote the best candidates that add something new and fit the budget."""
    selection = QuoteSelection(fragments, question.max_tokens)
    quoted_stems: list[frozenset[str]] = []
    for entry in scored:
        if entry.score < MIN_RELATIVE_SCORE * scored[0].score:
            break
        stems = entry.candidate.stems
        if not any(_is_duplicate(stems, other) for other in quoted_stems) and selection.add(entry.candidate.position):
            quoted_stems.append(stems)
    if not selection.picked:
        hit = scored[0].candidate.position.hit
        text = f"The passage that answers this exceeds max_tokens. Read it, or ask with a larger limit. [{hit + 1}]"
        return WrittenAnswer(text, (hit,), EXTRACTIVE, found=True)
    quoted = build_quotes(tuple(dict.fromkeys((*selection.picked, *selection.positions))), fragments, hits)
    cited = tuple(dict.fromkeys(quote.hit for quote in quoted))
    return WrittenAnswer("\n\n".join(quote.text for quote in quoted), cited, EXTRACTIVE, found=True)


def _is_duplicate(stems: frozenset[str], other: frozenset[str]) -> bool:
    return len(stems & other) >= DUPLICATE_OVERLAP * len(stems | other)
