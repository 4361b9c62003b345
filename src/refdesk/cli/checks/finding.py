"""What a check is given, and what it finds."""

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
    """How one thing is, in a sentence; and how to mend it where it is not well."""

    state: State
    text: str
    mend: str = ""


def ok(text: str) -> Finding:
    """All is well, or there is nothing to look at."""
    return Finding("ok", text)


def warn(text: str, mend: str) -> Finding:
    """The desk does its work, but somebody should know."""
    return Finding("warn", text, mend)


def fail(text: str, mend: str) -> Finding:
    """Something that was asked for does not work."""
    return Finding("fail", text, mend)


def counted(number: int, thing: str) -> str:
    """So many of a thing, in words."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Situation:
    """What all checks look at."""

    config: Config
    config_file: Path | None
    problems: tuple[str, ...]
    """Why the configuration cannot be used; `config` holds the defaults then."""
    desk: RunningDesk | None
    """What answers at the configured address."""
    environ: Mapping[str, str]
    home: Path
    cwd: Path
    seconds: float
    """How long a check may take."""
