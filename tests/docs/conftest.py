"""At the end of a run: what has become of the commands of the pages."""

from __future__ import annotations

import pytest

from tests.docs.tally import TALLY


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line, so that what is not run does not go unseen."""
    reasons = {reason: count for reason, count in TALLY.items() if reason not in ("run", "compared")}
    if TALLY:
        told = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
        terminalreporter.write_line(
            f"commands of the pages: {TALLY['run']} run, {sum(reasons.values())} only checked ({told}); "
            f"{TALLY['compared']} shown outputs compared"
        )
