"""Arguments of `refdesk servers`, whose actions are subparsers with their own options."""

from __future__ import annotations

import argparse
from typing import Any, TypeAlias

from refdesk.cli.parser.arguments import (
    ACTION_ALIASES,
    Commands,
    Parser,
    add_command,
    add_json_option,
    add_repeatable_option,
    complete_files,
    complete_with,
    parse_count,
)

Actions: TypeAlias = "argparse._SubParsersAction[_CommandTailParser]"


def add_commands(commands: Commands) -> None:
    """Add the commands of this module."""
    target = "refdesk.cli.servers:servers"
    servers = add_command(commands, "servers", "list the MCP servers behind the desk, add or change them", target)
    add_json_option(servers)
    servers.set_defaults(action="list")
    actions = servers.add_subparsers(title="actions", metavar="ACTION", parser_class=_CommandTailParser)
    _add_action(actions, "list", "list the servers, and how they are when a desk runs")
    _add_add(actions)
    for name, summary in (
        ("remove", "forget a server"),
        ("enable", "switch a server on"),
        ("disable", "switch a server off"),
        ("test", "connect to a server and say what it offers"),
    ):
        _add_name_argument(_add_action(actions, name, summary))
    _add_import(actions)
    logs = _add_action(actions, "logs", "show what a server wrote on standard error")
    _add_name_argument(logs)
    logs.add_argument(
        "--lines", type=parse_count, default=50, metavar="N", help="how many of the last lines (default 50)"
    )
    _add_approve(actions)


def _add_add(actions: Actions) -> None:
    add = _add_action(actions, "add", "add a server: a command after --, or an address")
    add.takes_command = True
    add.usage = "refdesk servers add [options] NAME (URL | -- COMMAND [ARGUMENT ...])"
    add.add_argument("name", metavar="NAME", help="the server's name")
    add.add_argument("url", nargs="?", metavar="URL", help="its address, when it is no command")
    add.add_argument("--type", choices=["stdio", "http", "sse", "websocket"], help="transport (default by the address)")
    add_repeatable_option(add, "--env", "NAME=VALUE", "environment variable for it")
    add_repeatable_option(add, "--header", "NAME=VALUE", "HTTP header to send")
    complete_files(add.add_argument("--cwd", metavar="DIR", help="folder to start it in"))
    add.add_argument("--docs", metavar="TOOL[:ARGUMENT]", help="search tool, to take part in search_documentation")
    add.add_argument("--short", action="store_true", help="connect anew for each operation")
    add.add_argument("--replace", action="store_true", help="take the place of a server of this name")


def _add_import(actions: Actions) -> None:
    importing = _add_action(actions, "import", "take over the servers of other MCP clients")
    complete_files(
        importing.add_argument("file", nargs="?", metavar="FILE", help="the client's file (default all that are found)")
    )
    importing.add_argument("--from", dest="client", metavar="CLIENT", help="such as claude-desktop, cursor or vscode")
    add_repeatable_option(importing, "--only", "NAME", "only this server")
    importing.add_argument("--replace", action="store_true", help="also where there is another server of the same name")
    importing.add_argument("--dry-run", action="store_true", help="only show what would be done")


def _add_approve(actions: Actions) -> None:
    approve = _add_action(actions, "approve", "show tools that changed behind your back, and let them be used")
    complete_with(
        approve.add_argument("name", nargs="?", metavar="NAME", help="the server (default all, to be shown)"), "servers"
    )
    approve.add_argument("tool", nargs="?", metavar="TOOL", help="one of its tools (default all that wait)")
    approve.add_argument("--yes", action="store_true", help="do not ask")
    approve.add_argument("--reject", action="store_true", help="refuse them, until they change again")


def _add_action(actions: Actions, name: str, summary: str) -> _CommandTailParser:
    parser = actions.add_parser(
        name, aliases=ACTION_ALIASES.get(name, ()), help=summary, description=summary[0].upper() + summary[1:] + "."
    )
    # Suppressed defaults keep the values that were given before the action.
    complete_files(
        parser.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="configuration file")
    )
    complete_files(parser.add_argument("--data", metavar="DIR", default=argparse.SUPPRESS, help="folder for data"))
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON, errors too")
    parser.set_defaults(action=name)
    return parser


def _add_name_argument(action: Parser) -> None:
    complete_with(action.add_argument("name", metavar="NAME", help="the server's name"), "servers")


class _CommandTailParser(Parser):
    """Parser that leaves everything after `--` unparsed if the action takes a command line."""

    takes_command = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments before `--` and store the rest as `command`."""
        words = list(args or ())
        end = words.index("--") if self.takes_command and "--" in words else len(words)
        known, unknown = super().parse_known_args(words[:end], namespace)
        known.command = words[end + 1 :]
        return known, unknown
