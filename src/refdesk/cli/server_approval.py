"""`refdesk servers approve`: review tools that changed since they were pinned, and approve or reject them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from types import SimpleNamespace

from refdesk.cli.load_config import load_settings
from refdesk.cli.terminal import confirm, detect_style, print_message
from refdesk.downstream.fleet.pins import HeldTool, Pins, escape_unprintable


def approve(arguments: SimpleNamespace) -> int:
    """List the held tools; with a server's name, approve or reject them after confirmation."""
    pins = Pins(load_settings(arguments).data_path / "downstream")
    held = pins.list_held(arguments.name, arguments.tool)
    # ASCII only: other characters of an unapproved tool may hide something.
    listing = json.dumps({"held": [asdict(one) for one in held]}, indent=2)
    if arguments.name is None:
        if not arguments.json:
            _print(held)
            listing = f"{len(held)} held; name a server to approve its tools." if held else "No tools are held."
        print(listing)
        return 0
    if not held:
        # Raises an error with a suggestion.
        pins.approve(arguments.name, arguments.tool)
    if not arguments.json:
        _print(held)
    verb = "reject" if arguments.reject else "approve"
    can_ask = not arguments.json and sys.stdin.isatty()
    if not arguments.yes and not (can_ask and confirm(f"{verb.capitalize()} {len(held)}?", sys.stdout)):
        if arguments.json:
            print(listing)
        print_message(f"nothing was changed; use --yes to {verb} these tools")
        return 1
    if pins.list_held(arguments.name, arguments.tool) != held:
        print_message("the held tools have changed in the meantime; try again")
        return 1
    if arguments.reject:
        decided = pins.reject(arguments.name, arguments.tool)
    else:
        decided = pins.approve(arguments.name, arguments.tool, as_shown=held)
    tools = [one.tool for one in decided]
    done = {"approve": "approved", "reject": "rejected"}[verb]
    print(json.dumps({done: tools}, indent=2) if arguments.json else f"{len(tools)} {done}.")
    return 0


def _print(held: Sequence[HeldTool]) -> None:
    style = detect_style(sys.stdout)
    for one in held:
        what = "is new" if one.before is None else "has changed"
        print(style.bold(escape_unprintable(f"{one.server}: {one.tool} {what}")))
        for line in one.iter_diff():
            print(f"  {line}")
