"""What tools were when they were trusted, so that one that is changed behind one's back is held until it is approved.

A tool is trusted as it is first seen, unless the server's `hold` says `new`: then every tool waits, those of a server's
very first list too. One file holds the hashes, the definitions as they were, and those that wait; every process that
shares the folder reads it again when it has changed, so that an approval counts in a server that runs.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from refdesk.config.plain_files import replace_text, while_alone
from refdesk.downstream.transports.base import Message
from refdesk.errors import ConfigError, InvalidArguments, Problem, StorageError
from refdesk.validation import nearest_name

logger = logging.getLogger(__name__)

FILE_NAME = "pins.json"

PINNED_FIELDS = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
"""What a model reads of a tool, and what its arguments are made by."""

MAX_TOOLS = 1000
"""Tools of one server that are remembered. None is ever forgotten for another, which would be a way to change it: those
that come when there are so many are held."""

MAX_SHOWN_BYTES = 16 * 1024
"""Of a definition that is kept to be shown; of a longer one only the hash is."""

Hold = Literal["changed", "new", "nothing"]
Stamp = tuple[int, int, int] | None
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class Held:
    """A tool that waits for approval."""

    server: str
    tool: str
    before: Mapping[str, Any] | None
    """As it was trusted; None for a tool that is new."""
    after: Mapping[str, Any]
    sha256: str
    """The hash of what it is now, by which it can be approved as it was shown."""


class _SeenDefinition(BaseModel):
    """A definition: its hash, and what there is to show of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: Digest
    shown: Mapping[str, Any]


class _ServerPins(BaseModel):
    model_config = ConfigDict(extra="forbid")

    trusted: dict[str, _SeenDefinition] = Field(default_factory=dict)
    held: dict[str, _SeenDefinition] = Field(default_factory=dict)
    rejected: dict[str, Digest] = Field(default_factory=dict)
    """What was refused: it is not offered, and not asked about again unless it changes; that is asked about anew."""


class _PinsFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    servers: dict[str, _ServerPins] = Field(default_factory=dict)


class Pins:
    """The file of them. Everything here waits for the disk, and may be called from any thread."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME

    def stamp(self) -> Stamp:
        """What tells one state of the file from another; None where none is in reach."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def review(self, server: str, tools: Iterable[Message], hold: Hold) -> dict[str, Held]:
        """Which of a server's tools wait for approval, by their names; what is seen for the first time is remembered.

        Those that were rejected are among them, as long as they are what was rejected.
        """
        if hold == "nothing":
            return {}
        seen_now = {tool["name"]: _SeenDefinition(sha256=digest(tool), shown=_limit_definition(tool)) for tool in tools}
        known = self._read().servers.get(server, _ServerPins())
        if _update_pins(known, seen_now, hold) != known:
            known = self._store_review(server, seen_now, hold)
        return {
            name: _build_held(server, name, known, seen_now[name])
            for name in seen_now
            if not _is_trusted(known, name, seen_now[name])
        }

    def _store_review(self, server: str, seen_now: Mapping[str, _SeenDefinition], hold: Hold) -> _ServerPins:
        """What is known once these are the server's tools, written down; on a full disk, what is known for now."""
        try:
            with self._lock():
                file = self._read()
                known = file.servers[server] = _update_pins(file.servers.get(server, _ServerPins()), seen_now, hold)
                self._replace(file)
                return known
        except StorageError as error:
            logger.error("downstream.pins_unwritten", extra={"fields": {"server": server, "why": error.detail}})
            return _update_pins(self._read().servers.get(server, _ServerPins()), seen_now, hold)

    def held(self, server: str | None = None) -> list[Held]:
        """Every tool that waits for approval, of one server or of all."""
        return [
            _build_held(name, tool, known, seen)
            for name, known in self._read().servers.items()
            if server in (None, name)
            for tool, seen in known.held.items()
        ]

    def approve(self, server: str, tool: str | None = None, *, as_shown: Iterable[Held] | None = None) -> list[Held]:
        """Trust a tool as it is now, or all that wait of a server; what was approved.

        With `as_shown` only what is still what was shown: a server may change a tool while somebody looks at it.
        """
        shown = None if as_shown is None else {(held.tool, held.sha256) for held in as_shown}
        with self._lock():
            file = self._read()
            held_tools = self._select_held(file, server, tool)
            approved = [held for held in held_tools if shown is None or (held.tool, held.sha256) in shown]
            known = file.servers[server]
            for held in approved:
                known.trusted[held.tool] = known.held.pop(held.tool)
                known.rejected.pop(held.tool, None)
            self._replace(file)
        return approved

    def reject(self, server: str, tool: str | None = None) -> list[Held]:
        """Refuse a tool as it is now, or all that wait of a server; it is not offered until it is another again."""
        with self._lock():
            file = self._read()
            rejected = self._select_held(file, server, tool)
            known = file.servers[server]
            for held in rejected:
                known.rejected[held.tool] = known.held.pop(held.tool).sha256
            self._replace(file)
        return rejected

    def forget(self, server: str) -> None:
        """Know nothing of a server any more, so that it is trusted anew as it is first seen."""
        with self._lock():
            file = self._read()
            if file.servers.pop(server, None) is not None:
                self._replace(file)

    def _select_held(self, file: _PinsFile, server: str, tool: str | None) -> list[Held]:
        known = file.servers.get(server, _ServerPins())
        names = list(known.held) if tool is None else [tool]
        if not names or names[0] not in known.held:
            raise InvalidArguments([Problem("TOOL" if tool else "SERVER", _describe_nothing_held(file, server, tool))])
        return [_build_held(server, name, known, known.held[name]) for name in names]

    def _read(self) -> _PinsFile:
        try:
            return _PinsFile.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return _PinsFile()
        except OSError as error:
            raise ConfigError([f"{self.path}: cannot be read: {error.strerror}"]) from error
        except ValidationError as error:
            where = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, where["loc"])) or "the whole"
            raise ConfigError([f"{self.path}: cannot be understood ({place}: {where['msg']}); mend it"]) from None

    def _replace(self, file: _PinsFile) -> None:
        replace_text(self.path, orjson.dumps(file.model_dump(mode="json"), option=orjson.OPT_INDENT_2).decode() + "\n")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """While nobody else writes."""
        try:
            with while_alone(self.path):
                yield
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}") from error


