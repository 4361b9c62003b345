"""`refdesk eval`: measure retrieval quality through the public search tools.

Two formats of judged queries are read: queries that name the sections that answer them (`rel`: lists of file and
anchor), and the BEIR format, where a second file, the qrels, names the documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from refdesk.app import Desk, open_desk
from refdesk.calls import LOCAL, Answer, UserId
from refdesk.cli.ask import PassageHit, parse_hits
from refdesk.cli.load_config import load_settings
from refdesk.cli.terminal import ProgressBar, print_json
from refdesk.errors import CannotOpen, InvalidArguments, Problem, ToolFailure

MAX_QUERY_LENGTH = 1000
"""Characters. The tools accept no more, and a query file may hold whole paragraphs."""

MAX_TOKENS = 20_000
"""The largest token budget a tool allows, so that the ranking isn't cut short."""

EVAL_CALLER = replace(LOCAL, user=UserId("eval"))
"""A separate user, so that evaluation queries don't count as the person's searches."""

DEPTH = 10
"""Ranking depth of the deepest metric."""


@dataclass(frozen=True, slots=True)
class SearchTool:
    """Argument names and result limits of a search tool."""

    limit: str
    """Name of the argument for the number of results."""
    limits: tuple[int, ...]
    """Result limits to try in order, until there are enough documents."""
    collection: str
    """Name of the argument for the collection."""


TOOLS = {
    "search_documentation": SearchTool("max_results", (20,), "doc_type"),
    "r2r_search": SearchTool("limit", (30, 100), "collection_id"),
}


async def evaluate(arguments: SimpleNamespace) -> None:
    """Run `refdesk eval`: run all queries, one at a time, and print the mean of each metric."""
    config = load_settings(arguments)
    query_set = read_queries(_read_lines(arguments.queries), _read_lines(arguments.qrels) if arguments.qrels else None)
    tool = arguments.tool or ("r2r_search" if query_set.by_document else "search_documentation")
    scope = {TOOLS[tool].collection: arguments.collection or "all"}
    bar = ProgressBar(len(query_set.queries))
    found, sizes = [], []
    async with open_desk(config, servers=False) as desk:
        try:
            for done, query in enumerate(query_set.queries, 1):
                sizes.append(_measure_size(await _search(desk, tool, query, scope)))
                found.append(scores(await _rank(desk, tool, query_set, query, scope), query.grades))
                bar.update(done, done / len(query_set.queries), tool)
        finally:
            bar.clear()
    figures = {name: round(value, 4) for name, value in average(found).items()}
    report = {"tool": tool, "queries": len(found), **figures, "mean_answer_bytes": round(fmean(sizes))}
    if arguments.json:
        print_json(report)
        return
    width = max(map(len, report))
    formats = {float: ".4f", int: ",", str: ""}
    for name, value in report.items():
        print(f"{name:<{width}}  {value:{formats[type(value)]}}")


