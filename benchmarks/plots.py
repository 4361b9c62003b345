"""Draws the figures of the manual, and writes its tables, from the results that are kept in benchmarks/results.

    .venv/bin/python benchmarks/plots.py            # write the drawings and the tables
    .venv/bin/python benchmarks/plots.py --check    # only say whether they are what the results give

A result is the JSON line that a benchmark prints, in a file of its name:

    .venv/bin/python benchmarks/serve_overhead.py | grep '^{"benchmark"' > benchmarks/results/serve_overhead.json
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from report import ROOT

RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
PAGES = ROOT / "docs" / "explanation"

OURS, THEIRS, INK, FAINT = "#2455c3", "#b0bec5", "#263238", "#607d8b"
"""Blue for Refdesk and grey for the rest; dark ink on a white card can be read on a light page and on a dark one."""

WIDTH, LABELS, BAR, GAP, TOP = 720, 270, 18, 10, 46

Result = dict[str, Any]


@dataclass(frozen=True)
class Bar:
    """One bar: what it is, how long, and whether it is Refdesk."""

    label: str
    value: float
    ours: bool = False


@dataclass(frozen=True)
class Figure:
    """What is made of one result: a drawing, and tables of a page."""

    benchmark: str
    page: str
    title: str
    unit: str
    bars: Callable[[Result], list[Bar]]
    table: Callable[[Result], list[list[str]]]


def _serve_bars(result: Result) -> list[Bar]:
    return [Bar(_serve_label(row), row["cpu_us"], "Refdesk" in row["what"]) for row in _serve_rows(result)]


def _serve_rows(result: Result) -> list[Result]:
    """List the rows of servers that still exist: an older Refdesk answered some calls by the SDK."""
    return [row for row in result["rows"] if "by the SDK" not in row["what"]]


def _serve_label(row: Result) -> str:
    return str(row["what"]).replace("plain lane, ", "")


def _serve_table(result: Result) -> list[list[str]]:
    head = ["Called", "CPU µs/call", "to raw", "calls/s", "to SDK"]
    return [head, *map(_serve_row, _serve_rows(result))]


def _serve_row(row: Result) -> list[str]:
    ratios = row["cpu_ratio_to_raw"], row["per_second_ratio_to_sdk"]
    numbers = [f"{row['cpu_us']:,.0f}", f"{ratios[0]:.2f}", f"{row['per_second']:,.0f}", f"{ratios[1]:.2f}"]
    return [_serve_label(row), *numbers]


GATEWAYS = {"relay": "bare relay, no policy", "refdesk": "**Refdesk**, all policies"}


def _gateway_bars(result: Result) -> list[Bar]:
    rows = [row for row in result["rows"] if row["kind"] == "stdio"]
    return [Bar(_gateway_name(row["name"]), row["cpu_ms_16"], row["name"] == "refdesk") for row in rows]


def _gateway_table(result: Result) -> list[list[str]]:
    found = {(row["name"], row["kind"]): row["cpu_ms_16"] for row in result["rows"]}
    cells = [
        [GATEWAYS.get(name, name), *(_bold(name, found.get((name, kind))) for kind in ("stdio", "http"))]
        for name in dict.fromkeys(row["name"] for row in result["rows"])
    ]
    return [["Gateway", "stdio server, CPU ms per call", "HTTP server, CPU ms per call"], *cells]


def _gateway_name(name: str) -> str:
    return GATEWAYS.get(name, name).replace("*", "")


def _bold(name: str, value: float | None) -> str:
    mark = "**" if name == "refdesk" else ""
    return "" if value is None else f"{mark}{value:.2f}{mark}"


SEARCHES: dict[str, Callable[[Result], float]] = {
    "Refdesk, full-text": lambda row: float(row["modes"]["fulltext"]["cpu_mean"]),
    "Refdesk, semantic": lambda row: float(row["modes"]["semantic"]["cpu_mean"]),
    "Refdesk, hybrid": lambda row: float(row["modes"]["hybrid"]["cpu_mean"]),
    "FTS5, all words": lambda row: float(row["fts5_all_words"]["cpu_mean"]),
    "FTS5, no stop words": lambda row: float(row["fts5_telling_words"]["cpu_mean"]),
}


def _search_bars(result: Result) -> list[Bar]:
    return [
        Bar(f"{name}, {row['built']['chunks']:,} chunks", SEARCHES[name](row), name.startswith("Refdesk"))
        for name in ("Refdesk, hybrid", "FTS5, no stop words", "FTS5, all words")
        for row in result["rows"]
    ]


def _search_table(result: Result) -> list[list[str]]:
    chunks = [f"{row['built']['chunks']:,}" for row in result["rows"]]
    rows = [[name, *(f"{value(row):.1f}" for row in result["rows"])] for name, value in SEARCHES.items()]
    both = "Refdesk, hybrid"
    ratios = [f"{SEARCHES['FTS5, all words'](row) / SEARCHES[both](row):.1f}" for row in result["rows"]]
    told = [[f"**{cell}**" for cell in row] if row[0] == both else row for row in rows]
    return [["", f"{chunks[0]} chunks", *chunks[1:]], *told, [f"FTS5, all words / {both}", *ratios]]


FORMATS = {"pdf": "PDF", "docx": "DOCX", "pptx": "PPTX", "xlsx": "XLSX", "html": "HTML with navigation"}
FORMATS |= {"odt": "ODT", "epub": "EPUB", "rtf": "RTF"}


def _convert_bars(result: Result) -> list[Bar]:
    return [
        Bar(f"{FORMATS[row['format']]}, {row['engine']}", row["score"]["overall"], row["engine"] == "refdesk")
        for format in FORMATS
        for row in _ours_and_best(result, format)
    ]


def _ours_and_best(result: Result, format: str) -> list[Result]:
    """Refdesk, and the other converter with the best score."""
    rows = [row for row in result["rows"] if row["format"] == format]
    others = sorted((row for row in rows if row["engine"] != "refdesk"), key=lambda row: -row["score"]["overall"])
    return [row for row in rows if row["engine"] == "refdesk"] + others[:1]


def _convert_table(result: Result) -> list[list[str]]:
    head = ["Format", "files", "Refdesk", "CPU ms", "Best peer", "CPU ms", "markitdown", "docling"]
    return [head, *(_convert_row(result, format) for format in FORMATS)]


def _convert_row(result: Result, format: str) -> list[str]:
    ours, best = _ours_and_best(result, format)
    scores = {row["engine"]: row["score"]["overall"] for row in result["rows"] if row["format"] == format}
    peers = [f"{scores[name]:.3f}" if name in scores else "" for name in ("markitdown", "docling")]
    return [FORMATS[format], str(ours["files"]), f"{ours['score']['overall']:.3f}", _short(ours["cpu_ms"]),
            f"{best['engine']} {best['score']['overall']:.3f}", _short(best["cpu_ms"]), *peers]  # fmt: skip


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 50 else f"{value:.0f}"


FIGURES = [
    Figure(
        benchmark="serve_overhead",
        page="performance.md",
        title="Server CPU time per call",
        unit="CPU µs per call",
        bars=_serve_bars,
        table=_serve_table,
    ),
    Figure(
        benchmark="gateway",
        page="performance.md",
        title="Gateway CPU time per call, server on stdio",
        unit="CPU ms per call",
        bars=_gateway_bars,
        table=_gateway_table,
    ),
    Figure(
        benchmark="convert",
        page="performance.md",
        title="Conversion quality of Refdesk and the best peer",
        unit="score, 1 is best",
        bars=_convert_bars,
        table=_convert_table,
    ),
    Figure(
        benchmark="search",
        page="search-performance.md",
        title="Search CPU time by number of chunks",
        unit="CPU ms, mean",
        bars=_search_bars,
        table=_search_table,
    ),
]


def drawing(figure: Figure, result: Result) -> str:
    """Bars one below another, each with its label and its number, on a white card."""
    bars = figure.bars(result)
    longest = max(bar.value for bar in bars)
    height = TOP + len(bars) * (BAR + GAP) + 30
    lines = [f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>',
             _text(16, 26, figure.title, INK, size=15, weight=600),
             _text(WIDTH - 16, 26, figure.unit, FAINT, anchor="end")]  # fmt: skip
    for number, bar in enumerate(bars):
        lines += _bar(bar, TOP + number * (BAR + GAP), longest)
    lines.append(_text(16, height - 12, _where(result), FAINT, size=11))
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img"'
    name = f"{figure.title}: " + "; ".join(f"{bar.label} {bar.value:g}" for bar in bars)
    return "\n".join([f'{opening} aria-label="{escape(name)}" font-family="sans-serif">', *lines, "</svg>", ""])


def _bar(bar: Bar, top: int, longest: float) -> list[str]:
    length = max(1, round((WIDTH - LABELS - 90) * bar.value / longest))
    colour = OURS if bar.ours else THEIRS
    return [
        _text(LABELS - 8, top + 13, bar.label, INK, anchor="end"),
        f'<rect x="{LABELS}" y="{top}" width="{length}" height="{BAR}" rx="2" fill="{colour}"/>',
        _text(LABELS + length + 6, top + 13, f"{bar.value:,g}", INK),
    ]


def _text(x: int, y: int, text: str, colour: str, *, anchor: str = "start", size: int = 12, weight: int = 400) -> str:
    look = f'fill="{colour}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x}" y="{y}" {look}>{escape(text)}</text>'


def _where(result: Result) -> str:
    machine = result["machine"]
    return f"{result['date'][:10]}, commit {result['commit'][:7]}, {machine['cpus']} cores, {machine['cpu']}"


def markdown(cells: Sequence[Sequence[str]]) -> str:
    """A table as the pages have it."""
    head, *rows = [re.sub(r" +\|", " |", "| " + " | ".join(row) + " |") for row in cells]
    return "\n".join([head, "|---" + "|--:" * (len(cells[0]) - 1) + "|", *rows]) + "\n"


def with_table(page: str, benchmark: str, table: str) -> str:
    """The page with the table below its mark written anew."""
    mark = f"<!-- from benchmarks/results/{benchmark}.json -->\n"
    if mark not in page:
        raise SystemExit(f"a page has no mark for the table of {benchmark}")
    return re.sub(re.escape(mark) + r"(?:\|[^\n]*\n)*", lambda _: mark + table, page)


def main() -> int:
    """Write what is not as the results give it, or only tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when something is out of date")
    only_check = parser.parse_args().check
    stale = 0
    for figure in FIGURES:
        result = json.loads((RESULTS / f"{figure.benchmark}.json").read_text("utf-8"))
        page = PAGES / figure.page
        image = IMAGES / f"{figure.benchmark.replace('_', '-')}.svg"
        told = with_table(page.read_text("utf-8"), figure.benchmark, markdown(figure.table(result)))
        for path, text in ((image, drawing(figure, result)), (page, told)):
            if path.is_file() and path.read_text("utf-8") == text:
                continue
            stale += 1
            print(f"{path.relative_to(ROOT)} {'is out of date' if only_check else 'was written'}")
            if not only_check:
                path.write_text(text, "utf-8")
    return int(only_check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
