"""`refdesk servers approve`: what of a server's tools has changed since it was trusted, and whether it may be used."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from refdesk.cli.terminal import ink_for, say
from refdesk.downstream.fleet.approval import decide, difference, visible, waiting
from refdesk.downstream.fleet.pins import Held, Pins


def approve(folder: Path, arguments: Namespace) -> int:
    """Show what is held; with a server's name, approve or reject it once that is confirmed."""
    pins = Pins(folder)
    held = waiting(pins, arguments.name, arguments.tool)
    if arguments.name is None:
        return _show_all(held, arguments.json)
    if not held:
        # Says what was probably meant.
        pins.approve(arguments.name, arguments.tool)
    if not arguments.json:
        _print(held)
    verb = "reject" if arguments.reject else "approve"
    if not arguments.yes and not _is_confirmed(verb, len(held), arguments.json):
        if arguments.json:
            print(json.dumps({"held": [asdict(one) for one in held]}, indent=2))
        say(f"nothing is changed; give --yes to {verb} what is shown")
        return 1
    if waiting(pins, arguments.name, arguments.tool) != held:
        say("what is held has changed meanwhile; look again")
        return 1
    decided = decide(pins, arguments.name, arguments.tool, held, reject=arguments.reject)
    tools = [one.tool for one in decided]
    done = {"approve": "approved", "reject": "rejected"}[verb]
    print(json.dumps({done: tools}, indent=2) if arguments.json else f"{len(tools)} {done}.")
    return 0


def _show_all(held: Sequence[Held], as_json: bool) -> int:
    if as_json:
        print(json.dumps({"held": [asdict(one) for one in held]}, indent=2))
        return 0
    _print(held)
    print(f"{len(held)} held; name a server to approve its tools." if held else "No tool waits for approval.")
    return 0


def _is_confirmed(verb: str, count: int, as_json: bool) -> bool:
    if as_json or not sys.stdin.isatty():
        return False
    print(f"{verb.capitalize()} {count}? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _print(held: Sequence[Held]) -> None:
    ink = ink_for(sys.stdout)
    for one in held:
        what = "is new" if one.before is None else "is not what it was"
        print(ink.bold(visible(f"{one.server}: {one.tool} {what}")))
        for line in difference(one.before, one.after):
            print(f"  {line}")
