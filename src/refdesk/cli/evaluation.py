"""How good a ranking is: query files with what answers each query, and the usual measures. Asks nobody anything.

Two kinds of files are read: queries that name the sections that answer them (`rel`: lists of file and anchor), and the
BEIR form, where a second file, the qrels, names the documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log2
from statistics import fmean
from typing import Any

from refdesk.errors import InvalidArguments, Problem

DEPTH = 10
"""How far down a ranking is looked: as far as the deepest measure."""


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a search: the document, and the anchors of the sections that it lies in."""

    document_id: str
    anchors: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Target:
    """What answers a query: a document, named by the end of its id, or a section of it."""

    document: str
    anchor: str | None = None

    def is_found_by(self, result: Result) -> bool:
        """Whether the result is of this document, and is, or lies in, this section."""
        return is_named(result.document_id, self.document) and (self.anchor is None or self.anchor in result.anchors)


@dataclass(frozen=True, slots=True)
class Query:
    """A query, what answers it and how well, and the document that it was taken from, which does not count."""

    text: str
    grades: Mapping[Target, float]
    taken_from: str = ""


@dataclass(frozen=True, slots=True)
class QuerySet:
    """Queries that are judged alike: by section, or by document."""

    queries: Sequence[Query]
    by_document: bool

    def ranking(self, query: Query, results: Iterable[Result]) -> list[Result]:
        """The results that count, in their order; by document, its first one."""
        counted = [r for r in results if not (query.taken_from and is_named(r.document_id, query.taken_from))]
        if not self.by_document:
            return counted
        first: dict[str, Result] = {}
        for result in counted:
            first.setdefault(result.document_id, result)
        return list(first.values())


@dataclass(frozen=True, slots=True)
class Scores:
    """The measures of one query, or their means over many; each from 0 to 1."""

    ndcg_at_10: float
    recall_at_5: float
    recall_at_10: float
    hit_at_1: float
    hit_at_5: float
    mrr_at_10: float


def is_named(document_id: str, name: str) -> bool:
    """Whether this is the document of that path, in whatever collection."""
    return document_id == name or document_id.endswith(f"/{name}")


def scores(ranking: Sequence[Result], grades: Mapping[Target, float]) -> Scores:
    """How good a ranking is for one query."""
    found = gains(ranking[:DEPTH], grades)
    return Scores(
        ndcg_at_10=ndcg(found, list(grades.values()), 10),
        recall_at_5=recall(found, len(grades), 5),
        recall_at_10=recall(found, len(grades), 10),
        hit_at_1=hit(found, 1),
        hit_at_5=hit(found, 5),
        mrr_at_10=reciprocal_rank(found, 10),
    )


def mean(many: Sequence[Scores]) -> Scores:
    """The mean of every measure."""
    rows = [asdict(one) for one in many]
    return Scores(**{name: fmean(row[name] for row in rows) for name in rows[0]})


def gains(ranking: Iterable[Result], grades: Mapping[Target, float]) -> list[float]:
    """What each result adds: the grade of a target that none above it has found, the best first, or nothing."""
    left = dict(sorted(grades.items(), key=lambda judged: -judged[1]))
    found = []
    for result in ranking:
        target = next((target for target in left if target.is_found_by(result)), None)
        found.append(left.pop(target) if target else 0.0)
    return found


def ndcg(gains: Sequence[float], grades: Sequence[float], depth: int) -> float:
    """Normalised discounted cumulative gain: the sum, worth less further down, over that of the best order."""
    best = _discounted(sorted(grades, reverse=True)[:depth])
    return _discounted(gains[:depth]) / best if best else 0.0


def recall(gains: Sequence[float], targets: int, depth: int) -> float:
    """The share of the targets that is found so far down."""
    return sum(gain > 0 for gain in gains[:depth]) / targets if targets else 0.0


def hit(gains: Sequence[float], depth: int) -> float:
    """1 when any target is found so far down."""
    return float(any(gain > 0 for gain in gains[:depth]))


def reciprocal_rank(gains: Sequence[float], depth: int) -> float:
    """One over the place of the first target that is found; 0 when none is."""
    return next((1 / place for place, gain in enumerate(gains[:depth], 1) if gain > 0), 0.0)


def _discounted(gains: Iterable[float]) -> float:
    return sum(gain / log2(place + 1) for place, gain in enumerate(gains, 1))


def read_queries(lines: Iterable[str], qrels: Iterable[str] | None = None) -> QuerySet:
    """The queries of a file that are judged, there or in the qrels."""
    if qrels is None:
        judged = [_sectioned(row, line) for line, row in _objects(lines)]
    else:
        grades = read_qrels(qrels)
        rows = ((_text(row, line), grades.get(_id(row))) for line, row in _objects(lines))
        judged = [Query(text, answers) for text, answers in rows if answers]
    if not judged:
        raise _wrong("QUERIES", "has no query that is judged")
    return QuerySet(judged, by_document=qrels is not None)


def read_qrels(lines: Iterable[str]) -> dict[str, dict[Target, float]]:
    """Which documents answer which query; in three columns, or in TREC's four, with or without headings."""
    grades: dict[str, dict[Target, float]] = {}
    for line, columns in enumerate(map(str.split, lines), 1):
        if not columns or columns[-1] == "score":
            continue
        try:
            query, document, grade = columns[0], columns[-2], float(columns[-1])
        except (IndexError, ValueError):
            raise _wrong("--qrels", f"line {line} must be a query's id, a document's id and a number") from None
        if grade > 0:
            grades.setdefault(query, {})[Target(document)] = grade
    return grades


def _sectioned(row: Mapping[str, Any], line: int) -> Query:
    try:
        targets = {Target(str(file), anchor): 1.0 for file, anchor in row["rel"]}
    except (KeyError, TypeError, ValueError):
        rule = 'must have "rel", a list of [file, anchor or null]; or name a file of judgements with --qrels'
        raise _wrong("QUERIES", f"line {line} {rule}") from None
    return Query(_text(row, line), targets, str(row.get("src") or ""))


def _text(row: Mapping[str, Any], line: int) -> str:
    text = row.get("query", row.get("text"))
    if not isinstance(text, str) or not text.strip():
        raise _wrong("QUERIES", f'line {line} must have a text under "query" or "text"')
    return text


def _id(row: Mapping[str, Any]) -> str:
    return str(row.get("_id", row.get("id", row.get("qid"))))


def _objects(lines: Iterable[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise _wrong("QUERIES", f"line {number} is no JSON object")
        yield number, row


def _wrong(argument: str, rule: str) -> InvalidArguments:
    return InvalidArguments([Problem(argument, rule)])
