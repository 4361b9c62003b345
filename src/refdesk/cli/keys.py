"""`refdesk keys`: make API keys, list and revoke them. A server that runs on the same data knows within a second."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable, Sequence
from typing import Any

from refdesk.cli.parser.arguments import Misuse
from refdesk.cli.settings import load_settings
from refdesk.cli.terminal import print_table, printable, say
from refdesk.policy.key_admin import KeyRing, NotAKey
from refdesk.policy.keys import FILE_NAME, KeyFile

HEAD = ("NAME", "TENANT", "USER", "ROLES", "TOOLSETS", "SERVERS", "CREATED", "EXPIRES", "SOURCE")

_OPTIONS = {"name": "NAME", "roles": "--role", "toolsets": "--toolset", "servers": "--server"}
"""What is called otherwise on the command line; all else is an option of its own name."""


def keys(arguments: Namespace) -> int:
    """`refdesk keys`."""
    config = load_settings(arguments)
    ring = KeyRing(KeyFile(config.data_path / FILE_NAME), config.auth.keys)
    if arguments.action == "make":
        return _make(ring, arguments)
    if arguments.action == "revoke":
        return _revoke(ring, _name(arguments), arguments.json)
    if arguments.name is not None:
        raise Misuse("NAME: only `make` and `revoke` take a name")
    return _list(ring, arguments.json)


def _make(ring: KeyRing, arguments: Namespace) -> int:
    try:
        key, entry = ring.make(
            _name(arguments),
            user=arguments.user,
            tenant=arguments.tenant,
            roles=_words(arguments.role),
            toolsets=_words(arguments.toolset),
            servers=arguments.server,
            expires=arguments.expires,
        )
    except NotAKey as error:
        [problem] = error.problems
        raise Misuse(f"{_OPTIONS.get(problem.argument, f'--{problem.argument}')}: {problem.rule}") from error
    if arguments.json:
        _print_json({"key": key, **entry})
        return 0
    say(f"the key {entry['name']!r} of the user {entry['user']!r}; it is shown this once and kept nowhere")
    print(key)
    return 0


def _revoke(ring: KeyRing, name: str, as_json: bool) -> int:
    revoked = ring.revoke(name)
    if as_json:
        _print_json({"revoked": revoked})
    else:
        print(f"The key {printable(revoked)!r} is revoked.")
    return 0


def _list(ring: KeyRing, as_json: bool) -> int:
    entries = ring.listed()
    if as_json:
        _print_json(entries)
        return 0
    print_table(HEAD, map(_row, entries))
    return 0


def _row(entry: dict[str, Any]) -> Sequence[str]:
    expires = "expired" if entry["expired"] else _day(entry["expires"]) or "never"
    roles, created = ",".join(entry["roles"]) or "-", _day(entry["created"]) or "-"
    opens = [",".join(entry[name]) or "all" for name in ("toolsets", "servers")]
    return (entry["name"] or "-", entry["tenant"], entry["user"], roles, *opens, created, expires, entry["source"])


def _day(moment: str | None) -> str:
    return moment[:16].replace("T", " ") if moment else ""


def _name(arguments: Namespace) -> str:
    name: str = (arguments.name or "").strip()
    if not name:
        raise Misuse("missing: NAME")
    return name


def _words(given: Iterable[str]) -> list[str]:
    """Several may be set apart by commas."""
    return [word for text in given for word in text.replace(",", " ").split()]


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
