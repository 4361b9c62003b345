"""`refdesk keys`: create, list and revoke API keys. A server on the same data picks changes up within a second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from refdesk.cli.arguments import Misuse
from refdesk.cli.load_config import load_settings
from refdesk.cli.terminal import print_json, print_message, print_result, print_table, sanitize
from refdesk.policy.keys import FILE_NAME, KeyFile, KeyRing, NotAKey

HEADER = ("NAME", "TENANT", "USER", "ROLES", "TOOLSETS", "SERVERS", "CREATED", "EXPIRES", "SOURCE")

_OPTION_NAMES = {"name": "NAME", "roles": "--role", "toolsets": "--toolset", "servers": "--server"}
"""Arguments whose option has another name."""


def keys(arguments: SimpleNamespace) -> None:
    """Run `refdesk keys`."""
    config = load_settings(arguments)
    ring = KeyRing(KeyFile(config.data_path / FILE_NAME), config.auth.keys)
    if arguments.action == "make":
        _make(ring, arguments)
    elif arguments.action == "revoke":
        revoked = ring.revoke(_require_name(arguments))
        print_result({"revoked": revoked}, f"Revoked key {sanitize(revoked)!r}.", arguments.json)
    elif arguments.name is not None:
        raise Misuse("NAME: only `make` and `revoke` take a name")
    elif arguments.json:
        print_json(ring.listed())
    else:
        print_table(HEADER, map(_format_row, ring.listed()))


def _make(ring: KeyRing, arguments: SimpleNamespace) -> None:
    try:
        key, entry = ring.make(
            _require_name(arguments),
            user=arguments.user,
            tenant=arguments.tenant,
            roles=_split_words(arguments.role),
            toolsets=_split_words(arguments.toolset),
            servers=arguments.server,
            expires=arguments.expires,
        )
    except NotAKey as error:
        [problem] = error.problems
        raise Misuse(f"{_OPTION_NAMES.get(problem.argument, f'--{problem.argument}')}: {problem.rule}") from error
    if arguments.json:
        print_json({"key": key, **entry})
    else:
        print_message(f"API key {entry['name']!r} of user {entry['user']!r}; it is shown only once")
        print(key)


def _format_row(entry: dict[str, Any]) -> Sequence[str]:
    created, expires = ((entry[key] or "")[:16].replace("T", " ") for key in ("created", "expires"))
    expires = "expired" if entry["expired"] else expires or "never"
    roles, opens = ",".join(entry["roles"]) or "-", [",".join(entry[name]) or "all" for name in ("toolsets", "servers")]
    name, source = entry["name"] or "-", entry["source"]
    return (name, entry["tenant"], entry["user"], roles, *opens, created or "-", expires, source)


def _require_name(arguments: SimpleNamespace) -> str:
    name: str = (arguments.name or "").strip()
    if not name:
        raise Misuse("Missing argument 'NAME'.")
    return name


def _split_words(values: Iterable[str]) -> list[str]:
    """Split values at commas and spaces."""
    return [word for text in values for word in text.replace(",", " ").split()]
