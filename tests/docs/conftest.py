"""At the end of a run: what has become of the commands of the pages."""

from __future__ import annotations

import pytest

from tests.docs.tally import ONLY_CHECKED, TALLY


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line, so that what is not run does not go unseen."""
    reasons = {reason: count for reason, count in TALLY.items() if reason not in ("run", "referred", "compared")}
    if TALLY:
        told = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
        terminalreporter.write_line(
            f"commands of the pages: {TALLY['run']} run, {TALLY['referred']} run for another page, "
            f"{sum(reasons.values())} only checked ({told}); "
            f"{TALLY['compared']} shown outputs compared"
        )
        if terminalreporter.verbosity > 0:
            terminalreporter.write_line("\n".join(sorted(ONLY_CHECKED)))
