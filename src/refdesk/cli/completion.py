"""`refdesk completion`: shell completion of commands, options, choices and live names.

The shell scripts call `refdesk __complete`, which asks click for the candidates, so they never go out of date. They
aren't click's own, which split words at `:` in bash and lose `--option=` in zsh and fish.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from click.shell_completion import ShellComplete

from refdesk.cli.exit_codes import ExitCode
from refdesk.cli.parser import cli

FILES = ":files"
"""Marker that tells the shell script to complete file names."""


def completion(arguments: SimpleNamespace) -> int:
    """Run `refdesk completion`."""
    script = (Path(__file__).parent / "completions" / f"refdesk.{arguments.shell}").read_text("utf-8")
    print(json.dumps({"shell": arguments.shell, "script": script}) if arguments.json else script, end="")
    return ExitCode.OK


def complete(words: Sequence[str]) -> int:
    """Print the candidates for the last word, one per line, each with a description after a tab."""
    for word, description in list_completions(words):
        sys.stdout.write(f"{word}\t{description}\n" if description else f"{word}\n")
    sys.stdout.flush()
    return ExitCode.OK


def list_completions(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return the candidates for the last word. The words before it give its position in the grammar."""
    *before, incomplete = words or [""]
    option, equals, _ = incomplete.partition("=")
    prefix = f"{option}=" if equals and option.startswith("--") and "--" not in before else ""
    items = ShellComplete(cli, {}, "refdesk", "").get_completions(before, incomplete)
    return [(FILES if item.type == "file" else f"{prefix}{item.value}", item.help or "") for item in items]
