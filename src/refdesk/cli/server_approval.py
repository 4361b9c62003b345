"""`refdesk servers approve`: what of a server's tools has changed since it was trusted, and whether it may be used."""

from __future__ import annotations

import difflib
import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from refdesk.cli.terminal import ink_for, say
from refdesk.downstream.fleet.pins import Held, Pins

AROUND = 2
"""Lines of what is unchanged that are shown around a change."""


def approve(folder: Path, arguments: Namespace) -> int:
    """Show what is held; with a server's name, approve or reject it once that is confirmed."""
    pins = Pins(folder)
    held = _held(pins, arguments)
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
    if _held(pins, arguments) != held:
        say("what is held has changed meanwhile; look again")
        return 1
    if arguments.reject:
        changed = pins.reject(arguments.name, arguments.tool)
    else:
        # Only what was seen, also when it changes at this very moment.
        changed = pins.approve(arguments.name, arguments.tool, as_shown=held)
    tools = [one.tool for one in changed]
    done = {"approve": "approved", "reject": "rejected"}[verb]
    print(json.dumps({done: tools}, indent=2) if arguments.json else f"{len(tools)} {done}.")
    return 0


def _held(pins: Pins, arguments: Namespace) -> list[Held]:
    return [one for one in pins.held(arguments.name) if arguments.tool in (None, one.tool)]


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


def difference(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> Iterator[str]:
    """What was taken away and what was added, line by line, with nothing in it that cannot be seen."""
    old, new = (_lines(one) if one is not None else [] for one in (before, after))
    for line in list(difflib.unified_diff(old, new, n=AROUND, lineterm=""))[2:]:
        if not line.startswith("@@"):
            yield line


def _lines(definition: Mapping[str, Any]) -> list[str]:
    return [visible(line) for line in json.dumps(definition, indent=2, sort_keys=True, ensure_ascii=False).splitlines()]


def visible(text: str) -> str:
    """The text with what does not show, and may be meant for a model alone, written as codes."""
    return "".join(one if one.isprintable() else f"\\u{{{ord(one):x}}}" for one in text)
