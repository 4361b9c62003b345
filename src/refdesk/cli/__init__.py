"""The command line: parse, call, print. What a command needs is imported when it runs, so that help is instant."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from refdesk.cli.parser import build_parser
from refdesk.errors import ConfigError, RefdeskError

EXIT_FAILED = 1
EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; answers its exit code."""
    arguments = build_parser().parse_args(argv)
    if isinstance(sys.stdout, TextIOWrapper):
        # A terminal that cannot show a character shows a mark for it.
        sys.stdout.reconfigure(errors="replace")
    try:
        code: int = arguments.run(arguments)
        return code
    except ConfigError as error:
        for problem in error.problems:
            print(f"refdesk: {problem}", file=sys.stderr)
        return EXIT_USAGE
    except RefdeskError as error:
        print(f"refdesk: {error.detail}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"refdesk: {error}", file=sys.stderr)
        # What could not be written must not be tried again at the end: its reader has left, as `head` does.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
        return EXIT_FAILED
