"""How many commands of the pages were run, and how many were only checked, by reason.

`referred` are those that were run for another page already.
"""

from __future__ import annotations

from collections import Counter

TALLY: Counter[str] = Counter()
"""Filled in by the tests, told at the end of the run."""

ONLY_CHECKED: list[str] = []
"""Those that were not run, each after its reason; told with `pytest -v`."""