def digest(definition: Mapping[str, Any]) -> str:
    """What a definition is pinned by: the same for two that are spelt alike in Unicode, whatever the order of keys."""
    fields = {name: definition[name] for name in PINNED_FIELDS if definition.get(name) is not None}
    text = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode()
    return sha256(unicodedata.normalize("NFC", text).encode()).hexdigest()


def _limit_definition(definition: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: definition[name] for name in PINNED_FIELDS if definition.get(name) is not None}
    if len(orjson.dumps(shown)) <= MAX_SHOWN_BYTES:
        return shown
    return {"name": definition["name"], "description": "(too long to be shown)"}


def _update_pins(known: _ServerPins, seen_now: Mapping[str, _SeenDefinition], hold: Hold) -> _ServerPins:
    """What is known of a server once these are its tools."""
    trusted = dict(known.trusted)
    held: dict[str, _SeenDefinition] = {}
    for name, seen in seen_now.items():
        is_new = name not in trusted and name not in known.held and name not in known.rejected
        if is_new and hold == "changed" and len(trusted) < MAX_TOOLS:
            trusted[name] = seen
        elif not _is_trusted(known, name, seen) and known.rejected.get(name) != seen.sha256 and len(held) < MAX_TOOLS:
            held[name] = seen
    return _ServerPins(trusted=trusted, held=held, rejected=known.rejected)


def _is_trusted(known: _ServerPins, name: str, seen: _SeenDefinition) -> bool:
    return name in known.trusted and known.trusted[name].sha256 == seen.sha256


def _build_held(server: str, tool: str, known: _ServerPins, seen: _SeenDefinition) -> Held:
    before = known.trusted.get(tool)
    return Held(server, tool, before.shown if before else None, seen.shown, seen.sha256)


def _describe_nothing_held(file: _PinsFile, server: str, tool: str | None) -> str:
    known = file.servers.get(server)
    if known is None or not known.held:
        waiting = [name for name, other in file.servers.items() if other.held]
        others = f"; there are some of {', '.join(waiting)}" if waiting else ""
        return f"no tool of {server!r} waits for approval{others}"
    nearest = nearest_name(tool or "", list(known.held))
    hint = f"did you mean {nearest!r}?" if nearest else f"these do: {', '.join(list(known.held)[:10])}"
    return f"no tool {tool!r} of {server!r} waits for approval; {hint}"
