"""The MCP servers behind the desk: each thing to do with them has options of its own."""

from __future__ import annotations

import argparse
from typing import Any, TypeAlias

from refdesk.cli.parser.arguments import OTHER_VERBS, Commands, Parser, as_json, command, count, files, live, several

Actions: TypeAlias = "argparse._SubParsersAction[_ParserBeforeDashes]"


def add_to(commands: Commands) -> None:
    """Put these commands into the grammar."""
    target = "refdesk.cli.servers:servers"
    servers = command(commands, "servers", "list the MCP servers behind the desk, add or change them", target)
    as_json(servers)
    servers.set_defaults(action="list")
    actions = servers.add_subparsers(title="actions", metavar="ACTION", parser_class=_ParserBeforeDashes)
    _action(actions, "list", "list the servers, and how they are when a desk runs")
    _add(actions)
    for name, summary in (
        ("remove", "forget a server"),
        ("enable", "switch a server on"),
        ("disable", "switch a server off"),
        ("test", "connect to a server and say what it offers"),
    ):
        _named(_action(actions, name, summary))
    _import(actions)
    logs = _action(actions, "logs", "show what a server wrote on standard error")
    _named(logs)
    logs.add_argument("--lines", type=count, default=50, metavar="N", help="how many of the last lines (default 50)")
    _approve(actions)


def _add(actions: Actions) -> None:
    add = _action(actions, "add", "add a server: a command after --, or an address")
    add.takes_command = True
    add.usage = "refdesk servers add [options] NAME (URL | -- COMMAND [ARGUMENT ...])"
    add.add_argument("name", metavar="NAME", help="the server's name")
    add.add_argument("url", nargs="?", metavar="URL", help="its address, when it is no command")
    add.add_argument("--type", choices=["stdio", "http", "sse", "websocket"], help="transport (default by the address)")
    several(add, "--env", "NAME=VALUE", "environment variable for it")
    several(add, "--header", "NAME=VALUE", "HTTP header to send")
    files(add.add_argument("--cwd", metavar="DIR", help="folder to start it in"))
    add.add_argument("--docs", metavar="TOOL[:ARGUMENT]", help="search tool, to take part in search_documentation")
    add.add_argument("--short", action="store_true", help="connect anew for each operation")
    add.add_argument("--replace", action="store_true", help="take the place of a server of this name")


def _import(actions: Actions) -> None:
    take_over = _action(actions, "import", "take over the servers of other MCP clients")
    files(
        take_over.add_argument("file", nargs="?", metavar="FILE", help="the client's file (default all that are found)")
    )
    take_over.add_argument("--from", dest="client", metavar="CLIENT", help="such as claude-desktop, cursor or vscode")
    several(take_over, "--only", "NAME", "only this server")
    take_over.add_argument("--replace", action="store_true", help="also where there is another server of the same name")
    take_over.add_argument("--dry-run", action="store_true", help="only show what would be done")


def _approve(actions: Actions) -> None:
    approve = _action(actions, "approve", "show tools that changed behind your back, and let them be used")
    live(
        approve.add_argument("name", nargs="?", metavar="NAME", help="the server (default all, to be shown)"), "servers"
    )
    approve.add_argument("tool", nargs="?", metavar="TOOL", help="one of its tools (default all that wait)")
    approve.add_argument("--yes", action="store_true", help="do not ask")
    approve.add_argument("--reject", action="store_true", help="refuse them, until they change again")


def _action(actions: Actions, name: str, summary: str) -> _ParserBeforeDashes:
    made = actions.add_parser(
        name, aliases=OTHER_VERBS.get(name, ()), help=summary, description=summary[0].upper() + summary[1:] + "."
    )
    # What was given before the action is not to be forgotten for want of it after.
    files(made.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="configuration file"))
    files(made.add_argument("--data", metavar="DIR", default=argparse.SUPPRESS, help="folder for data"))
    made.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON, errors too")
    made.set_defaults(action=name)
    return made


def _named(action: Parser) -> None:
    live(action.add_argument("name", metavar="NAME", help="the server's name"), "servers")


class _ParserBeforeDashes(Parser):
    """Leaves what follows `--` alone, where that is a command line of its own, whose options are not ours."""

    takes_command = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Our own words, and the others as they are."""
        words = list(args or ())
        ours = words.index("--") if self.takes_command and "--" in words else len(words)
        known, unknown = super().parse_known_args(words[:ours], namespace)
        known.command = words[ours + 1 :]
        return known, unknown
