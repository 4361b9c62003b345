"""Arguments of serve, check, doctor and keys."""

from __future__ import annotations

from refdesk.cli.parser.arguments import (
    Commands,
    add_action_argument,
    add_command,
    add_json_option,
    add_repeatable_option,
    complete_with,
)


def add_commands(commands: Commands) -> None:
    """Add the commands of this module."""
    _add_serve(commands)
    _add_check(commands)
    _add_doctor(commands)
    _add_keys(commands)


def _add_serve(commands: Commands) -> None:
    serve = add_command(commands, "serve", "run the server", "refdesk.cli.serve:serve")
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", type=int, help="port to listen on (default 8001; 0 for any free one)")
    serve.add_argument("--workers", type=int, help="number of processes (default 1)")
    complete_with(
        serve.add_argument("--toolsets", help="toolsets to offer, set apart by commas (default all of them)"),
        "toolsets",
    )
    serve.add_argument("--stdio", action="store_true", help="serve one client on standard input and output")
    serve.add_argument(
        "--allow-anonymous", action="store_true", default=None, help="let other machines in without keys"
    )


def _add_check(commands: Commands) -> None:
    check = add_command(commands, "check", "check the configuration", "refdesk.cli.check:check")
    check.add_argument("--show", action="store_true", help="print every setting with its value and source")
    add_json_option(check)


def _add_doctor(commands: Commands) -> None:
    doctor = add_command(
        commands, "doctor", "check the installation, and say how to mend what is wrong", "refdesk.cli.doctor:doctor"
    )
    only = add_repeatable_option(
        doctor, "--only", "CHECK", "only this check, such as engine or servers; may be given again"
    )
    complete_with(only, "checks")
    doctor.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="how long a check may take (default 10)"
    )
    add_json_option(doctor)


def _add_keys(commands: Commands) -> None:
    keys = add_command(commands, "keys", "list the API keys, make or revoke one", "refdesk.cli.keys:keys")
    add_action_argument(keys, "list", "make", "revoke")
    complete_with(keys.add_argument("name", nargs="?", metavar="NAME", help="what people call the key"), "keys")
    keys.add_argument("--tenant", help="tenant whose documents a new key opens (default default)")
    keys.add_argument("--user", help="user who calls with it (default its name)")
    complete_with(
        add_repeatable_option(keys, "--role", "ROLE", "reader, writer, service or admin (default none)"), "roles"
    )
    complete_with(
        add_repeatable_option(keys, "--toolset", "TOOLSET", "toolset that it opens (default all)"), "toolsets"
    )
    pattern = "server behind the desk that it opens, such as github or github__get_*; may be given again (default all)"
    complete_with(add_repeatable_option(keys, "--server", "PATTERN", pattern), "servers")
    keys.add_argument("--expires", metavar="WHEN", help="such as 90d, 12h or 2027-01-31 (default never)")
    add_json_option(keys)
