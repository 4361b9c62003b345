"""How results are told: a table for people, one JSON line for machines, and where and on what they were measured."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need to be; the first to the left, numbers to the right."""
    widths = [max(len(row[index]) for row in [columns, *rows]) for index in range(len(columns))]
    for row in [columns, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells[1:]]))


def print_json(benchmark: str, config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], **more: Any) -> None:
    """The one line."""
    print(json.dumps({"benchmark": benchmark, **where(), "config": config, "rows": rows, **more}))


def print_verdict(what: str, value: float | None, target: float, *, at_most: bool, unit: str = "") -> None:
    """Whether a target was met."""
    bound = f"target {'<=' if at_most else '>='} {target:g}{unit}"
    if value is None:
        print(f"{what}: not measured ({bound})")
        return
    met = value <= target if at_most else value >= target
    print(f"{what}: {value:.2f}{unit} ({bound}): {'met' if met else 'MISSED'}")


def where() -> dict[str, Any]:
    """Commit, time and machine."""
    return {
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": _cpu_model(), "cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 2)},
        "python": platform.python_version(),
    }


def _commit() -> str:
    """The commit, with a mark when the sources differ from it."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + ("+changes" if _git("status", "--porcelain", "--", "src", "benchmarks") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
