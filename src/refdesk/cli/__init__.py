"""Command line entry point. Commands are imported when they run, so that `--help` is fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

import click

from refdesk.cli.error_report import ExitCode
from refdesk.cli.parser import parse

OVERVIEW = """\
refdesk: the reference desk for LLM agents

  refdesk add docs/              add documents: a folder, a file or a URL
  refdesk search "how do I …"    search them
  refdesk serve                  run the server: /mcp for agents, /console for people
  refdesk install claude-code    configure an MCP client to use it
  refdesk doctor                 check the installation

Run `refdesk --help` for all commands, and `refdesk COMMAND --help` for the options of one.
"""

COMPLETE_COMMAND = "__complete"
"""Hidden command called by shell completion scripts. It bypasses the parser to be fast."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    # The streams are None if the caller closed them, as with `>&-`.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Replace characters that the terminal's encoding lacks.
            stream.reconfigure(errors="replace")
    if not args:
        print(OVERVIEW, end="", file=sys.stderr)
        return ExitCode.USAGE_ERROR
    try:
        return _run(args)
    except BrokenPipeError:
        # The reader is gone, as with `head`: keep the interpreter from flushing stdout again at exit.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
        return ExitCode.BROKEN_PIPE


def _run(args: Sequence[str]) -> int:
    try:
        if args[0] == COMPLETE_COMMAND:
            from refdesk.cli.completion import complete

            complete(args[1:])
            return ExitCode.OK
        code = parse(args).run()
        sys.stdout.flush()
        return code
    except click.exceptions.Exit as ended:
        # After --help and --version.
        sys.stdout.flush()
        return ended.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - top level: reported as a message
        from refdesk.cli.error_report import report_failure

        # Arguments after `--` belong to another command.
        return report_failure(error, as_json="--json" in args[: [*args, "--"].index("--")])
