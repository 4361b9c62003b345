"""API keys of the configuration, and of the key file that `refdesk keys` and the console manage.

Only digests are kept, in memory and on disk. The file is polled while the server runs, so that creating or revoking a
key takes effect in every process.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from refdesk.calls import DEFAULT_TENANT, ROLES, Caller, TenantId, UserId
from refdesk.config.models import TOOLSETS, ApiKey
from refdesk.config.state_file import edit_state, read_state
from refdesk.errors import ConfigError, InvalidArguments, Problem
from refdesk.support.fs import FileStamp, read_stamp
from refdesk.validation import nearest_name, shorten

FILE_NAME = "keys.json"

POLL_SECONDS = 0.5
"""How long a change of the file may go unnoticed. A check costs a system call, so not every call makes one."""

PREFIX = "rd_"
"""Prefix by which people and secret scanners recognize our keys."""

KEY_BYTES = 32
"""Random bytes of a key: too many to guess, so a plain hash protects it as well as a slow one."""

MAX_NAME_LENGTH = 255
"""Maximum number of characters in a name."""

MAX_GRANTS = 100
"""Maximum number of roles, toolsets or servers of one key."""

CONFIGURATION = "configuration"

_DURATION = re.compile(r"([0-9]{1,6})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

logger = logging.getLogger(__name__)

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)]


def digest(key: str) -> bytes:
    """Return the digest of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def new_key() -> str:
    """Generate a random key."""
    return f"{PREFIX}{secrets.token_urlsafe(KEY_BYTES)}"


class StoredKey(BaseModel):
    """A key in the file, without the key itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    user: Name
    tenant: Name
    roles: tuple[str, ...] = ()
    toolsets: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    created: AwareDatetime
    expires: AwareDatetime | None = None

    def is_over(self, now: datetime) -> bool:
        """Return whether the key has expired."""
        return self.expires is not None and self.expires <= now


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    keys: tuple[StoredKey, ...] = ()


class KeyFile:
    """The key file. It's replaced as a whole, by one process at a time, and readable only by its owner."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_version(self) -> FileStamp:
        """Return the current version of the file. Raises OSError if the data folder can't be used."""
        if (stamp := read_stamp(self.path)) is None:
            with suppress(FileNotFoundError):
                self.path.stat()
        return stamp

    def read(self) -> tuple[StoredKey, ...]:
        """Return all keys. Raises ConfigError if the file can't be read or parsed."""
        return read_state(self.path, _File).keys

    def add(self, key: StoredKey) -> None:
        """Add a key. Names are unique."""
        with edit_state(self.path, _File) as file:
            if any(other.name == key.name for other in file.keys):
                rule = f"there is a key named {key.name!r} already; revoke it first, or choose another name"
                raise InvalidArguments([Problem("NAME", rule)])
            file.keys = (*file.keys, key)

    def remove(self, name: str) -> StoredKey:
        """Remove a key and return it."""
        with edit_state(self.path, _File) as file:
            removed = next((key for key in file.keys if key.name == name), None)
            if removed is None:
                nearest = nearest_name(name, [key.name for key in file.keys])
                hint = f"did you mean {nearest!r}?" if nearest else "`refdesk keys list` lists them"
                raise InvalidArguments([Problem("NAME", f"there is no key named {name!r} in {self.path}; {hint}")])
            file.keys = tuple(key for key in file.keys if key is not removed)
        return removed


class _ActiveKey(NamedTuple):
    """A valid key. A named tuple, because one is read for every request."""

    caller: Caller
    expires: float | None


class Keys:
    """Callers by key digest. Looking up digests prevents timing attacks."""

    def __init__(
        self,
        configured: Iterable[ApiKey],
        file: KeyFile | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Load the keys.

        An unreadable file raises ConfigError here. Later it's only logged, and the loaded keys stay.
        """
        self._configured = {bytes.fromhex(key.digest): _ActiveKey(_to_caller(key), None) for key in configured}
        self._file = file
        self._now = now
        self._clock = clock
        self._version = file.read_version() if file else None
        self._active = self._merge_keys(file.read() if file else ())
        self._is_in_use = bool(self._configured) or self._version is not None
        self._next_check = now() + POLL_SECONDS

    @property
    def in_use(self) -> bool:
        """Whether there are or were keys. Revoking the last one must not disable authentication."""
        self._reload_if_changed()
        return self._is_in_use

    def find(self, digest: bytes) -> Caller | None:
        """Return the caller whose key has this digest."""
        self._reload_if_changed()
        known = self._active.get(digest)
        if known is None or (known.expires is not None and known.expires <= self._clock()):
            return None
        return known.caller

    def check_soon(self) -> None:
        """Make the next call check the file, because this process has just changed it."""
        self._next_check = 0.0

    def _reload_if_changed(self) -> None:
        """Reload the file if it has changed, unless it was checked a moment ago."""
        if self._file is None or self._now() < self._next_check:
            return
        self._next_check = self._now() + POLL_SECONDS
        try:
            version = self._file.read_version()
            if version != self._version:
                # Set before reading: if the file changes meanwhile, the next check sees another version.
                self._version = version
                self._active = self._merge_keys(self._file.read())
                self._is_in_use = True
        except (OSError, ConfigError) as error:
            logger.error("the API keys were not reloaded: %s", error)

    def _merge_keys(self, stored: Iterable[StoredKey]) -> dict[bytes, _ActiveKey]:
        keys = {
            bytes.fromhex(key.sha256): _ActiveKey(_to_caller(key), key.expires.timestamp() if key.expires else None)
            for key in stored
        }
        return keys | self._configured


def _to_caller(key: ApiKey | StoredKey) -> Caller:
    return Caller(
        user=UserId(key.user),
        tenant=TenantId(key.tenant),
        roles=frozenset(key.roles),
        authenticated=True,
        toolsets=frozenset(name.lower() for name in key.toolsets) or None,
        servers=frozenset(key.servers) or None,
    )


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


class NotAKey(InvalidArguments):
    """Invalid attributes for a new key."""

    def __init__(self, argument: str, rule: str) -> None:
        super().__init__([Problem(argument, rule)])


@dataclass(eq=False, repr=False)
class KeyRing:
    """Manages the keys of the key file and lists those of the configuration. All methods block on disk I/O."""

    file: KeyFile
    configured: Sequence[ApiKey]
    changed: Callable[[], None] = lambda: None
    """Called after every change."""
    now: Callable[[], datetime] = _now

    def listed(self) -> list[dict[str, Any]]:
        """Return everything known about each key, except the key itself."""
        constant = {"created": None, "expires": None, "expired": False, "source": CONFIGURATION}
        configured = ({**_describe(key), **constant} for key in self.configured)
        return [*map(self._describe_stored, self.file.read()), *configured]

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
        name, key, now = _validate_name("name", name), new_key(), self.now()
        if any(name == other.name for other in self.configured):
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
        self.file.add(stored)
        self.changed()
        return key, self._describe_stored(stored)

    def revoke(self, name: str) -> str:
        """Remove a key from the file. Keys of the configuration can't be revoked here."""
        is_configured = any(name == other.name for other in self.configured)
        if is_configured and all(name != stored.name for stored in self.file.read()):
            rule = f"{name!r} is configured; remove it from the configuration and restart the server"
            raise InvalidArguments([Problem("name", rule)])
        removed = self.file.remove(name)
        self.changed()
        return removed.name

    def _describe_stored(self, key: StoredKey) -> dict[str, Any]:
        return {
            **_describe(key),
            "created": key.created.isoformat(),
            "expires": key.expires.isoformat() if key.expires else None,
            "expired": key.is_over(self.now()),
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
