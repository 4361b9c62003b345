"""API keys: those of the configuration, and those that `refdesk keys` keeps in a file beside the data.

Only digests of keys are kept, in memory as on disk. The file is looked at again and again while the server runs, so
that a key made or revoked counts at once, in every process.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeAlias

import orjson
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from refdesk.calls import Caller, TenantId, UserId
from refdesk.config import ApiKey
from refdesk.config.plain_files import replace_text, while_alone
from refdesk.errors import ConfigError, InvalidArguments, Problem, StorageError
from refdesk.validation import nearest_name

FILE_NAME = "keys.json"

LOOK_SECONDS = 0.5
"""How long a change of the file may go unseen; to look costs a system call, so not every call does."""

PREFIX = "rd_"
"""By which people, and programs that look for secrets in the wrong places, know one of our keys."""

KEY_BYTES = 32
"""Random bytes of a key: too many to be guessed, so that a plain hash protects it as well as a slow one would."""

logger = logging.getLogger(__name__)

Stamp: TypeAlias = tuple[int, int, int] | None
"""What tells one state of a file from another; None where there is no file."""

Name = Annotated[str, Field(min_length=1, max_length=255)]


def digest(key: str) -> bytes:
    """The form in which a key is kept."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def new_key() -> str:
    """A key that nobody has."""
    return f"{PREFIX}{secrets.token_urlsafe(KEY_BYTES)}"


class StoredKey(BaseModel):
    """A key in the file: all that is known of it but the key itself."""

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
        """Whether its time has passed."""
        return self.expires is not None and self.expires <= now


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    keys: tuple[StoredKey, ...] = ()


class KeyFile:
    """The file that `refdesk keys` writes: replaced as a whole, by one process at a time, for its owner's eyes only."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stamp(self) -> Stamp:
        """The state that the file is in."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def read(self) -> tuple[StoredKey, ...]:
        """Every key in it; raises ConfigError for a file that cannot be read or understood."""
        try:
            return _File.model_validate_json(self.path.read_bytes()).keys
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise ConfigError([f"{self.path}: cannot be read: {error.strerror}"]) from error
        except ValidationError as error:
            where = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, where["loc"])) or "the whole"
            raise ConfigError([f"{self.path}: cannot be understood ({place}: {where['msg']}); mend it"]) from None

    def add(self, key: StoredKey) -> None:
        """Keep one more key; a name can be taken only once."""
        with self._alone():
            keys = self.read()
            if any(other.name == key.name for other in keys):
                rule = f"there is a key named {key.name!r} already; revoke it first, or choose another name"
                raise InvalidArguments([Problem("NAME", rule)])
            self._replace((*keys, key))

    def remove(self, name: str) -> StoredKey:
        """Forget a key, which is given back for the last time."""
        with self._alone():
            keys = self.read()
            removed = next((key for key in keys if key.name == name), None)
            if removed is None:
                nearest = nearest_name(name, [key.name for key in keys])
                hint = f"did you mean {nearest!r}?" if nearest else "`refdesk keys list` lists them"
                raise InvalidArguments([Problem("NAME", f"there is no key named {name!r} in {self.path}; {hint}")])
            self._replace(tuple(key for key in keys if key is not removed))
        return removed

    def _replace(self, keys: tuple[StoredKey, ...]) -> None:
        content = _File(keys=keys).model_dump(mode="json")
        replace_text(self.path, orjson.dumps(content, option=orjson.OPT_INDENT_2).decode() + "\n")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While nobody else writes."""
        try:
            with while_alone(self.path):
                yield
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}") from error


class _Known(NamedTuple):
    """A key in force. A tuple: one is looked at for every request."""

    caller: Caller
    expires: float | None


class Keys:
    """Who calls with which key. Looked up by digest: no comparison can leak how much of a guess was right."""

    def __init__(
        self,
        configured: Iterable[ApiKey],
        file: KeyFile | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A file that cannot be understood is a ConfigError here, and only logged later, when it was fine at first."""
        self._configured = {bytes.fromhex(key.digest): _Known(_caller(key), None) for key in configured}
        self._file = file
        self._now = now
        self._clock = clock
        self._stamp = file.stamp() if file else None
        self._known = self._with_stored(file.read() if file else ())
        self._is_in_use = bool(self._configured) or self._stamp is not None
        self._next_look = now() + LOOK_SECONDS

    @property
    def in_use(self) -> bool:
        """Whether there are keys here, or have been: to revoke the last one must not open the door."""
        self._look()
        return self._is_in_use

    def find(self, digest: bytes) -> Caller | None:
        """The caller whose key has this digest."""
        self._look()
        known = self._known.get(digest)
        if known is None or (known.expires is not None and known.expires <= self._clock()):
            return None
        return known.caller

    def look_again(self) -> None:
        """The file has just been changed by this process: what it says counts from the next call on."""
        self._next_look = 0.0

    def _look(self) -> None:
        """Take in what has changed in the file, unless it was looked at a moment ago."""
        if self._file is None or self._now() < self._next_look:
            return
        self._next_look = self._now() + LOOK_SECONDS
        try:
            stamp = self._file.stamp()
            if stamp != self._stamp:
                # Before it is read: should it change meanwhile, the next look sees another stamp.
                self._stamp = stamp
                self._known = self._with_stored(self._file.read())
                self._is_in_use = True
        except (OSError, ConfigError) as error:
            logger.error("the keys are as they were: %s", error)

    def _with_stored(self, stored: Iterable[StoredKey]) -> dict[bytes, _Known]:
        keys = {
            bytes.fromhex(key.sha256): _Known(_caller(key), key.expires.timestamp() if key.expires else None)
            for key in stored
        }
        return keys | self._configured


def _caller(key: ApiKey | StoredKey) -> Caller:
    return Caller(
        user=UserId(key.user),
        tenant=TenantId(key.tenant),
        roles=frozenset(key.roles),
        authenticated=True,
        toolsets=frozenset(name.lower() for name in key.toolsets) or None,
        servers=frozenset(key.servers) or None,
    )
