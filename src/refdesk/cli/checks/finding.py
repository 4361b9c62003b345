"""Context and findings of checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from refdesk.cli.running_desk import RunningDesk
from refdesk.config import Config


@dataclass(frozen=True, slots=True)
class Finding:
    """State of one thing in a sentence, with a suggested fix if it isn't ok.

    `warn` is what works but needs attention, and `fail` what doesn't work.
    """

    state: Literal["ok", "warn", "fail"]
    text: str
    fix: str = ""


ok = partial(Finding, "ok")
warn = partial(Finding, "warn")
fail = partial(Finding, "fail")


def format_count(number: int, thing: str) -> str:
    """Format a number with its noun, in the plural if needed."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class CheckContext:
    """Input of all checks."""

    config: Config
    config_file: Path | None
    problems: tuple[str, ...]
    """Why the configuration is invalid. If set, `config` holds the defaults."""
    desk: RunningDesk | None
    """The server at the configured address."""
    environ: Mapping[str, str]
    home: Path
    cwd: Path
    timeout: float
    """Time limit per check, in seconds."""
