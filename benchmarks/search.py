"""What a search costs, from ten thousand chunks of documentation to two hundred thousand, beside what others take.

Refdesk's own modes, its tools over HTTP, plain SQLite FTS5, numpy over all vectors, and another documentation server
search the same chunks with the same questions in one run. The first 5,000 chunks have real vectors, all others have
likenesses of these: their semantic results are meaningless, but cost the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from corpora.baselines import build_fts5, search_fts5, search_numpy
from corpora.calls import PING, Message, call_all, tool_call
from corpora.measuring import Memory, Times, evict, memory_of
from corpora.peers import PeerMeasured, PeerUnavailable, measure_qmd
from corpora.questions import questions
from corpora.records import Built, IndexBuilt, build
from corpora.searching import Plan
from processes import cpus, running
from quality.sources import NotToBeHad
from refdesk.config.models import EmbeddingConfig
from refdesk.engines.embedded.embedding import Embedder, open_embedder
from report import print_json, print_table, print_verdict

HERE = Path(__file__).resolve().parent
SIZES = (10_000, 50_000, 200_000)
QUESTIONS = 200
LIMIT = 10
CLIENTS = 8
COLD_STARTS = 3
COLD_QUESTIONS = 20
TRIVIAL_CALLS = 1000
CHILD_SECONDS = 900.0

CPU_TARGET_MS = 6.0
WALL_TARGET_MS = 10.0
RATIO_TARGET = 5.0
RSS_TARGET_MIB = 1024.0
CACHED_TARGET_US = 150.0


@dataclass(frozen=True)
class Cold:
    """A process that has just started, on files that the kernel has forgotten; medians."""

    opened_ms: float
    first_ms: float
    first_cpu_ms: float
    following_wall_p50: float


@dataclass(frozen=True)
class OverHttp:
    """The tools of `refdesk serve`."""

    one: Times
    words: Times
    """By words alone, as the peer searches."""
    many: Times
    memory: Memory
    ping_us: float
    echo_us: float
    cached_us: float
    cached_over_echo_us: float


@dataclass(frozen=True)
class Row:
    """All that was measured at one size."""

    built: Built
    modes: Mapping[str, Times]
    at_once: Times
    memory: Memory
    cold: Cold
    http: OverHttp
    fts5: IndexBuilt
    fts5_all_words: Times
    fts5_telling_words: Times
    numpy: Times
    qmd: PeerMeasured | None

    @property
    def hybrid(self) -> Times:
        """The mode that is the default."""
        return self.modes["hybrid"]


def main() -> int:
    """Measure and print."""
    options = _options()
    try:
        rows, skipped = asyncio.run(_rows(options))
    except NotToBeHad as error:
        print(f"not measured: {error}")
        return 1
    _tell(rows, skipped, options)
    return 0


async def _rows(options: argparse.Namespace) -> tuple[list[Row], dict[str, str]]:
    skipped: dict[str, str] = {}
    rows: list[Row] = []
    async with open_embedder(EmbeddingConfig()) as embedder:
        assert embedder is not None
        asked: Asked | None = None
        for size in sorted(options.sizes):
            built = await build(size, embedder, fresh=options.fresh)
            asked = asked or _questions(built, options.questions)
            rows.append(await _row(built, asked, embedder, skipped, options))
    return rows, skipped


@dataclass(frozen=True)
class Asked:
    """Questions that have none in common: the tools keep their answers, and one asked twice would cost nothing."""

    measured: Sequence[str]
    """By every contestant."""
    warming: Sequence[str]
    at_once: Sequence[str]

    def __post_init__(self) -> None:
        every = [*self.measured, *self.warming, *self.at_once]
        if len(set(every)) < len(every):
            raise ValueError("a question would be asked twice, and be answered from memory")


def _questions(built: Built, count: int) -> Asked:
    """From the smallest store, whose documents are in all of them."""
    with closing(sqlite3.connect(built.folder / "knowledge.db")) as database:
        drawn = questions(database, 3 * count)
    return Asked(drawn[:count], drawn[count : 2 * count], drawn[2 * count :])


async def _row(
    built: Built, questions: Asked, embedder: Embedder, skipped: dict[str, str], options: argparse.Namespace
) -> Row:
    asked = questions.measured
    print(f"{built.chunks} chunks", file=sys.stderr)
    record, fts5 = built.folder / "knowledge.db", built.data / "fts5.db"
    warm = _child(built, asked, options.rounds)
    built_fts5 = build_fts5(record, fts5)
    vectors = np.stack([await embedder.embed_query(question) for question in asked[:50]])
    row = Row(
        built=built,
        modes={mode: Times(**times) for mode, times in warm["modes"].items()},
        at_once=Times(**warm["at_once"]),
        memory=Memory(**warm["memory"]),
        http=_over_http(built, questions, options.rounds),
        fts5=built_fts5,
        fts5_all_words=search_fts5(fts5, asked, all_words=True),
        fts5_telling_words=search_fts5(fts5, asked, all_words=False),
        numpy=search_numpy(record, vectors),
        cold=_cold(built, asked),  # last: it makes the kernel forget what the others have read
        qmd=_qmd(built, asked, skipped) if built.chunks < 2 * SIZES[0] else None,
    )
    fts5.unlink()
    return row


def _child(built: Built, asked: Sequence[str], rounds: int, *, is_cold: bool = False) -> dict[str, Any]:
    """Search in a process of its own."""
    plan = Plan(str(built.data), asked, rounds, CLIENTS, LIMIT, is_cold)
    done = subprocess.run(
        [sys.executable, "-m", "corpora.searching"],
        cwd=HERE,
        input=json.dumps(asdict(plan)).encode(),
        stdout=subprocess.PIPE,
        timeout=CHILD_SECONDS,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _cold(built: Built, asked: Sequence[str]) -> Cold:
    starts = []
    for number in range(COLD_STARTS):
        evict(built.folder)
        part = asked[number * COLD_QUESTIONS : (number + 1) * COLD_QUESTIONS]
        starts.append(_child(built, part, 1, is_cold=True))
    return Cold(
        opened_ms=median(start["opened_ms"] for start in starts),
        first_ms=median(start["first_ms"] for start in starts),
        first_cpu_ms=median(start["first_cpu_ms"] for start in starts),
        following_wall_p50=median(start["following"]["wall_p50"] for start in starts),
    )


def _over_http(built: Built, asked: Asked, rounds: int) -> OverHttp:
    server_cpu, client_cpu = cpus()
    own = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory(prefix="refdesk-bench-") as folder:
        command = [sys.executable, str(HERE / "servers" / "refdesk_echo.py"), str(built.data)]
        with running(command, Path(folder, "log"), server_cpu) as server:
            if client_cpu is not None:
                os.sched_setaffinity(0, {client_cpu})
            try:
                call_all(server, _searches(asked.warming))
                one = call_all(server, _searches(asked.measured))
                words = call_all(server, _word_searches(asked.measured))
                many = call_all(server, _searches(asked.at_once), CLIENTS)
                memory = memory_of(server.pid)
                trivial = [_trivial(server, asked.measured[0]) for _ in range(rounds)]
            finally:
                os.sched_setaffinity(0, own)
    ping, echo, cached = (median(costs) for costs in zip(*trivial, strict=True))
    over = median(cached - echo for _, echo, cached in trivial)
    return OverHttp(one, words, many, memory, ping, echo, cached, over)


def _searches(asked: Sequence[str]) -> list[Message]:
    return [tool_call("search_documentation", query=question, max_results=LIMIT) for question in asked]


def _word_searches(asked: Sequence[str]) -> list[Message]:
    by_words: dict[str, Any] = {"search_mode": "custom", "settings": {"mode": "fulltext"}}
    by_words |= {"collection_id": "all", "limit": LIMIT}
    return [tool_call("r2r_search", query=question, **by_words) for question in asked]


def _trivial(server: Any, question: str) -> tuple[float, float, float]:
    """A ping, a call that says a text back, and a search that is answered from memory; in µs of the server's CPU."""
    echo = tool_call("echo", text=question)
    search = tool_call("r2r_search", query=question, collection_id="all", limit=LIMIT)
    call_all(server, [search])
    ping, echoed, cached = (call_all(server, [message] * TRIVIAL_CALLS) for message in (PING, echo, search))
    return ping.cpu_mean * 1000, echoed.cpu_mean * 1000, cached.cpu_mean * 1000


