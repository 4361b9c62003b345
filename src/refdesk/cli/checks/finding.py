"""Context and findings of checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from refdesk.cli.running_desk import RunningDesk
from refdesk.config import Config

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """State of one thing in a sentence, with a suggested fix if it isn't ok."""

    state: State
    text: str
    fix: str = ""


def ok(text: str) -> Finding:
    """Return a finding for what works or doesn't apply."""
    return Finding("ok", text)


def warn(text: str, fix: str) -> Finding:
    """Return a finding for what works but needs attention."""
    return Finding("warn", text, fix)


def fail(text: str, fix: str) -> Finding:
    """Return a finding for what doesn't work."""
    return Finding("fail", text, fix)


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
