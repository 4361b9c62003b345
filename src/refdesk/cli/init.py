"""`refdesk init`: a commented refdesk.yaml for this folder, and a .mcp.json by which clients find the desk."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

from refdesk.cli.exit_codes import Exit
from refdesk.cli.settings import load_settings
from refdesk.cli.setup.changes import Change, coloured, read_text
from refdesk.cli.setup.clients import CLIENTS, Remote
from refdesk.cli.terminal import ink_for, say
from refdesk.config.loading import FILE_NAME
from refdesk.config.template import template

SERVER_NAME = "refdesk"

NEXT = """\
Next: `refdesk add docs/` brings your documents in,
      `refdesk serve` starts the desk, with its console at {console}, and
      `refdesk install claude-code` sets a client up to use it."""


def init(arguments: Namespace) -> int:
    """Write what is not there; what says something else is shown and left, unless it is to be written over."""
    changes = [change for change in (_settings_file(arguments), _clients_file(arguments)) if not change.is_nothing]
    held = [change for change in changes if _is_in_the_way(change) and not arguments.force]
    shown = changes if arguments.dry_run else held
    if not arguments.json:
        for change in shown:
            print(*coloured(change.difference(), ink_for(sys.stdout)), sep="\n")
    written = [] if arguments.dry_run else [change for change in changes if change not in held]
    for change in written:
        change.write()
    _tell(written, held, arguments)
    return Exit.FAILED if held and not arguments.dry_run else Exit.DONE


def _settings_file(arguments: Namespace) -> Change:
    path = Path(arguments.config) if arguments.config else Path.cwd() / FILE_NAME
    return Change(path, read_text(path), template(), is_shared=True)


def _clients_file(arguments: Namespace) -> Change:
    client = CLIENTS["claude-code"]
    path = Path.cwd() / ".mcp.json"
    # A file that is not there yet, or is to be written over, has no say in what it will be.
    settings = Namespace(config=arguments.config, data=arguments.data)
    if arguments.config and not Path(arguments.config).exists():
        settings.config = None
    return client.installed(path, SERVER_NAME, Remote(load_settings(settings).own_url), is_shared=True)


def _is_in_the_way(change: Change) -> bool:
    """Whether something would be lost: to add the desk to a file that holds other servers takes nothing from it."""
    if change.before is None:
        return False
    if change.path.name != ".mcp.json":
        return True
    return CLIENTS["claude-code"].entry_in(change.path, change.before, SERVER_NAME) is not None


def _tell(written: list[Change], held: list[Change], arguments: Namespace) -> None:
    if arguments.json:
        facts = {"written": [str(one.path) for one in written], "left": [str(one.path) for one in held]}
        print(json.dumps({**facts, "dry_run": arguments.dry_run}, indent=2, ensure_ascii=False))
        return
    for change in written:
        print(f"{'Changed' if change.before is not None else 'Wrote'} {change.path}")
    for change in held:
        say(f"{change.path} is there and says something else; --force writes over it, as shown above")
    if not held and not arguments.dry_run:
        console = load_settings(arguments).own_url.removesuffix("/mcp") + "/console"
        print(NEXT.format(console=console) if written else "All of it is there already; nothing to do.")
