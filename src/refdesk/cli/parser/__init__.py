"""Argument parser of all commands, one module per subject. Imports none of the commands."""

from __future__ import annotations

from refdesk.cli.parser import asking, document_commands, running, server_commands, setting_up
from refdesk.cli.parser.arguments import Misuse, Parser
from refdesk.version import __version__

__all__ = ["Misuse", "Parser", "build_parser"]

DESCRIPTION = "The reference desk for LLM agents: find, read and serve a team's documentation over MCP."

EPILOGUE = "`refdesk COMMAND --help` says more about a command; what the exit codes mean is in the manual."


def build_parser() -> Parser:
    """Build the parser for all commands."""
    parser = Parser("refdesk", description=DESCRIPTION, epilog=EPILOGUE)
    parser.add_argument("--version", action="version", version=f"refdesk {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    for subject in (running, document_commands, asking, server_commands, setting_up):
        subject.add_commands(commands)
    return parser
