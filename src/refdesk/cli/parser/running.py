"""Arguments of serve, check, doctor and keys."""

from __future__ import annotations

import click

from refdesk.cli.checks.check_names import CHECKS
from refdesk.cli.parser.arguments import JSON, action, argument, command, flag, list_live, option

COMMANDS = [
    command(
        "serve",
        "Run the server",
        "refdesk.cli.serve:serve",
        option("--host", metavar="ADDRESS", help="Address to listen on  [default: 127.0.0.1]"),
        option("--port", type=int, metavar="PORT", help="Port to listen on, 0 for any free one  [default: 8001]"),
        option("--workers", type=int, metavar="N", help="Number of processes  [default: 1]"),
        option(
            "--toolsets",
            metavar="NAMES",
            help="Toolsets to offer, separated by commas  [default: all]",
            shell_complete=list_live("toolsets"),
        ),
        flag("--stdio", "Serve one client on standard input and output"),
        flag("--allow-anonymous", "Accept other machines without API keys", default=None),
    ),
    command(
        "check",
        "Check the configuration",
        "refdesk.cli.check:check",
        flag("--show", "Print every setting with its value and source"),
        JSON,
    ),
    command(
        "doctor",
        "Check the installation and suggest fixes",
        "refdesk.cli.doctor:doctor",
        option(
            "--only",
            type=click.Choice(list(CHECKS)),
            metavar="CHECK",
            multiple=True,
            help="Run only this check, such as engine or servers (repeatable)",
            shell_complete=list_live("checks"),
        ),
        option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            default=10.0,
            show_default=True,
            metavar="SECONDS",
            help="Time limit of a check",
        ),
        JSON,
    ),
    command(
        "keys",
        "List, make or revoke API keys",
        "refdesk.cli.keys:keys",
        action("list", "make", "revoke"),
        argument("name", "Name of the key", required=False, shell_complete=list_live("keys")),
        option("--tenant", metavar="NAME", help="Tenant whose documents the key gives access to  [default: default]"),
        option("--user", metavar="NAME", help="User who calls with the key  [default: name of the key]"),
        option(
            "--role",
            metavar="ROLE",
            multiple=True,
            help="reader, writer, service or admin (repeatable)  [default: none]",
            shell_complete=list_live("roles"),
        ),
        option(
            "--toolset",
            metavar="NAME",
            multiple=True,
            help="Toolset that the key may use (repeatable)  [default: all]",
            shell_complete=list_live("toolsets"),
        ),
        option(
            "--server",
            metavar="PATTERN",
            multiple=True,
            help="Downstream server that the key may use, such as github or github__get_* (repeatable)  [default: all]",
            shell_complete=list_live("servers"),
        ),
        option("--expires", metavar="WHEN", help="Expiry, such as 90d, 12h or 2027-01-31  [default: never]"),
        JSON,
    ),
]
