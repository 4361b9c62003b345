"""The command line: parse, call, print. What a command needs is imported when it runs, so that help is instant."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from refdesk.cli.exit_codes import Exit
from refdesk.cli.parser import Misuse, build_parser

START = """\
refdesk: the reference desk for LLM agents

  refdesk add docs/              bring documents in; a folder, a file or a URL
  refdesk search "how do I …"    find something in them
  refdesk serve                  run the server: agents at /mcp, people at /console
  refdesk install claude-code    set a client up to use it
  refdesk doctor                 see whether all is well

`refdesk --help` lists all commands, `refdesk COMMAND --help` the options of one.
"""

BEFORE_COMMANDS = ("-h", "--help", "--version")
"""The only options that stand before a command."""

COMPLETE = "__complete"
"""What a shell calls, not a person: it is not in the grammar, and has to be quick."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; answers its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _prepare_output()
    if not words:
        print(START, end="", file=sys.stderr)
        return Exit.MISUSED
    try:
        return _run(words)
    except BrokenPipeError:
        # What could not be written must not be tried again at the end: its reader has left, as `head` does.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
        return Exit.READER_LEFT


def _prepare_output() -> None:
    # Closed by the caller, as `>&-` does: what nobody can read goes nowhere.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that cannot show a character shows a mark for it.
            stream.reconfigure(errors="replace")


def _run(words: Sequence[str]) -> int:
    try:
        code = _command(words)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the process ends here, and says why in a sentence
        from refdesk.cli.failures import tell

        # Words after `--` are not ours.
        return tell(error, as_json="--json" in words[: [*words, "--"].index("--")])


def _command(words: Sequence[str]) -> int:
    if words[0] == COMPLETE:
        from refdesk.cli.completion import complete

        return complete(words[1:])
    if words[0].startswith("-") and words[0] not in BEFORE_COMMANDS:
        raise Misuse(f"{words[0]}: options follow the command", "refdesk")
    arguments = build_parser().parse_args(words)
    try:
        code: int = arguments.run(arguments)
    except Misuse as wrong:
        wrong.command = wrong.command or f"refdesk {arguments.command_name}"
        raise
    return code
