"""How many commands of the pages were run, and how many were only checked, by reason."""

from __future__ import annotations

from collections import Counter

TALLY: Counter[str] = Counter()
"""Filled in by the tests, told at the end of the run."""
