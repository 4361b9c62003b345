"""The command line: parse, call, print. What a command needs is imported when it runs, so that help is instant."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from refdesk.cli.parser import build_parser
from refdesk.errors import ConfigError, RefdeskError

EXIT_FAILED = 1
EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; answers its exit code."""
    arguments = build_parser().parse_args(argv)
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
    except BrokenPipeError:
        # The reader of our output has left, as `head` does.
        sys.stderr.close()
        return EXIT_FAILED