def _read_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CannotOpen(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


async def _rank(desk: Desk, name: str, query_set: QuerySet, query: Query, scope: Mapping[str, Any]) -> list[PassageHit]:
    """Return at least `DEPTH` ranked results, if the tool has them."""
    tool, ranking = TOOLS[name], list[PassageHit]()
    for limit in tool.limits:
        answer = await _search(desk, name, query, {tool.limit: limit, "max_tokens": MAX_TOKENS, **scope})
        ranking = query_set.ranking(query, parse_hits(answer))
        if len(ranking) >= DEPTH:
            break
    return ranking


async def _search(desk: Desk, tool: str, query: Query, options: Mapping[str, Any]) -> Answer:
    answer = await desk.call(tool, {"query": query.text[:MAX_QUERY_LENGTH], **options}, caller=EVAL_CALLER)
    if answer.is_error:
        raise ToolFailure(answer.text)
    return answer


def _measure_size(answer: Answer) -> int:
    """Return the bytes of an answer that a model reads. Clients show it the text or the structured content."""
    structured = json.dumps(answer.structured, ensure_ascii=False) if answer.structured is not None else ""
    return max(len(answer.text.encode()), len(structured.encode()))


# Metrics


@dataclass(frozen=True, slots=True)
class Target:
    """A relevant document, given by the end of its id, or one of its sections."""

    document: str
    anchor: str | None = None

    def is_matched_by(self, result: PassageHit) -> bool:
        """Whether the result is from this document and inside this section."""
        return has_path(result.document_id, self.document) and (self.anchor is None or self.anchor in result.anchors)


@dataclass(frozen=True, slots=True)
class Query:
    """A query, its graded targets, and the document it was derived from, which is excluded from the ranking."""

    text: str
    grades: Mapping[Target, float]
    source_document: str = ""


@dataclass(frozen=True, slots=True)
class QuerySet:
    """Queries judged in the same way: by section or by document."""

    queries: Sequence[Query]
    by_document: bool

    def ranking(self, query: Query, results: Iterable[PassageHit]) -> list[PassageHit]:
        """Return the eligible results in order; by document, only the first result of each."""
        source = query.source_document
        eligible = [one for one in results if not (source and has_path(one.document_id, source))]
        if not self.by_document:
            return eligible
        first: dict[str, PassageHit] = {}
        for result in eligible:
            first.setdefault(result.document_id, result)
        return list(first.values())


def has_path(document_id: str, name: str) -> bool:
    """Whether the document has this path, in any collection."""
    return document_id == name or document_id.endswith(f"/{name}")


def scores(ranking: Sequence[PassageHit], grades: Mapping[Target, float]) -> dict[str, float]:
    """Return the metrics of one query's ranking by name. Each ranges from 0 to 1."""
    found = gains(ranking[:DEPTH], grades)
    return {
        "ndcg@10": ndcg(found, list(grades.values()), 10),
        "recall@5": recall(found, len(grades), 5),
        "recall@10": recall(found, len(grades), 10),
        "hit@1": hit(found, 1),
        "hit@5": hit(found, 5),
        "mrr@10": reciprocal_rank(found, 10),
    }


def average(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of every metric."""
    return {name: fmean(row[name] for row in scores) for name in scores[0]}


def gains(ranking: Iterable[PassageHit], grades: Mapping[Target, float]) -> list[float]:
    """Return each result's gain: the best grade among its targets that no earlier result matched, or 0."""
    remaining = dict(sorted(grades.items(), key=lambda item: -item[1]))
    found = []
    for result in ranking:
        target = next((target for target in remaining if target.is_matched_by(result)), None)
        found.append(remaining.pop(target) if target else 0.0)
    return found


def ndcg(gains: Sequence[float], grades: Sequence[float], depth: int) -> float:
    """Normalized discounted cumulative gain."""
    best = _sum_discounted(sorted(grades, reverse=True)[:depth])
    return _sum_discounted(gains[:depth]) / best if best else 0.0


def recall(gains: Sequence[float], targets: int, depth: int) -> float:
    """Share of the targets found within the depth."""
    return sum(gain > 0 for gain in gains[:depth]) / targets if targets else 0.0


def hit(gains: Sequence[float], depth: int) -> float:
    """1 if any target is found within the depth, else 0."""
    return float(any(gain > 0 for gain in gains[:depth]))


def reciprocal_rank(gains: Sequence[float], depth: int) -> float:
    """Reciprocal of the rank of the first target found; 0 if there is none."""
    return next((1 / rank for rank, gain in enumerate(gains[:depth], 1) if gain > 0), 0.0)


def _sum_discounted(gains: Iterable[float]) -> float:
    return sum(gain / log2(rank + 1) for rank, gain in enumerate(gains, 1))


# Judged queries


def read_queries(lines: Iterable[str], qrels: Iterable[str] | None = None) -> QuerySet:
    """Parse the judged queries of a file. With qrels, the judgements come from there."""
    grades = read_qrels(qrels) if qrels is not None else None
    queries = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise _build_error("QUERIES", f"line {number} is not a JSON object")
        source = ""
        if grades is not None:
            targets = grades.get(str(row.get("_id", row.get("id", row.get("qid")))), {})
        else:
            try:
                targets = {Target(str(file), anchor): 1.0 for file, anchor in row["rel"]}
            except (KeyError, TypeError, ValueError):
                rule = 'must have "rel", a list of [file, anchor or null]; or name a file of judgements with --qrels'
                raise _build_error("QUERIES", f"line {number} {rule}") from None
            source = str(row.get("src") or "")
        text = row.get("query", row.get("text"))
        if not isinstance(text, str) or not text.strip():
            raise _build_error("QUERIES", f'line {number} must have a text under "query" or "text"')
        if targets or grades is None:
            queries.append(Query(text, targets, source))
    if not queries:
        raise _build_error("QUERIES", "has no judged query")
    return QuerySet(queries, by_document=qrels is not None)


def read_qrels(lines: Iterable[str]) -> dict[str, dict[Target, float]]:
    """Parse graded documents by query id, in three columns or TREC's four, with or without a header."""
    grades: dict[str, dict[Target, float]] = {}
    for line, columns in enumerate(map(str.split, lines), 1):
        if not columns or columns[-1] == "score":
            continue
        try:
            query, document, grade = columns[0], columns[-2], float(columns[-1])
        except (IndexError, ValueError):
            raise _build_error("--qrels", f"line {line} must have a query ID, a document ID and a number") from None
        if grade > 0:
            grades.setdefault(query, {})[Target(document)] = grade
    return grades


def _build_error(argument: str, rule: str) -> InvalidArguments:
    return InvalidArguments([Problem(argument, rule)])
