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
from refdesk.validation import nearest_name, shorten

MAX_NAME_LENGTH = 255
"""Maximum number of characters in a name, as in the key file."""

MAX_GRANTS = 100
"""Maximum number of roles, toolsets or servers of one key."""

CONFIGURATION = "configuration"

_DURATION = re.compile(r"([0-9]{1,6})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


class NotAKey(InvalidArguments):
    """Invalid attributes for a new key."""

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
        constant = {"created": None, "expires": None, "expired": False, "source": CONFIGURATION}
        configured = ({**_describe(key), **constant} for key in self._configured)
        return [*map(self._describe_stored, self._file.read()), *configured]

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
        """Create a key, and return it together with its description.

        The key itself isn't stored. Raises NotAKey for invalid values.
        """
        name, key, now = _validate_name("name", name), new_key(), self._now()
        if any(name == other.name for other in self._configured):
            rule = f"the configuration has a key named {name!r}; choose another name"
            raise InvalidArguments([Problem("name", rule)])
        stored = StoredKey(
            name=name,
            sha256=digest(key).hex(),
            user=_validate_name("user", user or name),
            tenant=_validate_name("tenant", tenant or DEFAULT_TENANT),
            roles=_validate_choices("roles", roles, ROLES),
            toolsets=_validate_choices("toolsets", toolsets, TOOLSETS),
            servers=tuple(
                dict.fromkeys(_validate_name("servers", pattern) for pattern in _check_count("servers", servers))
            ),
            created=now,
            expires=_parse_expiry(expires, now) if expires else None,
        )
        self._file.add(stored)
        self._changed()
        return key, self._describe_stored(stored)

    def revoke(self, name: str) -> str:
        """Remove a key from the file. Keys of the configuration can't be revoked here."""
        is_configured = any(name == other.name for other in self._configured)
        if is_configured and all(name != stored.name for stored in self._file.read()):
            rule = f"{name!r} is configured; remove it from the configuration and restart the server"
            raise InvalidArguments([Problem("name", rule)])
        removed = self._file.remove(name)
        self._changed()
        return removed.name

    def _describe_stored(self, key: StoredKey) -> dict[str, Any]:
        return {
            **_describe(key),
            "created": key.created.isoformat(),
            "expires": key.expires.isoformat() if key.expires else None,
            "expired": key.is_over(self._now()),
            "source": FILE_NAME,
        }


def _describe(key: ApiKey | StoredKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "user": key.user,
        "tenant": key.tenant,
        "roles": list(key.roles),
        "toolsets": list(key.toolsets),
        "servers": list(key.servers),
    }


def _validate_name(argument: str, value: str) -> str:
    """Return a stripped name. Raises NotAKey if it's empty, too long or not printable."""
    if not value.strip():
        raise NotAKey(argument, "is required")
    if len(value) > MAX_NAME_LENGTH or not value.isprintable():
        raise NotAKey(argument, f"must be at most {MAX_NAME_LENGTH} printable characters")
    return value.strip()


def _check_count(argument: str, given: Sequence[str]) -> Sequence[str]:
    if len(given) > MAX_GRANTS:
        raise NotAKey(argument, f"must be at most {MAX_GRANTS}")
    return given


def _validate_choices(argument: str, given: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the values in lower case without duplicates. Raises NotAKey for unknown ones."""
    words = tuple(dict.fromkeys(word.strip().lower() for word in given))
    for word in words:
        if word not in known:
            nearest = nearest_name(word, known)
            hint = f"did you mean {nearest!r}? " if nearest else ""
            rule = f"{shorten(word)!r} is unknown; {hint}known are {', '.join(known)}"
            raise NotAKey(argument, rule)
    return words


def _parse_expiry(text: str, now: datetime) -> datetime:
    """Parse a duration from now, or a date, which means its start."""
    duration = _DURATION.fullmatch(text.strip().lower())
    try:
        expiry = (
            now + timedelta(**{_UNITS[duration[2]]: int(duration[1])}) if duration else datetime.fromisoformat(text)
        )
        expiry = expiry.astimezone(UTC)
    except (ValueError, OverflowError):
        rule = f"{shorten(text)!r} is neither a length such as 90d or 12h nor a date such as 2027-01-31"
        raise NotAKey("expires", rule) from None
    if expiry <= now:
        raise NotAKey("expires", f"{expiry:%Y-%m-%d %H:%M} UTC has passed")
    return expiry