def _qmd(built: Built, asked: Sequence[str], skipped: dict[str, str]) -> PeerMeasured | None:
    try:
        return measure_qmd(built.folder / "knowledge.db", built.chunks, asked)
    except PeerUnavailable as error:
        skipped["qmd"] = str(error)
        return None


BUILD_COLUMNS = (
    "chunks",
    "documents",
    "real vectors",
    "text CPU s",
    "MB",
    "vectors CPU s",
    "MB",
    "record MB",
    "FTS5 CPU s",
    "MB",
)
SEARCH_COLUMNS = ("chunks", "search", "CPU ms p50", "p99", "mean", "wall ms p50", "p99", "FTS5 / it")
MEMORY_COLUMNS = (
    "chunks",
    "RSS MiB",
    "anonymous",
    "server RSS",
    "anonymous",
    "cold: open ms",
    "first ms",
    "CPU",
    "next p50",
)


def _tell(rows: Sequence[Row], skipped: Mapping[str, str], options: argparse.Namespace) -> None:
    print_table(BUILD_COLUMNS, [_build_cells(row) for row in rows])
    print()
    print_table(SEARCH_COLUMNS, [cells for row in rows for cells in _search_cells(row)])
    print()
    print_table(MEMORY_COLUMNS, [_memory_cells(row) for row in rows])
    for name, reason in skipped.items():
        print(f"skipped {name}: {reason}")
    config = {
        "questions": options.questions,
        "rounds": options.rounds,
        "limit": LIMIT,
        "clients": CLIENTS,
        "noise": "vectors beyond the real ones are real ones with noise",
        "versions": {name: version(name) for name in ("tantivy", "numpy", "onnxruntime")}
        | {"sqlite": sqlite3.sqlite_version},
    }
    print_json("search", config, [_json(row) for row in rows], skipped=skipped)
    _judge(rows)


