"""A process that opens a desk on a store and searches it: `python -m corpora.searching`, from the folder above.

Reads a plan as JSON on standard input, writes what it measured as JSON on standard output.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from corpora.measuring import Stopwatch, memory_of, shared_times
from refdesk.app import open_desk
from refdesk.calls import LOCAL
from refdesk.config.models import Config
from refdesk.engines.base import Engine, Search, SearchMode

MODES: tuple[SearchMode, ...] = ("fulltext", "semantic", "hybrid")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is searched, and how often."""

    data: str
    questions: Sequence[str]
    rounds: int
    clients: int
    limit: int
    is_cold: bool


async def measure(plan: Plan, began: float) -> dict[str, Any]:
    """Open the desk and search."""
    async with open_desk(Config(data_dir=Path(plan.data))) as desk:
        opened = time.perf_counter() - began
        if plan.is_cold:
            return {"opened_ms": opened * 1000, **await _first(desk.engine, plan)}
        await _searched(desk.engine, plan.questions, "hybrid", plan.limit)
        modes = await _modes(desk.engine, plan)
        at_once = await _at_once(desk.engine, plan)
    return {"modes": modes, "at_once": at_once, "memory": asdict(memory_of(os.getpid()))}


async def _first(engine: Engine, plan: Plan) -> dict[str, Any]:
    """The very first search, and those after it, each the first to touch what it finds."""
    first = await _searched(engine, plan.questions[:1], "hybrid", plan.limit)
    following = await _searched(engine, plan.questions[1:], "hybrid", plan.limit)
    return {"first_ms": first.wall[0], "first_cpu_ms": first.cpu[0], "following": asdict(following.times())}


async def _modes(engine: Engine, plan: Plan) -> dict[str, Any]:
    """Every mode once a round, so that whatever else the machine does hits all alike."""
    watches = {mode: Stopwatch() for mode in MODES}
    for _ in range(plan.rounds):
        for mode, watch in watches.items():
            await _searched(engine, plan.questions, mode, plan.limit, watch)
    return {mode: asdict(watch.times()) for mode, watch in watches.items()}


async def _searched(
    engine: Engine, questions: Sequence[str], mode: SearchMode, limit: int, watch: Stopwatch | None = None
) -> Stopwatch:
    watch = watch or Stopwatch()
    for question in questions:
        with watch.timing():
            hits = await engine.search(LOCAL.tenant, Search(question, limit=limit, mode=mode))
        if not hits:
            raise SystemExit(f"{mode} search found nothing for {question!r}")
    return watch


async def _at_once(engine: Engine, plan: Plan) -> dict[str, Any]:
    """Several clients, each with its next question as soon as it has an answer."""
    waited: list[float] = []
    left = iter([*plan.questions] * plan.rounds)

    async def client() -> None:
        for question in left:
            asked = time.perf_counter()
            await engine.search(LOCAL.tenant, Search(question, limit=plan.limit))
            waited.append((time.perf_counter() - asked) * 1000)

    began = time.process_time()
    await _together(client, plan.clients)
    cpu = (time.process_time() - began) / len(waited) * 1000
    return asdict(shared_times(waited, cpu))


async def _together(work: Callable[[], Awaitable[None]], count: int) -> None:
    await asyncio.gather(*(work() for _ in range(count)))


def main() -> None:
    """Carry the plan out."""
    began = time.perf_counter()
    print(json.dumps(uvloop.run(measure(Plan(**json.load(sys.stdin)), began))))


if __name__ == "__main__":
    main()
