"""`refdesk keys`: make API keys, list and revoke them. A server that runs on the same data knows within a second."""

from __future__ import annotations

import json
import os
import re
from argparse import Namespace
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from refdesk.calls import DEFAULT_TENANT, ROLES
from refdesk.cli.parser.words import Misuse
from refdesk.cli.terminal import print_table, printable, say
from refdesk.config import TOOLSETS, ApiKey, Config, find, load
from refdesk.errors import InvalidArguments, Problem
from refdesk.policy.keys import FILE_NAME, KeyFile, StoredKey, digest, new_key
from refdesk.problems import nearest_name

HEAD = ("NAME", "TENANT", "USER", "ROLES", "TOOLSETS", "SERVERS", "CREATED", "EXPIRES", "SOURCE")

LONGEST_NAME = 255
"""Characters of a name, as the file has them."""

_LENGTH = re.compile(r"([0-9]{1,6})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def keys(arguments: Namespace) -> int:
    """`refdesk keys`."""
    config = _settings(arguments)
    file = KeyFile(config.data_path / FILE_NAME)
    if arguments.action == "make":
        return _make(file, config, arguments)
    if arguments.action == "revoke":
        return _revoke(file, config, _name(arguments), arguments.json)
    if arguments.name is not None:
        raise Misuse("NAME: only `make` and `revoke` take a name")
    return _list(file, config, arguments.json)


def _settings(arguments: Namespace) -> Config:
    """The configuration, with the door taken for shut: one that waits for its first key is not complete without."""
    path = Path(arguments.config) if arguments.config else find(Path.cwd(), os.environ)
    given = {"data_dir": arguments.data} if arguments.data else {}
    return load(path, os.environ, {**given, "auth.required": False, "server.allow_anonymous": True})


def _make(file: KeyFile, config: Config, arguments: Namespace) -> int:
    name, key, now = _name(arguments), new_key(), datetime.now(UTC).replace(microsecond=0)
    if any(name == other.name for other in config.auth.keys):
        raise InvalidArguments([Problem("NAME", f"a key of the configuration is named {name!r}; choose another name")])
    stored = StoredKey(
        name=name,
        sha256=digest(key).hex(),
        user=_text("--user", arguments.user or name),
        tenant=_text("--tenant", arguments.tenant or DEFAULT_TENANT),
        roles=_known("--role", arguments.role, ROLES),
        toolsets=_known("--toolset", arguments.toolset, TOOLSETS),
        servers=tuple(dict.fromkeys(_text("--server", pattern) for pattern in arguments.server)),
        created=now,
        expires=_moment(arguments.expires, now) if arguments.expires else None,
    )
    file.add(stored)
    if arguments.json:
        _print_json({"key": key, **_facts(stored)})
        return 0
    say(f"the key {name!r} of the user {stored.user!r}; it is shown this once and kept nowhere")
    print(key)
    return 0


def _revoke(file: KeyFile, config: Config, name: str, as_json: bool) -> int:
    if any(name == other.name for other in config.auth.keys) and all(name != stored.name for stored in file.read()):
        rule = f"{name!r} is a key of the configuration; take it out there and start the server anew"
        raise InvalidArguments([Problem("NAME", rule)])
    removed = file.remove(name)
    if as_json:
        _print_json({"revoked": removed.name})
    else:
        print(f"The key {printable(removed.name)!r} is revoked.")
    return 0


def _list(file: KeyFile, config: Config, as_json: bool) -> int:
    stored = file.read()
    entries = [*(_facts(key) for key in stored), *(_configured_facts(key) for key in config.auth.keys)]
    if as_json:
        _print_json(entries)
        return 0
    print_table(HEAD, map(_row, entries))
    return 0


def _facts(key: StoredKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "tenant": key.tenant,
        "user": key.user,
        "roles": list(key.roles),
        "toolsets": list(key.toolsets),
        "servers": list(key.servers),
        "created": key.created.isoformat(),
        "expires": key.expires.isoformat() if key.expires else None,
        "expired": key.is_over(datetime.now(UTC)),
        "source": FILE_NAME,
    }


def _configured_facts(key: ApiKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "tenant": key.tenant,
        "user": key.user,
        "roles": list(key.roles),
        "toolsets": list(key.toolsets),
        "servers": list(key.servers),
        "created": None,
        "expires": None,
        "expired": False,
        "source": "configuration",
    }


def _row(entry: dict[str, Any]) -> Sequence[str]:
    expires = "expired" if entry["expired"] else _day(entry["expires"]) or "never"
    roles, created = ",".join(entry["roles"]) or "-", _day(entry["created"]) or "-"
    opens = [",".join(entry[name]) or "all" for name in ("toolsets", "servers")]
    return (entry["name"] or "-", entry["tenant"], entry["user"], roles, *opens, created, expires, entry["source"])


def _day(moment: str | None) -> str:
    return moment[:16].replace("T", " ") if moment else ""


def _name(arguments: Namespace) -> str:
    return _text("NAME", arguments.name or "")


def _text(argument: str, value: str) -> str:
    """A name that can be kept and shown."""
    if not value.strip():
        raise Misuse(f"missing: {argument}")
    if len(value) > LONGEST_NAME or not value.isprintable():
        raise Misuse(f"{argument}: must be at most {LONGEST_NAME} characters that can be shown")
    return value.strip()


def _known(argument: str, given: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """Words of a list, each once; several may be set apart by commas."""
    words = tuple(dict.fromkeys(word for text in given for word in text.lower().replace(",", " ").split()))
    for word in words:
        if word not in known:
            nearest = nearest_name(word, known)
            hint = f"did you mean {nearest!r}?" if nearest else f"there are {', '.join(known)}"
            raise Misuse(f"{argument}: {printable(word)!r} is not known; {hint}")
    return words


def _moment(text: str, now: datetime) -> datetime:
    """A point in time: so long from now, or a date, which ends when it begins."""
    length = _LENGTH.fullmatch(text.strip().lower())
    try:
        moment = now + timedelta(**{_UNITS[length[2]]: int(length[1])}) if length else datetime.fromisoformat(text)
        moment = moment.astimezone(UTC)
    except (ValueError, OverflowError):
        rule = f"{printable(text)!r} is neither a length such as 90d or 12h nor a date such as 2027-01-31"
        raise Misuse(f"--expires: {rule}") from None
    if moment <= now:
        raise Misuse(f"--expires: {moment:%Y-%m-%d %H:%M} UTC has passed")
    return moment


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
