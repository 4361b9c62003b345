"""Error reporting for failed commands: exit codes, message and hint on stderr, with `--json` an object on stdout."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

import click

from refdesk.cli.terminal import print_json, sanitize
from refdesk.errors import ConfigError, DependencyError, RefdeskError
from refdesk.version import __version__

TRACEBACK_VARIABLE = "REFDESK_TRACEBACK"
"""Environment variable that prints a traceback for internal errors."""

DOCTOR_HINT = "run `refdesk doctor` to find the cause"

HINTS = {
    "UnknownTool": "`refdesk tools` lists the tools",
    "CollectionNotFound": "`refdesk collections` lists the collections",
    "DocumentNotFound": "`refdesk documents` lists the documents; to read a file, give its path",
}
"""Next steps by error type. The error's own text is written for agents, which call tools instead of commands."""


class ExitCode(IntEnum):
    """An exit code with its description. The reference page is generated from this."""

    OK = 0, "The command succeeded."
    FAILED = 1, "The command failed, something was not found, or `refdesk doctor` found a problem."
    USAGE_ERROR = (
        2,
        "The command line or the configuration is invalid, or the command needs confirmation. Nothing was done.",
    )
    INTERRUPTED = 130, "The command was interrupted with Ctrl-C."
    BROKEN_PIPE = 141, "The reader of the output closed the pipe early, as `head` does."

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        """Create a member whose value is the code alone."""
        one = int.__new__(cls, code)
        one._value_ = code
        one.meaning = meaning
        return one


def report_failure(error: Exception, *, as_json: bool) -> int:
    """Print why the command failed and return its exit code."""
    code, lines, hint, facts = _describe(error)
    if as_json:
        print_json({"error": {**facts, "hint": hint} if hint else facts})
        sys.stdout.flush()
    print_failure(lines, hint)
    return code


def print_failure(lines: Iterable[str], hint: str = "") -> None:
    """Print the message lines and the hint on standard error."""
    for line in lines:
        print(f"refdesk: {sanitize(line)}", file=sys.stderr)
    if hint:
        print(f"hint: {sanitize(hint)}", file=sys.stderr)


def _describe(error: Exception) -> tuple[ExitCode, Sequence[str], str, dict[str, Any]]:
    """Return the exit code, message lines, hint, and error data for `--json`."""
    code = ExitCode.FAILED
    match error:
        case ConfigError():
            is_missing = any(problem.endswith("no such file") for problem in error.problems)
            hint = "`refdesk init` writes a configuration to start from" if is_missing else ""
            facts = {**error.data, "problems": list(error.problems)}
            return ExitCode.USAGE_ERROR, error.problems, hint, facts
        case RefdeskError():
            hint = DOCTOR_HINT if isinstance(error, DependencyError) else HINTS.get(type(error).__name__, "")
            return code, error.detail.splitlines(), hint, error.data
        case click.UsageError():
            code, kind, problem = ExitCode.USAGE_ERROR, "Misuse", error.format_message()
            hint = f"see `{error.ctx.command_path} --help`" if error.ctx else ""
        case OSError():
            reason = error.strerror or str(error)
            kind, problem = "OSError", f"{error.filename}: {reason}" if error.filename else reason
            hint = DOCTOR_HINT
        case _:
            if os.environ.get(TRACEBACK_VARIABLE):
                traceback.print_exception(error)
            kind, problem = "InternalError", f"internal error in Refdesk {__version__}: {type(error).__name__}: {error}"
            hint = f"set {TRACEBACK_VARIABLE}=1 for a traceback, and report the error with it"
    return code, [problem], hint, {"type": kind, "detail": problem, "retryable": False}
