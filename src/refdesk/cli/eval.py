"""`refdesk eval`: how well search finds what it should, asked as an agent asks it, through the public tools."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from refdesk.app import Desk, open_desk
from refdesk.calls import LOCAL, Answer, UserId
from refdesk.cli.evaluation import DEPTH, Query, QuerySet, Result, Scores, mean, read_queries, scores
from refdesk.cli.progress import ProgressBar
from refdesk.cli.search_results import found_in
from refdesk.cli.settings import load_settings
from refdesk.config import Config
from refdesk.errors import CannotOpen, ToolFailure

LONGEST_QUERY = 1000
"""Characters; the tools take no more, and a file may hold whole paragraphs."""

WHOLE_BUDGET = 20_000
"""Tokens; as many as a tool allows, for a ranking of which nothing is left out."""


EXAMINER = replace(LOCAL, user=UserId("eval"))
"""A user of its own: thousands of queries of a file are not what the person searched for."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How a tool is asked for a ranking."""

    limit: str
    """The argument that says how many results."""
    limits: tuple[int, ...]
    """How many, and how many more when those do not hold enough documents."""
    collection: str
    """The argument that names the collection."""


TOOLS = {
    "search_documentation": Asking("max_results", (20,), "doc_type"),
    "r2r_search": Asking("limit", (30, 100), "collection_id"),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One query, or the mean of all: the ranking's measures, and what an answer costs that asks for nothing special."""

    scores: Scores
    answer_bytes: float


def evaluate(arguments: Namespace) -> int:
    """`refdesk eval`."""
    config = load_settings(arguments)
    judged = read_queries(_lines(arguments.queries), _lines(arguments.qrels) if arguments.qrels else None)
    tool = arguments.tool or ("r2r_search" if judged.by_document else "search_documentation")
    measured = asyncio.run(_measure(config, judged, tool, arguments.collection or "all"))
    report = {"tool": tool, "queries": len(judged.queries), **_figures(measured)}
    print(json.dumps(report, indent=2) if arguments.json else _table(report))
    return 0


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CannotOpen(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


async def _measure(config: Config, judged: QuerySet, tool: str, collection: str) -> Measured:
    """One query after the other: a ranking does not depend on who else asks."""
    bar = ProgressBar(len(judged.queries))
    found = []
    async with open_desk(config, servers=False) as desk:
        search = _Search(desk, tool, {TOOLS[tool].collection: collection})
        try:
            for done, query in enumerate(judged.queries, 1):
                found.append(await search.measure(judged, query))
                bar.report(done, done / len(judged.queries), tool)
        finally:
            bar.clear()
    return Measured(mean([one.scores for one in found]), fmean(one.answer_bytes for one in found))


@dataclass(frozen=True, slots=True)
class _Search:
    desk: Desk
    tool: str
    where: Mapping[str, str]

    async def measure(self, judged: QuerySet, query: Query) -> Measured:
        text = query.text[:LONGEST_QUERY]
        plain = await self._ask({"query": text})
        return Measured(scores(await self._ranking(judged, query, text), query.grades), _size(plain))

    async def _ranking(self, judged: QuerySet, query: Query, text: str) -> list[Result]:
        """At least as many results that count as the measures look at, if the tool has them."""
        asking, ranking = TOOLS[self.tool], list[Result]()
        for limit in asking.limits:
            answer = await self._ask({"query": text, asking.limit: limit, "max_tokens": WHOLE_BUDGET})
            ranking = judged.ranking(query, [Result(one.document_id, one.anchors) for one in found_in(answer)])
            if len(ranking) >= DEPTH:
                break
        return ranking

    async def _ask(self, arguments: Mapping[str, Any]) -> Answer:
        answer = await self.desk.call(self.tool, {**arguments, **self.where}, caller=EXAMINER)
        if answer.is_error:
            raise ToolFailure(answer.text)
        return answer


def _size(answer: Answer) -> int:
    """Bytes that a model reads of an answer; clients show it either the text or the structured content."""
    structured = json.dumps(answer.structured, ensure_ascii=False) if answer.structured is not None else ""
    return max(len(answer.text.encode()), len(structured.encode()))


def _figures(measured: Measured) -> dict[str, float]:
    figures = {name.replace("_at_", "@"): round(value, 4) for name, value in asdict(measured.scores).items()}
    return {**figures, "mean_answer_bytes": round(measured.answer_bytes)}


def _table(report: Mapping[str, Any]) -> str:
    width = max(map(len, report))
    return "\n".join(f"{name:<{width}}  {_shown(value)}" for name, value in report.items())


def _shown(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
