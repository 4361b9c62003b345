"""Extractive answers: sentences quoted verbatim from the documents, with citations.

Works offline. It adds nothing but the citations, and one sentence if the documents don't answer the question.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, pairwise, takewhile

import numpy as np
from anyio import to_thread
from numpy.typing import NDArray

from refdesk.answers.question import DENIAL, EXTRACTIVE, Question, WrittenAnswer
from refdesk.answers.sentences import Fragment, has_content, split_fragments, strip_markup
from refdesk.documents.tokens import measure_tokens, token_ids
from refdesk.engines.analyzer import extract_index_terms, is_stop_word, split_words
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

CITATION_TOKENS = 4
"""Cost of `[12]` and the whitespace around it."""

MAX_QUOTES = 8
"""Fragments picked for an answer."""

MAX_LIST_ITEMS = 8
"""List items quoted after the sentence that introduces them."""

_BACK_REFERENCE = re.compile(
    r"[*_(]*(?:this|these|that|those|it|its|they|such|however|therefore|thus|hence|then|also|otherwise|instead|"
    r"similarly|in (?:this|that|these|such)|for (?:example|instance)|but|and|so)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+\Z")

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


@dataclass(frozen=True, slots=True)
class FragmentPosition:
    """Index of a hit, and of a fragment in it."""

    hit: int
    fragment: int


@dataclass(frozen=True, slots=True)
class QuoteCandidate:
    """A fragment of a hit that may be quoted."""

    position: FragmentPosition
    fragment: Fragment
    stems: frozenset[str]
    context: frozenset[str]
    """Stems of the hit's title and headings, and of the term that the fragment defines."""
    heading: str
    score: float


async def extract(question: Question, hits: Sequence[Hit], embed: Embed | None = None) -> WrittenAnswer:
    """Return an answer quoted from the hits; `found` is False if they don't contain one."""
    terms = extract_terms(question.text)
    fragments = await to_thread.run_sync(lambda: [split_fragments(hit.text) for hit in hits[:MAX_HITS]])
    candidates = await to_thread.run_sync(_collect_candidates, terms, fragments, hits)
    best = _sort_by_score(candidates)[:MAX_EMBEDDED_FRAGMENTS]
    similarities = await _compare_embeddings(question.text, best, embed) if embed and best else None
    if not best or not _is_supported(terms, candidates, similarities):
        return build_not_found(hits)
    if similarities is not None:
        best = _sort_by_score(
            replace(one, score=one.score + SEMANTIC_WEIGHT * max(0.0, similarity) * KIND_WEIGHTS[one.fragment.kind])
            for one, similarity in zip(best, similarities, strict=True)
        )
    return _quote_best(question, best, fragments, hits)


def _sort_by_score(candidates: Iterable[QuoteCandidate]) -> list[QuoteCandidate]:
    return sorted(candidates, key=lambda candidate: -candidate.score)


def build_not_found(hits: Sequence[Hit]) -> WrittenAnswer:
    """Return the answer for a question that the documents do not answer, with the nearest documents."""
    nearest: dict[str, int] = {}
    for position, hit in enumerate(hits):
        nearest.setdefault(hit.document.id, position)
    cited = tuple(nearest.values())[:3]
    titles = ", ".join(f"“{hits[at].document.title}” [{at + 1}]" for at in cited)
    return WrittenAnswer(f"{DENIAL} Closest: {titles}." if cited else DENIAL, cited, EXTRACTIVE, found=False)


