"""Running a desk, and who may call it: serve, check, doctor, keys."""

from __future__ import annotations

from refdesk.cli.parser.arguments import Commands, as_json, command, live, several, verb


def add_to(commands: Commands) -> None:
    """Put these commands into the grammar."""
    _serve(commands)
    _check(commands)
    _doctor(commands)
    _keys(commands)


def _serve(commands: Commands) -> None:
    serve = command(commands, "serve", "run the server", "refdesk.cli.serve:serve")
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", type=int, help="port to listen on (default 8001; 0 for any free one)")
    serve.add_argument("--workers", type=int, help="number of processes (default 1)")
    live(
        serve.add_argument("--toolsets", help="toolsets to offer, set apart by commas (default all of them)"),
        "toolsets",
    )
    serve.add_argument("--stdio", action="store_true", help="serve one client on standard input and output")
    serve.add_argument(
        "--allow-anonymous", action="store_true", default=None, help="let other machines in without keys"
    )


def _check(commands: Commands) -> None:
    check = command(commands, "check", "check the configuration", "refdesk.cli.check:check")
    check.add_argument("--show", action="store_true", help="print every setting with its value and source")
    as_json(check)


def _doctor(commands: Commands) -> None:
    doctor = command(
        commands, "doctor", "check the installation, and say how to mend what is wrong", "refdesk.cli.doctor:doctor"
    )
    only = several(doctor, "--only", "CHECK", "only this check, such as engine or servers; may be given again")
    live(only, "checks")
    doctor.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="how long a check may take (default 10)"
    )
    as_json(doctor)


def _keys(commands: Commands) -> None:
    keys = command(commands, "keys", "list the API keys, make or revoke one", "refdesk.cli.keys:keys")
    verb(keys, "list", "make", "revoke")
    live(keys.add_argument("name", nargs="?", metavar="NAME", help="what people call the key"), "keys")
    keys.add_argument("--tenant", help="tenant whose documents a new key opens (default default)")
    keys.add_argument("--user", help="user who calls with it (default its name)")
    live(several(keys, "--role", "ROLE", "reader, writer, service or admin (default none)"), "roles")
    live(several(keys, "--toolset", "TOOLSET", "toolset that it opens (default all)"), "toolsets")
    pattern = "server behind the desk that it opens, such as github or github__get_*; may be given again (default all)"
    live(several(keys, "--server", "PATTERN", pattern), "servers")
    keys.add_argument("--expires", metavar="WHEN", help="such as 90d, 12h or 2027-01-31 (default never)")
    as_json(keys)
