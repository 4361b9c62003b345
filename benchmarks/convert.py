"""How well and how fast documents are converted: Refdesk and its peers on documents whose structure is known.

Every engine converts the same files in a process of its own; scores and CPU time come from the same run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import distribution
from pathlib import Path
from statistics import median
from typing import Any

import pypdfium2

from quality import engines
from quality.corpus import HALVES, Sample, build, samples
from quality.peers import ENVIRONMENTS, PACKAGES, python_with
from quality.recipes import RECIPES
from quality.score import Score, mean, score
from quality.sources import NotToBeHad, unpacked
from report import print_json, print_table, print_verdict

OURS = "refdesk"
USUAL = (OURS, "markitdown", "pypdf", "docling", "pandoc", "anydoc")
ABLE: dict[str, tuple[str, ...]] = {
    "pdf": (OURS, "markitdown", "pypdf", "docling", "liteparse", "anydoc"),
    "docx": (OURS, "markitdown", "docling", "pandoc", "anydoc", "office-oxide"),
    "pptx": (OURS, "markitdown", "docling", "anydoc", "office-oxide"),
    "xlsx": (OURS, "markitdown", "docling", "anydoc", "office-oxide"),
    "html": (OURS, "markitdown", "docling", "pandoc", "html-to-markdown"),
    "odt": (OURS, "anydoc"),
    "rtf": (OURS, "pandoc", "anydoc"),
    "epub": (OURS, "markitdown", "docling", "pandoc", "anydoc"),
}
"""Which engine reads which format."""
BUILT_BY: dict[str, tuple[str, ...]] = {
    "pdf": ("manuals", "chromium", "weasyprint", "latex", "groff"),
    **dict.fromkeys(("odt", "rtf", "epub"), ("others",)),
}
"""The parts of the corpus that a format is in; the others are called like the format."""
BEST_OVERALL = {"pdf": 0.87, "docx": 0.95, "pptx": 0.92, "xlsx": 0.91, "html": 0.98}
LEAST_CPU_MS = {"pdf": 12.0, "docx": 10.0, "pptx": 10.0, "xlsx": 10.0, "html": 10.0}
"""Targets: of the overall score, and of CPU time for a page of PDF or for a whole document."""
FIRST_PAGE_MS = 200.0
RUN_SECONDS = 3600
OUR_CONVERTERS = ("pypdfium2", "selectolax", "firecrawl-anydoc", "office-oxide", "markdown-it-py", "mdurl", "docutils")
"""What an installation carries for the sake of conversion."""
COLUMNS = (
    *("engine", "files", "failed"),
    *("text", "headings", "level", "cells", "pairs", "code", "items", "overall"),
    *("to best", "CPU ms", "to best"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """An engine on all files of a format."""

    format: str
    engine: str
    files: int
    failed: int
    score: Score
    cpu_ms: float
    """Of a page of PDF, or of a whole document; the mean."""
    typical_ms: float
    """Of the document in the middle."""
    load_ms: float
    overall_to_best_peer: float | None = None
    cpu_to_best_peer: float | None = None
    """Ratios to the peer with the best overall score in the same run."""

    def cells(self) -> list[str]:
        """As they are printed."""
        scores = (_three(value) for value in asdict(self.score).values())
        ratios = _two(self.overall_to_best_peer), f"{self.cpu_ms:.1f}", _two(self.cpu_to_best_peer)
        return [self.engine, str(self.files), str(self.failed), *scores, *ratios]


def main() -> int:
    """Measure and print."""
    options = _options()
    rows: list[Row] = []
    for format in options.format:
        measured = list(_measured(format, options))
        rows += measured
        if measured:
            _print_format(format, measured)
    sizes = _sizes(options.engine)
    first_page = _first_page_ms() if "pdf" in options.format and OURS in options.engine else None
    _print_rest(rows, sizes, first_page)
    config = {"set": options.set, "engines": options.engine, "limit": options.limit}
    print_json("convert", config, [asdict(row) for row in rows], first_page_ms=first_page, megabytes=sizes)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", type=_names(ABLE), default=list(ABLE), help="such as pdf,docx; all by default")
    parser.add_argument("--set", choices=HALVES, default="holdout", help="dev is for tuning, holdout for reporting")
    parser.add_argument("--engine", type=_names(engines.ENGINES), default=list(USUAL), help=", ".join(engines.ENGINES))
    parser.add_argument("--limit", type=int, help="at most so many files of a format")
    parser.add_argument("--details", action="store_true", help="print the score of each file as well")
    return parser.parse_args()


def _names(known: Mapping[str, object]) -> Any:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"not known: {', '.join(unknown)}; there are {', '.join(known)}")
        return names

    return parse


def _measured(format: str, options: argparse.Namespace) -> Iterator[Row]:
    files = _files(format, options.set)[: options.limit]
    if not files:
        print(f"{format}: the corpus has no files of the set {options.set}", file=sys.stderr)
        return
    rows: list[Row] = []
    for engine in (name for name in ABLE[format] if name in options.engine):
        try:
            rows.append(_row(format, engine, files, details=options.details))
        except NotToBeHad as error:
            print(f"{format}: {engine} is left out: {error}", file=sys.stderr)
    best = max((row for row in rows if row.engine != OURS), key=lambda row: row.score.overall or 0.0, default=None)
    for row in rows:
        yield row if best is None else _related(row, best)


def _files(format: str, half: str) -> list[Sample]:
    """The files of a format; made first where there are none."""
    if not any(samples(format, one) for one in HALVES):
        for part in BUILT_BY.get(format, (format,)):
            try:
                build(RECIPES[part]())
            except NotToBeHad as error:
                print(f"{part} is left out: {error}", file=sys.stderr)
    return samples(format, half)


def _related(row: Row, best: Row) -> Row:
    overall = (row.score.overall or 0.0) / best.score.overall if best.score.overall else None
    return replace(row, overall_to_best_peer=overall, cpu_to_best_peer=row.cpu_ms / best.cpu_ms)


def _row(format: str, engine: str, files: Sequence[Sample], *, details: bool) -> Row:
    with tempfile.TemporaryDirectory(prefix="refdesk-bench-") as folder:
        loaded, results = _run(engine, Path(folder), [sample.document for sample in files])
        scores: list[Score] = []
        for sample in files:
            scores.append(_score(sample, Path(folder)))
            if details:
                _print_file(engine, sample, scores[-1], results.get(sample.name))
    failed = sum(sample.name not in results or bool(results[sample.name]["error"]) for sample in files)
    units = sum(_pages(sample.document) for sample in files) if format == "pdf" else len(files)
    cpu_ms = sum(result["cpu_ms"] for result in results.values()) / units
    typical = median(result["cpu_ms"] for result in results.values()) if results else 0.0
    return Row(format, engine, len(files), failed, mean(scores), cpu_ms, typical, loaded)


def _score(sample: Sample, folder: Path) -> Score:
    """What failed is scored like an empty text."""
    written = folder / f"{sample.name}.md"
    return score(sample.truth.read_text("utf-8"), written.read_text("utf-8") if written.exists() else "")


def _run(engine: str, folder: Path, files: Sequence[Path]) -> tuple[float, dict[str, dict[str, Any]]]:
    """The CPU time of loading an engine, and what it said of each file; a crash ends the list early."""
    python = python_with(engine) if engine in PACKAGES else Path(sys.executable)
    command = list(map(str, (python, engines.__file__, engine, folder, *files)))
    with (folder / "log").open("wb") as log:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, timeout=RUN_SECONDS, check=False)
    first, *results = [json.loads(line) for line in done.stdout.splitlines()] or [None]
    if first is None:
        said = (folder / "log").read_text("utf-8", "replace").strip().splitlines() or ["nothing"]
        raise NotToBeHad(f"it cannot be loaded: {said[-1]}")
    return first["load_ms"], {result["name"]: result for result in results}


def _pages(pdf: Path) -> int:
    with pypdfium2.PdfDocument(pdf) as document:
        return len(document)


def _first_page_ms() -> float | None:
    """CPU time until the first page of the longest manual is converted, in a process that has converted before."""
    try:
        manual = unpacked("r-doc-pdf") / "usr/share/R/doc/manual/refman.pdf"
        with tempfile.TemporaryDirectory(prefix="refdesk-bench-") as folder:
            _, results = _run(engines.FIRST_PAGE, Path(folder), [manual])
    except NotToBeHad as error:
        print(f"first page: {error}", file=sys.stderr)
        return None
    result = next(iter(results.values()), {"error": "the process ended"})
    if result["error"]:
        print(f"first page: {result['error']}", file=sys.stderr)
        return None
    return float(result["cpu_ms"])


def _sizes(names: Sequence[str]) -> dict[str, float]:
    """Megabytes on disk: of what we convert with, and of the environments that the peers need."""
    ours = sum(_size(Path(str(file.locate()))) for name in OUR_CONVERTERS for file in distribution(name).files or ())
    peers = {name: ENVIRONMENTS / name / "lib" for name in names if (ENVIRONMENTS / name / "ready").exists()}
    return {OURS: ours} | {name: sum(map(_size, folder.rglob("*"))) for name, folder in peers.items()}


def _size(path: Path) -> float:
    return path.stat().st_size / 1e6 if path.is_file() and not path.is_symlink() else 0.0


def _print_file(engine: str, sample: Sample, one: Score, result: Mapping[str, Any] | None) -> None:
    values = " ".join(_three(value) for value in asdict(one).values())
    said = "the process ended before" if result is None else result["error"]
    print(f"{engine} {sample.name} {values} {said}".rstrip())


def _print_format(format: str, rows: Sequence[Row]) -> None:
    print(f"\n{format}: CPU ms a {'page' if format == 'pdf' else 'document'}")
    print_table(COLUMNS, [row.cells() for row in sorted(rows, key=lambda row: -(row.score.overall or 0.0))])


def _print_rest(rows: Sequence[Row], sizes: Mapping[str, float], first_page: float | None) -> None:
    print("\ninstalled: " + ", ".join(f"{name} {size:.0f} MB" for name, size in sizes.items()))
    for row in rows:
        if row.engine == OURS and row.format in BEST_OVERALL:
            print_verdict(f"{row.format} overall", row.score.overall, BEST_OVERALL[row.format], at_most=False)
            what, value = ("a page", row.cpu_ms) if row.format == "pdf" else ("a typical document", row.typical_ms)
            print_verdict(f"{row.format} CPU, {what}", value, LEAST_CPU_MS[row.format], at_most=True, unit=" ms")
    print_verdict("first page of 2415", first_page, FIRST_PAGE_MS, at_most=True, unit=" ms")


def _three(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _two(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
