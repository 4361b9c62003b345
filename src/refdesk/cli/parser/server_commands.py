"""Arguments of `refdesk servers`, whose actions are commands with their own options."""

from __future__ import annotations

import click

from refdesk.cli.parser.arguments import (
    JSON,
    CommandGroup,
    Count,
    ExamplesCommand,
    argument,
    command,
    flag,
    list_files,
    list_live,
    option,
)

TARGET = "refdesk.cli.servers:servers"


class _CommandTail(ExamplesCommand):
    """Command that leaves everything after `--` unparsed, as the command line of a server."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments before `--` and store the rest as `command`."""
        end = args.index("--") if "--" in args else len(args)
        ctx.params["command"] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the usage with both forms."""
        return ["[OPTIONS]", "NAME", "(URL | -- COMMAND [ARGUMENT]...)"]


def _action(
    name: str, summary: str, *params: click.Parameter, kind: type[click.Command] = ExamplesCommand
) -> click.Command:
    return command(name, summary, TARGET, *params, JSON, kind=kind)


_name = argument("name", "Name of the server", shell_complete=list_live("servers"))

_actions = [
    _action("list", "List the servers, with their state if Refdesk is running"),
    _action(
        "add",
        "Add a server, by its URL or by a command after --",
        argument("name", "Name of the server"),
        argument("url", "URL, unless the server is a command", required=False),
        option(
            "--type",
            type=click.Choice(["stdio", "http", "sse", "websocket"]),
            help="Transport  [default: depends on the URL]",
        ),
        option("--env", metavar="NAME=VALUE", multiple=True, help="Environment variable of the server (repeatable)"),
        option("--header", metavar="NAME=VALUE", multiple=True, help="HTTP header to send (repeatable)"),
        option("--cwd", metavar="DIR", help="Folder to start the server in", shell_complete=list_files),
        option("--docs", metavar="TOOL[:ARGUMENT]", help="Search tool to include in search_documentation"),
        flag("--short", "Open a new connection for each operation"),
        flag("--replace", "Replace a server of the same name"),
        kind=_CommandTail,
    ),
    _action("remove", "Remove a server", _name),
    _action("enable", "Enable a server", _name),
    _action("disable", "Disable a server", _name),
    _action("test", "Connect to a server and describe what it offers", _name),
    _action(
        "import",
        "Import the servers of other MCP clients",
        argument("file", "File of a client  [default: all that are found]", required=False, shell_complete=list_files),
        option("--from", "client", metavar="CLIENT", help="Client, such as claude-desktop, cursor or vscode"),
        option("--only", metavar="NAME", multiple=True, help="Import only this server (repeatable)"),
        flag("--replace", "Replace servers of the same name"),
        flag("--dry-run", "Show what would be imported, and write nothing"),
    ),
    _action(
        "logs",
        "Show what a server wrote to standard error",
        _name,
        option("--lines", type=Count(), default=50, show_default=True, metavar="N", help="Number of last lines"),
    ),
    _action(
        "approve",
        "Review changed tools, and approve or reject them",
        argument("name", "Server  [default: show all]", required=False, shell_complete=list_live("servers")),
        argument("tool", "One of its tools  [default: all that wait for approval]", required=False),
        flag("--yes", "Do not ask for confirmation"),
        flag("--reject", "Reject the tools until they change again"),
    ),
]

COMMANDS = [
    command(
        "servers",
        "List, add or change the MCP servers behind Refdesk",
        TARGET,
        JSON,
        kind=CommandGroup,
        commands=_actions,
        invoke_without_command=True,
        subcommand_metavar="[ACTION] ...",
    )
]