def _collect_candidates(terms: tuple[Term, ...], fragments: HitFragments, hits: Sequence[Hit]) -> list[QuoteCandidate]:
    """Return every fragment that can be quoted; identical texts once, from the best hit."""
    candidates: dict[str, QuoteCandidate] = {}
    best_score = max((hit.score for hit in hits), default=0.0) or 1.0
    for number, (hit, hit_fragments) in enumerate(zip(hits, fragments, strict=False)):
        # The search's opinion of the hit, from 0 to 1: its relative score and its rank.
        rank = 0.5 * hit.score / best_score + 0.5 / (1 + number)
        heading = hit.path[-1] if hit.path else hit.document.title
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
            score = (LEXICAL_WEIGHT * coverage + RANK_WEIGHT * rank) * KIND_WEIGHTS[fragment.kind]
            place = FragmentPosition(number, position)
            candidate = QuoteCandidate(place, fragment, stems, context, heading, score)
            candidates.setdefault(" ".join(fragment.text.split()).casefold(), candidate)
    return list(candidates.values())


async def _compare_embeddings(question: str, candidates: Sequence[QuoteCandidate], embed: Embed) -> list[float] | None:
    """Return the similarity of each candidate to the question; None if the model is unavailable."""
    texts = [question, *(f"{candidate.heading}: {strip_markup(candidate.fragment.text)}" for candidate in candidates)]
    try:
        vectors = np.asarray(await embed(texts), dtype=np.float32)
    except DependencyError:
        return None
    return [float(value) for value in np.nan_to_num(vectors[1:] @ vectors[0])]


def _is_supported(
    terms: tuple[Term, ...], candidates: Sequence[QuoteCandidate], similarities: Sequence[float] | None
) -> bool:
    # The best single passage counts: terms spread over many passages answer nothing.
    by_hit: dict[int, set[str]] = {}
    for candidate in candidates:
        by_hit.setdefault(candidate.position.hit, set()).update(candidate.stems, candidate.context)
    coverage = max(measure_coverage(terms, frozenset(stems), frozenset(), 0.0) for stems in by_hit.values())
    if similarities is None:
        return coverage >= MIN_LEXICAL_COVERAGE
    return SUPPORT_LEXICAL_WEIGHT * coverage + SUPPORT_SEMANTIC_WEIGHT * max(similarities) >= MIN_SUPPORT


def _quote_best(
    question: Question, best: Sequence[QuoteCandidate], fragments: HitFragments, hits: Sequence[Hit]
) -> WrittenAnswer:
    """Quote the best candidates that add something new and fit the budget."""
    selection = QuoteSelection(fragments, question.max_tokens)
    quoted_stems: list[frozenset[str]] = []
    for candidate in best:
        if candidate.score < MIN_RELATIVE_SCORE * best[0].score:
            break
        stems = candidate.stems
        is_duplicate = any(len(stems & other) >= DUPLICATE_OVERLAP * len(stems | other) for other in quoted_stems)
        if not is_duplicate and selection.add(candidate.position):
            quoted_stems.append(stems)
    if not selection.picked:
        hit = best[0].position.hit
        text = f"The passage that answers this exceeds max_tokens. Read it, or ask with a larger limit. [{hit + 1}]"
        return WrittenAnswer(text, (hit,), EXTRACTIVE, found=True)
    quoted = build_quotes(tuple(dict.fromkeys((*selection.picked, *selection.positions))), fragments, hits)
    cited = tuple(dict.fromkeys(quote.hit for quote in quoted))
    return WrittenAnswer("\n\n".join(quote.text for quote in quoted), cited, EXTRACTIVE, found=True)


# Terms of questions and texts, as the analyzer of the full-text index finds and stems them.


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


# Quotes: slices of a hit's text. Only citations and line breaks between them are added.


@dataclass(frozen=True, slots=True)
class Quote:
    """Slices of one hit under one citation."""

    hit: int
    slices: tuple[str, ...]
    is_prose: bool
    """Whether the citation can follow on the same line; below a table or code it cannot."""

    @property
    def text(self) -> str:
        """The quote with its citation."""
        citation = f"[{self.hit + 1}]"
        between = "\n\n" if self.is_prose else "\n"
        return between.join(self.slices) + (f" {citation}" if self.is_prose else f"\n\n{citation}")


