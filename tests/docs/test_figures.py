"""The drawings and tables about performance are what the kept results give."""

from __future__ import annotations

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest

import plots
from tests.docs.blocks import ROOT
from tests.waiting import PATIENCE_SECONDS


def test_drawings_and_tables_are_up_to_date() -> None:
    program = ROOT / "benchmarks" / "plots.py"
    done = subprocess.run(
        [sys.executable, str(program), "--check"], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, f"{done.stdout}run: .venv/bin/python benchmarks/plots.py"


@pytest.mark.parametrize("figure", plots.FIGURES, ids=lambda figure: str(figure.benchmark))
def test_a_result_says_where_it_comes_from_and_can_be_drawn(figure: plots.Figure) -> None:
    result = json.loads((plots.RESULTS / f"{figure.benchmark}.json").read_text("utf-8"))
    assert result["benchmark"] == figure.benchmark
    assert result["commit"]
    assert result["date"]
    assert result["machine"]["cpus"]
    drawn = ElementTree.fromstring(plots.drawing(figure, result))
    assert len(drawn.findall("{http://www.w3.org/2000/svg}rect")) == 1 + len(figure.bars(result))


def test_a_changed_result_changes_the_table() -> None:
    table = plots.markdown([["", "chunks"], ["Refdesk", "1.0"]])
    page = "before\n\n<!-- from benchmarks/results/search.json -->\n| old |\n|---|\n| 2 |\n\nafter\n"
    assert plots.with_table(page, "search", table) == page.replace("| old |\n|---|\n| 2 |\n", table)
