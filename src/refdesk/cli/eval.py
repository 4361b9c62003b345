"""`refdesk eval`: measure retrieval quality through the public search tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from refdesk.app import Desk, open_desk
from refdesk.calls import LOCAL, Answer, UserId
from refdesk.cli.evaluation import DEPTH, Query, QuerySet, RankedResult, Scores, average, read_queries, scores
from refdesk.cli.load_config import load_settings
from refdesk.cli.progress import ProgressBar
from refdesk.cli.search_results import parse_hits
from refdesk.config import Config
from refdesk.errors import CannotOpen, ToolFailure

MAX_QUERY_LENGTH = 1000
"""Characters. The tools accept no more, and a query file may hold whole paragraphs."""

MAX_TOKENS = 20_000
"""The largest token budget a tool allows, so that the ranking isn't cut short."""


EVAL_CALLER = replace(LOCAL, user=UserId("eval"))
"""A separate user, so that evaluation queries don't count as the person's searches."""


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


@dataclass(frozen=True, slots=True)
class Measurement:
    """Scores of one query or their mean, and the size of an answer with default arguments."""

    scores: Scores
    answer_bytes: float


def evaluate(arguments: SimpleNamespace) -> int:
    """Run `refdesk eval`."""
    config = load_settings(arguments)
    query_set = read_queries(_read_lines(arguments.queries), _read_lines(arguments.qrels) if arguments.qrels else None)
    tool = arguments.tool or ("r2r_search" if query_set.by_document else "search_documentation")
    measurement = asyncio.run(_measure(config, query_set, tool, arguments.collection or "all"))
    figures = {name.replace("_at_", "@"): round(value, 4) for name, value in asdict(measurement.scores).items()}
    size = round(measurement.answer_bytes)
    report = {"tool": tool, "queries": len(query_set.queries), **figures, "mean_answer_bytes": size}
    print(json.dumps(report, indent=2) if arguments.json else _format_table(report))
    return 0


def _read_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CannotOpen(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


async def _measure(config: Config, query_set: QuerySet, tool: str, collection: str) -> Measurement:
    """Run all queries, one at a time, and return the mean measurement."""
    bar = ProgressBar(len(query_set.queries))
    found = []
    async with open_desk(config, servers=False) as desk:
        search = _Search(desk, tool, {TOOLS[tool].collection: collection})
        try:
            for done, query in enumerate(query_set.queries, 1):
                found.append(await search.measure(query_set, query))
                bar.update(done, done / len(query_set.queries), tool)
        finally:
            bar.clear()
    return Measurement(average([one.scores for one in found]), fmean(one.answer_bytes for one in found))


@dataclass(frozen=True, slots=True)
class _Search:
    desk: Desk
    tool: str
    scope: Mapping[str, str]

    async def measure(self, query_set: QuerySet, query: Query) -> Measurement:
        text = query.text[:MAX_QUERY_LENGTH]
        plain = await self._call({"query": text})
        return Measurement(scores(await self._rank(query_set, query, text), query.grades), _measure_size(plain))

    async def _rank(self, query_set: QuerySet, query: Query, text: str) -> list[RankedResult]:
        """Return at least `DEPTH` ranked results, if the tool has them."""
        tool, ranking = TOOLS[self.tool], list[RankedResult]()
        for limit in tool.limits:
            answer = await self._call({"query": text, tool.limit: limit, "max_tokens": MAX_TOKENS})
            ranking = query_set.ranking(
                query, [RankedResult(one.document_id, one.anchors) for one in parse_hits(answer)]
            )
            if len(ranking) >= DEPTH:
                break
        return ranking

    async def _call(self, arguments: Mapping[str, Any]) -> Answer:
        answer = await self.desk.call(self.tool, {**arguments, **self.scope}, caller=EVAL_CALLER)
        if answer.is_error:
            raise ToolFailure(answer.text)
        return answer


def _measure_size(answer: Answer) -> int:
    """Return the bytes of an answer that a model reads. Clients show it the text or the structured content."""
    structured = json.dumps(answer.structured, ensure_ascii=False) if answer.structured is not None else ""
    return max(len(answer.text.encode()), len(structured.encode()))


def _format_table(report: Mapping[str, Any]) -> str:
    width = max(map(len, report))
    formats = {float: ".4f", int: ",", str: ""}
    return "\n".join(f"{name:<{width}}  {value:{formats[type(value)]}}" for name, value in report.items())