def _build_cells(row: Row) -> list[str]:
    built = row.built
    return [
        f"{built.chunks}",
        f"{built.documents}",
        f"{built.real_vectors}",
        f"{built.fulltext.cpu_seconds:.1f}",
        _megabytes(built.fulltext.bytes),
        f"{built.vectors.cpu_seconds:.1f}",
        _megabytes(built.vectors.bytes),
        _megabytes(built.record_bytes),
        f"{row.fts5.cpu_seconds:.1f}",
        _megabytes(row.fts5.bytes),
    ]


def _search_cells(row: Row) -> list[list[str]]:
    searches: dict[str, Times] = {
        **row.modes,
        f"hybrid, {CLIENTS} clients": row.at_once,
        "hybrid, tool over HTTP": row.http.one,
        f"hybrid, tool over HTTP, {CLIENTS} clients": row.http.many,
        "words, tool over HTTP": row.http.words,
        "FTS5, all words": row.fts5_all_words,
        "FTS5, no stop words": row.fts5_telling_words,
        "numpy, all vectors": row.numpy,
        **({"qmd over MCP, words alone": row.qmd.times} if row.qmd else {}),
    }
    return [[f"{row.built.chunks}", name, *_time_cells(times, row)] for name, times in searches.items()]


def _time_cells(times: Times, row: Row) -> list[str]:
    ratio = row.fts5_all_words.cpu_mean / times.cpu_mean
    numbers = (times.cpu_p50, times.cpu_p99, times.cpu_mean, times.wall_p50, times.wall_p99, ratio)
    return [f"{number:.2f}" for number in numbers]


def _memory_cells(row: Row) -> list[str]:
    cold = row.cold
    numbers = (row.memory.rss, row.memory.anonymous, row.http.memory.rss, row.http.memory.anonymous, cold.opened_ms)
    return [f"{row.built.chunks}", *(f"{number:.0f}" for number in numbers), *_cold_cells(cold)]


def _cold_cells(cold: Cold) -> list[str]:
    return [f"{number:.1f}" for number in (cold.first_ms, cold.first_cpu_ms, cold.following_wall_p50)]


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f}"


def _json(row: Row) -> dict[str, Any]:
    built = {**asdict(row.built), "data": row.built.data.name}
    return {**asdict(row), "built": built}


def _judge(rows: Sequence[Row]) -> None:
    """Against the targets, at the largest size; the peer where it was measured."""
    least, most = rows[0], rows[-1]
    chunks = f"{most.built.chunks} chunks"
    print_verdict(f"hybrid search, CPU p50, {chunks}", most.hybrid.cpu_p50, CPU_TARGET_MS, at_most=True, unit=" ms")
    print_verdict(f"hybrid search, wall p50, {chunks}", most.hybrid.wall_p50, WALL_TARGET_MS, at_most=True, unit=" ms")
    ratio = most.fts5_all_words.cpu_mean / most.hybrid.cpu_mean
    print_verdict(f"FTS5 OR / hybrid, mean CPU, {chunks}", ratio, RATIO_TARGET, at_most=False)
    for name, ours in (("hybrid", least.http.one), ("words", least.http.words)):
        peer = least.qmd.times.cpu_mean / ours.cpu_mean if least.qmd else None
        what = f"qmd, words alone / {name} over HTTP, mean CPU, {least.built.chunks} chunks"
        print_verdict(what, peer, RATIO_TARGET, at_most=False)
    print_verdict(f"RSS, {chunks}", most.http.memory.rss, RSS_TARGET_MIB, at_most=True, unit=" MiB")
    print_verdict(
        "cached search over a trivial call", most.http.cached_over_echo_us, CACHED_TARGET_US, at_most=True, unit=" µs"
    )
    if len(rows) > 1:
        growth = most.hybrid.cpu_mean / least.hybrid.cpu_mean
        times = most.built.chunks / least.built.chunks
        exponent = math.log(growth) / math.log(times)
        print_verdict(
            f"growth of hybrid CPU over {times:.0f} times the chunks (x{growth:.2f}), as a power",
            exponent,
            1,
            at_most=True,
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES), help="chunks (default 10000 50000 200000)")
    parser.add_argument("--questions", type=int, default=QUESTIONS, help=f"different questions (default {QUESTIONS})")
    parser.add_argument("--rounds", type=int, default=3, help="times that each is asked (default 3)")
    parser.add_argument("--fresh", action="store_true", help="bring the documents in anew")
    parser.add_argument("--quick", action="store_true", help="the smallest size, one round, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.rounds = [SIZES[0]], 1
    return options


if __name__ == "__main__":
    sys.exit(main())
