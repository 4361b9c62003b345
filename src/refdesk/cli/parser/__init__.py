"""Grammar of the command line, one module per subject. Imports none of the commands."""

from __future__ import annotations

from collections.abc import Sequence

import click

from refdesk.cli.parser import asking, document_commands, running, server_commands, setting_up
from refdesk.cli.parser.arguments import CommandGroup, Invocation, Misuse
from refdesk.version import __version__

__all__ = ["Invocation", "Misuse", "cli", "parse"]

GLOBAL_OPTIONS = ("-h", "--help", "--version")
"""The only options allowed before a command."""

cli = CommandGroup(
    "refdesk",
    help="The reference desk for LLM agents: find, read and serve a team's documentation over MCP.",
    epilog="Run `refdesk COMMAND --help` for the options of a command.",
    commands=[
        *running.COMMANDS,
        *document_commands.COMMANDS,
        *asking.COMMANDS,
        *server_commands.COMMANDS,
        *setting_up.COMMANDS,
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    subcommand_metavar="COMMAND ...",
)
click.version_option(__version__, message="%(prog)s %(version)s")(cli)


def parse(args: Sequence[str]) -> Invocation:
    """Parse a command line; raise UsageError if it is wrong, and Exit after `--help` or `--version`."""
    if args and args[0].startswith("-") and args[0] not in GLOBAL_OPTIONS:
        raise Misuse(f"{args[0]}: options follow the command", click.Context(cli, info_name=cli.name))
    with cli.make_context(cli.name, list(args)) as context:
        invocation: Invocation = cli.invoke(context)
        return invocation
