"""`refdesk install` and `refdesk uninstall`: a client's own settings, changed once the person has seen how."""

from __future__ import annotations

import json
import os
import re
import sys
from argparse import Namespace
from pathlib import Path

from refdesk.cli.exit_codes import Exit
from refdesk.cli.parser.arguments import Misuse
from refdesk.cli.running_desk import running_desk
from refdesk.cli.settings import load_settings
from refdesk.cli.setup.changes import Change, coloured, is_confirmed
from refdesk.cli.setup.clients import CLIENTS, Client, Desk, Remote
from refdesk.cli.setup.desks import desk_of
from refdesk.cli.terminal import ink_for, printable, say

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def install(arguments: Namespace) -> int:
    """`refdesk install`."""
    client, path = _client_and_path(arguments)
    desk = desk_of(arguments, load_settings(arguments))
    change = client.installed(path, arguments.name, desk, is_shared=arguments.scope == "project")
    code = _apply(change, arguments, f"{client.title} is set up to use {_called(desk)}")
    if code == Exit.DONE and not arguments.json and not arguments.dry_run:
        _say_what_is_left(client, desk, arguments.scope)
    return code


def uninstall(arguments: Namespace) -> int:
    """`refdesk uninstall`."""
    client, path = _client_and_path(arguments)
    change = client.uninstalled(path, arguments.name)
    if change is None:
        return _nothing(path, f"{client.title} has no server named {arguments.name!r} in {path}", arguments.json)
    return _apply(change, arguments, f"{client.title} does not use {arguments.name!r} any more")


def _client_and_path(arguments: Namespace) -> tuple[Client, Path]:
    if not _NAME.fullmatch(arguments.name):
        raise Misuse("--name: must be 1 to 64 letters, digits, hyphens or underscores")
    client = CLIENTS[arguments.client]
    return client, client.path(arguments.scope, Path(os.path.expanduser("~")), Path.cwd(), sys.platform)


def _apply(change: Change, arguments: Namespace, done: str) -> int:
    """Show the change, ask unless told not to, and do it."""
    if change.is_nothing:
        return _nothing(change.path, f"{change.path} says so already", arguments.json)
    if not arguments.json:
        print(*coloured(change.difference(), ink_for(sys.stdout)), sep="\n", flush=True)
    if not arguments.dry_run and not arguments.yes:
        if arguments.json or not sys.stdin.isatty():
            raise Misuse(
                "nothing is written, as there is nobody to ask; give --yes to write it, or --dry-run to see it"
            )
        if not is_confirmed(f"Write this to {printable(str(change.path))}?"):
            say("nothing is written")
            return Exit.FAILED
    backup = None if arguments.dry_run else change.write()
    if arguments.json:
        facts = {"file": str(change.path), "changed": not arguments.dry_run, "difference": change.difference()}
        print(json.dumps({**facts, "backup": str(backup) if backup else None}, indent=2, ensure_ascii=False))
    elif not arguments.dry_run:
        kept = f" What was there is in {backup.name}." if backup else ""
        print(f"{done}.{kept}")
    return Exit.DONE


def _nothing(path: Path, sentence: str, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"file": str(path), "changed": False, "difference": [], "backup": None}, indent=2))
    else:
        print(f"{sentence}; nothing to do.")
    return Exit.DONE


def _called(desk: Desk) -> str:
    return f"the desk at {desk.url}" if isinstance(desk, Remote) else "a desk that it starts itself"


def _say_what_is_left(client: Client, desk: Desk, scope: str) -> None:
    if todo := client.after.get(scope):
        print(f"Then: {todo}.")
    print(f"To see that it works: {client.check}.")
    if isinstance(desk, Remote):
        if desk.key_variable and not os.environ.get(desk.key_variable):
            say(f"{desk.key_variable} is not set here; start {client.title} with it set")
        if running_desk(desk.url) is None:
            say(f"no desk answers at {desk.url} yet; `refdesk serve` starts one")
