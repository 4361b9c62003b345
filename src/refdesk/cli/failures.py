"""What a command that failed says: a sentence, what to do next, and with `--json` the same for programs.

Standard output then holds one JSON value whatever happens, and the sentence is on standard error as always.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from refdesk.cli.exit_codes import Exit
from refdesk.cli.parser.arguments import Misuse
from refdesk.cli.terminal import printable
from refdesk.errors import ConfigError, DependencyError, RefdeskError
from refdesk.version import __version__

TRACEBACK = "REFDESK_TRACEBACK"
"""The variable that has a fault of Refdesk itself shown with the lines that led to it."""

LOOK = "`refdesk doctor` looks for the cause"

HINTS = {
    "UnknownTool": "`refdesk tools` lists the tools",
    "CollectionNotFound": "`refdesk collections` lists the collections",
    "DocumentNotFound": "`refdesk documents` lists the documents; a file is taken where there is one of this name",
}
"""What a person does next, by the kind of error: its own words are for agents, who have tools in place of commands."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a command failed, in lines; what to do; and what a program is told besides."""

    code: Exit
    lines: tuple[str, ...]
    hint: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


def tell(error: Exception, *, as_json: bool) -> int:
    """Say why the command failed; answers its exit code."""
    failure = _failure(error)
    if as_json:
        hint = {"hint": failure.hint} if failure.hint else {}
        print(json.dumps({"error": {**failure.facts, **hint}}, indent=2, ensure_ascii=False))
        sys.stdout.flush()
    say_why(failure.lines, failure.hint)
    return failure.code


def say_why(lines: Iterable[str], hint: str) -> None:
    """Why it failed and what to do, on standard error."""
    for line in lines:
        print(f"refdesk: {printable(line)}", file=sys.stderr)
    if hint:
        print(f"hint: {printable(hint)}", file=sys.stderr)


def _failure(error: Exception) -> Failure:
    match error:
        case Misuse():
            hint = f"see `{error.command} --help`" if error.command else ""
            return Failure(Exit.MISUSED, (error.problem,), hint, _facts("Misuse", error.problem))
        case ConfigError():
            facts = {**error.data, "problems": list(error.problems)}
            is_missing = any(problem.endswith("no such file") for problem in error.problems)
            hint = "`refdesk init` writes a configuration to begin with" if is_missing else ""
            return Failure(Exit.MISUSED, error.problems, hint, facts)
        case RefdeskError():
            hint = LOOK if isinstance(error, DependencyError) else HINTS.get(type(error).__name__, "")
            return Failure(Exit.FAILED, tuple(error.detail.splitlines()), hint, error.data)
        case OSError():
            return Failure(Exit.FAILED, (_sentence(error),), LOOK, _facts("OSError", _sentence(error)))
    return _unforeseen(error)


def _unforeseen(error: Exception) -> Failure:
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    what = f"unforeseen, and a fault of Refdesk {__version__}: {type(error).__name__}: {error}"
    hint = f"set {TRACEBACK}=1 to see where it happened, and report it with that"
    return Failure(Exit.FAILED, (what,), hint, _facts("InternalError", what))


def _facts(kind: str, detail: str) -> dict[str, Any]:
    return {"type": kind, "detail": detail, "retryable": False}


def _sentence(error: OSError) -> str:
    """Without the number, which only says the same to machines."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason
