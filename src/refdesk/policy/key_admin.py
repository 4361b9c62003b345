"""Creating, listing and revoking API keys, for the CLI and the console."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from refdesk.calls import DEFAULT_TENANT, ROLES
from refdesk.config import TOOLSETS, ApiKey
from refdesk.errors import InvalidArguments, Problem
from refdesk.policy.keys import FILE_NAME, KeyFile, StoredKey, digest, new_key
from refdesk.validation import nearest_name, shortened

LONGEST_NAME = 255
"""Maximum number of characters in a name, as in the key file."""

MOST_OF_A_KEY = 100
"""Maximum number of roles, toolsets or servers of one key."""

CONFIGURATION = "configuration"

_LENGTH = re.compile(r"([0-9]{1,6})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


class NotAKey(InvalidArguments):
    """What is asked for can be no key, whichever others there are."""

    def __init__(self, argument: str, rule: str) -> None:
        super().__init__([Problem(argument, rule)])


class KeyRing:
    """Manages the keys of the key file and lists those of the configuration. All methods block on disk I/O."""

    def __init__(
        self,
        file: KeyFile,
        configured: Sequence[ApiKey],
        changed: Callable[[], None] = lambda: None,
        now: Callable[[], datetime] = _now,
    ) -> None:
        """Initialize the manager. `changed` is called after every change."""
        self._file = file
        self._configured = configured
        self._changed = changed
        self._now = now

    def listed(self) -> list[dict[str, Any]]:
        """Return everything known about each key, except the key itself."""
        return [*map(self._stored_facts, self._file.read()), *map(_configured_facts, self._configured)]

    def make(
        self,
        name: str,
        *,
        user: str | None = None,
        tenant: str | None = None,
        roles: Sequence[str] = (),
        toolsets: Sequence[str] = (),
        servers: Sequence[str] = (),
        expires: str | None = None,
    ) -> tuple[str, dict[str, Any]]:
        """Create a key, and return it together with its description. The key isn't stored. Raises NotAKey for invalid
        values."""
        name, key, now = _text("name", name), new_key(), self._now()
        if any(name == other.name for other in self._configured):
            rule = f"a key of the configuration is named {name!r}; choose another name"
            raise InvalidArguments([Problem("name", rule)])
        stored = StoredKey(
            name=name,
            sha256=digest(key).hex(),
            user=_text("user", user or name),
            tenant=_text("tenant", tenant or DEFAULT_TENANT),
            roles=_known("roles", roles, ROLES),
            toolsets=_known("toolsets", toolsets, TOOLSETS),
            servers=tuple(dict.fromkeys(_text("servers", pattern) for pattern in _few("servers", servers))),
            created=now,
            expires=_moment(expires, now) if expires else None,
        )
        self._file.add(stored)
        self._changed()
        return key, self._stored_facts(stored)

    def revoke(self, name: str) -> str:
        """Remove a key from the file. Keys of the configuration can't be revoked here."""
        is_configured = any(name == other.name for other in self._configured)
        if is_configured and all(name != stored.name for stored in self._file.read()):
            rule = f"{name!r} is a key of the configuration; take it out there and start the server anew"
            raise InvalidArguments([Problem("name", rule)])
        removed = self._file.remove(name)
        self._changed()
        return removed.name

    def _stored_facts(self, key: StoredKey) -> dict[str, Any]:
        return {
            **_facts(key),
            "created": key.created.isoformat(),
            "expires": key.expires.isoformat() if key.expires else None,
            "expired": key.is_over(self._now()),
            "source": FILE_NAME,
        }


def _configured_facts(key: ApiKey) -> dict[str, Any]:
    return {**_facts(key), "created": None, "expires": None, "expired": False, "source": CONFIGURATION}


def _facts(key: ApiKey | StoredKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "user": key.user,
        "tenant": key.tenant,
        "roles": list(key.roles),
        "toolsets": list(key.toolsets),
        "servers": list(key.servers),
    }


def _text(argument: str, value: str) -> str:
    """Return a stripped name. Raises NotAKey if it's empty, too long or not printable."""
    if not value.strip():
        raise NotAKey(argument, "is required")
    if len(value) > LONGEST_NAME or not value.isprintable():
        raise NotAKey(argument, f"must be at most {LONGEST_NAME} characters that can be shown")
    return value.strip()


def _few(argument: str, given: Sequence[str]) -> Sequence[str]:
    if len(given) > MOST_OF_A_KEY:
        raise NotAKey(argument, f"must be at most {MOST_OF_A_KEY}")
    return given


def _known(argument: str, given: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the values in lower case without duplicates. Raises NotAKey for unknown ones."""
    words = tuple(dict.fromkeys(word.strip().lower() for word in given))
    for word in words:
        if word not in known:
            nearest = nearest_name(word, known)
            hint = f"did you mean {nearest!r}? " if nearest else ""
            rule = f"{shortened(word)!r} is not known; {hint}there are {', '.join(known)}"
            raise NotAKey(argument, rule)
    return words


def _moment(text: str, now: datetime) -> datetime:
    """Parse a duration from now, or a date, which means its start."""
    length = _LENGTH.fullmatch(text.strip().lower())
    try:
        moment = now + timedelta(**{_UNITS[length[2]]: int(length[1])}) if length else datetime.fromisoformat(text)
        moment = moment.astimezone(UTC)
    except (ValueError, OverflowError):
        rule = f"{shortened(text)!r} is neither a length such as 90d or 12h nor a date such as 2027-01-31"
        raise NotAKey("expires", rule) from None
    if moment <= now:
        raise NotAKey("expires", f"{moment:%Y-%m-%d %H:%M} UTC has passed")
    return moment