class QuoteSelection:
    """The fragments to quote, within a token budget."""

    def __init__(self, fragments: Sequence[Sequence[Fragment]], max_tokens: int) -> None:
        """`fragments`: those of each hit."""
        self._fragments = fragments
        self._budget = max_tokens
        self.positions: set[FragmentPosition] = set()
        self.picked: list[FragmentPosition] = []

    def add(self, position: FragmentPosition) -> bool:
        """Add a fragment with its complements, or alone if those do not fit; return whether it was added."""
        if len(self.picked) >= MAX_QUOTES:
            return False
        required = set(find_required(self._fragments[position.hit], position.fragment))
        complete = required | set(find_complements(self._fragments[position.hit], position.fragment))
        for numbers in (complete, required):
            missing = {FragmentPosition(position.hit, number) for number in numbers} - self.positions
            texts = (self._fragments[part.hit][part.fragment].text for part in missing)
            cost = sum(measure_tokens(text) + CITATION_TOKENS for text in texts)
            if cost <= self._budget:
                self.positions |= missing
                self.picked.append(position)
                self._budget -= cost
                return True
        return False


def find_required(fragments: Sequence[Fragment], number: int) -> Iterator[int]:
    """Yield the fragment and those it is incomprehensible without: a table's head, the term that it defines."""
    yield number
    fragment = fragments[number]
    if fragment.kind == "row":
        yield from (at for at, other in enumerate(fragments) if other.block == fragment.block and other.kind == "head")
    first = next(at for at, other in enumerate(fragments) if other.block == fragment.block)
    if first and fragments[first - 1].kind == "lead":
        yield first - 1


def find_complements(fragments: Sequence[Fragment], number: int) -> Iterator[int]:
    """Yield the neighbours that complete a fragment: the antecedent of `this`, and what follows a colon."""
    fragment = fragments[number]
    before = fragments[number - 1] if number else None
    if before and before.kind == "sentence":
        leans = before.block == fragment.block and fragment.kind == "sentence" and _BACK_REFERENCE.match(fragment.text)
        if leans or (fragment.kind == "code" and before.text.endswith(":")):
            yield number - 1
    if fragment.text.endswith(":"):
        # The code below, or the list items.
        following = fragments[number + 1 : number + 1 + MAX_LIST_ITEMS]
        if following and following[0].kind == "code":
            yield number + 1
        else:
            items = takewhile(lambda other: other.is_item, following)
            yield from (at for at, _ in enumerate(items, number + 1))


def build_quotes(
    positions: Sequence[FragmentPosition], fragments: Sequence[Sequence[Fragment]], hits: Sequence[Hit]
) -> list[Quote]:
    """Return the quotes in reading order, grouped by document, in the order of each document's first position."""
    order: dict[str, int] = {}
    for position in positions:
        order.setdefault(hits[position.hit].document.id, len(order))

    def reading_order(position: FragmentPosition) -> tuple[int, int, int, int]:
        hit = hits[position.hit]
        number = _NUMBER.search(hit.chunk_id)
        return order[hit.document.id], int(number[0]) if number else 0, position.hit, position.fragment

    in_order = sorted(positions, key=reading_order)
    return [
        quote
        for hit, group in groupby(in_order, key=lambda position: position.hit)
        for quote in _build_hit_quotes(hit, hits[hit].text, fragments[hit], [position.fragment for position in group])
    ]


def _build_hit_quotes(hit: int, text: str, fragments: Sequence[Fragment], numbers: Sequence[int]) -> Iterator[Quote]:
    """Yield a quote per run of neighbours; a table's head and a term are joined with what needs them."""
    slices: list[str] = []
    start = numbers[0]
    for number, following in pairwise((*numbers, None)):
        if number is None or following == number + 1:
            continue
        fragment = fragments[number]
        slices.append(text[fragments[start].start : fragment.end])
        in_same_table = fragment.kind in ("head", "row") and following and fragment.block == fragments[following].block
        if following is None or not (in_same_table or fragment.kind == "lead"):
            yield Quote(hit, tuple(slices), fragment.kind in ("sentence", "lead"))
            slices = []
        start = following if following is not None else start
