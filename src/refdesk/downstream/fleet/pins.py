"""Tool pinning: a tool that changed since it was trusted is held until it's approved.

A tool is trusted when first seen, unless the server's `hold` is `new`: then every tool waits, including those of the
first list. One file has the hashes, the trusted definitions and the held ones. Every process that shares the folder
rereads it when it changes, so that an approval takes effect in a running server.
"""

from __future__ import annotations

import difflib
import json
import logging
import shlex
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from refdesk.config.state_file import edit_state, read_state
from refdesk.downstream.jsonrpc import Message
from refdesk.errors import InvalidArguments, Problem, StorageError
from refdesk.validation import nearest_name

logger = logging.getLogger(__name__)

FILE_NAME = "pins.json"

MAX_PINS = 1000
"""Tools pinned per server. None is ever evicted, because that would be a way to change it: tools beyond the limit
are held."""

PINNED_FIELDS = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
"""Fields of a tool that a model reads, or that shape its arguments."""

MAX_SHOWN_BYTES = 16 * 1024
"""Size up to which a definition is stored for display. Of longer ones only the hash is stored."""

CONTEXT_LINES = 2
"""Unchanged lines shown around a change."""

Hold = Literal["changed", "new", "nothing"]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class HeldTool:
    """A tool that waits for approval."""

    server: str
    tool: str
    before: Mapping[str, Any] | None
    """The trusted definition; None for a new tool."""
    after: Mapping[str, Any]
    sha256: str
    """Hash of the current definition, to approve exactly what was shown."""

    @property
    def reason(self) -> str:
        """Why it's held."""
        return "held: new tool" if self.before is None else "held: definition changed"

    @property
    def approval(self) -> str:
        """The command that approves it."""
        return escape_unprintable(shlex.join(["refdesk", "servers", "approve", self.server, self.tool]))

    def iter_diff(self) -> Iterator[str]:
        """Yield a line diff of the two definitions, with unprintable characters escaped."""
        old, new = _format_lines(self.before) if self.before is not None else [], _format_lines(self.after)
        for line in list(difflib.unified_diff(old, new, n=CONTEXT_LINES, lineterm=""))[2:]:
            if not line.startswith("@@"):
                yield line


class _SeenDefinition(BaseModel):
    """A definition: its hash, and the part stored for display."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: Digest
    shown: Mapping[str, Any]

    @classmethod
    def of(cls, definition: Mapping[str, Any]) -> _SeenDefinition:
        shown: Mapping[str, Any] = _select_pinned(definition)
        if len(orjson.dumps(shown)) > MAX_SHOWN_BYTES:
            shown = {"name": definition["name"], "description": "(too long to be shown)"}
        return cls(sha256=digest(definition), shown=shown)


class _ServerPins(BaseModel):
    model_config = ConfigDict(extra="forbid")

    trusted: dict[str, _SeenDefinition] = Field(default_factory=dict)
    held: dict[str, _SeenDefinition] = Field(default_factory=dict)
    rejected: dict[str, Digest] = Field(default_factory=dict)
    """Rejected definitions by hash. They aren't exposed, and not held again unless they change."""


class _PinsFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    servers: dict[str, _ServerPins] = Field(default_factory=dict)


class Pins:
    """The pins file. All methods block on disk access and are thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME

    def review(self, server: str, tools: Iterable[Message], hold: Hold) -> dict[str, HeldTool]:
        """Return the tools of a server that wait for approval, by name, and record tools seen for the first time.

        Rejected tools are included as long as they are unchanged.
        """
        if hold == "nothing":
            return {}
        seen_now = {tool["name"]: _SeenDefinition.of(tool) for tool in tools}
        known = self._read().servers.get(server, _ServerPins())
        if _update_pins(known, seen_now, hold) != known:
            known = self._store_review(server, seen_now, hold)
        return {
            name: _build_held(server, name, known, seen_now[name])
            for name in seen_now
            if not _is_trusted(known, name, seen_now[name])
        }

    def _store_review(self, server: str, seen_now: Mapping[str, _SeenDefinition], hold: Hold) -> _ServerPins:
        """Update and store the pins of a server. If the disk is full, the update isn't stored."""
        try:
            with self._edit() as file:
                known = file.servers[server] = _update_pins(file.servers.get(server, _ServerPins()), seen_now, hold)
            return known
        except StorageError as error:
            logger.error("downstream.pins_unwritten", extra={"fields": {"server": server, "why": error.detail}})
            return _update_pins(self._read().servers.get(server, _ServerPins()), seen_now, hold)

    def list_held(self, server: str | None = None, tool: str | None = None) -> list[HeldTool]:
        """Return the tools that wait for approval: of one server or of all, one tool or all."""
        return [
            _build_held(name, held, known, seen)
            for name, known in self._read().servers.items()
            if server in (None, name)
            for held, seen in known.held.items()
            if tool in (None, held)
        ]

    def approve(
        self, server: str, tool: str | None = None, *, as_shown: Iterable[HeldTool] | None = None
    ) -> list[HeldTool]:
        """Trust a held tool, or all held tools of a server. Return the approved ones.

        With `as_shown`, only tools that are still as shown are approved: a server may change a tool during the review.
        """
        shown = None if as_shown is None else {(held.tool, held.sha256) for held in as_shown}
        with self._edit() as file:
            held_tools = self._select_held(file, server, tool)
            approved = [held for held in held_tools if shown is None or (held.tool, held.sha256) in shown]
            known = file.servers[server]
            for held in approved:
                known.trusted[held.tool] = known.held.pop(held.tool)
                known.rejected.pop(held.tool, None)
        return approved

    def reject(self, server: str, tool: str | None = None) -> list[HeldTool]:
        """Reject a held tool, or all held tools of a server, until they change again."""
        with self._edit() as file:
            rejected = self._select_held(file, server, tool)
            known = file.servers[server]
            for held in rejected:
                known.rejected[held.tool] = known.held.pop(held.tool).sha256
        return rejected

    def _select_held(self, file: _PinsFile, server: str, tool: str | None) -> list[HeldTool]:
        known = file.servers.get(server, _ServerPins())
        names = list(known.held) if tool is None else [tool]
        if not names or names[0] not in known.held:
            raise InvalidArguments([Problem("TOOL" if tool else "SERVER", _describe_nothing_held(file, server, tool))])
        return [_build_held(server, name, known, known.held[name]) for name in names]

    def _read(self) -> _PinsFile:
        return read_state(self.path, _PinsFile)

    def _edit(self) -> AbstractContextManager[_PinsFile]:
        return edit_state(self.path, _PinsFile)


def digest(definition: Mapping[str, Any]) -> str:
    """Return the hash of a definition. Key order and Unicode normalization don't matter."""
    text = orjson.dumps(_select_pinned(definition), option=orjson.OPT_SORT_KEYS).decode()
    return sha256(unicodedata.normalize("NFC", text).encode()).hexdigest()


def _select_pinned(definition: Mapping[str, Any]) -> dict[str, Any]:
    return {name: definition[name] for name in PINNED_FIELDS if definition.get(name) is not None}


def _update_pins(known: _ServerPins, seen_now: Mapping[str, _SeenDefinition], hold: Hold) -> _ServerPins:
    """Return the pins of a server after it listed these tools."""
    trusted = dict(known.trusted)
    held: dict[str, _SeenDefinition] = {}
    for name, seen in seen_now.items():
        is_new = name not in trusted and name not in known.held and name not in known.rejected
        if is_new and hold == "changed" and len(trusted) < MAX_PINS:
            trusted[name] = seen
        elif not _is_trusted(known, name, seen) and known.rejected.get(name) != seen.sha256 and len(held) < MAX_PINS:
            held[name] = seen
    return _ServerPins(trusted=trusted, held=held, rejected=known.rejected)


def _is_trusted(known: _ServerPins, name: str, seen: _SeenDefinition) -> bool:
    return name in known.trusted and known.trusted[name].sha256 == seen.sha256


def _build_held(server: str, tool: str, known: _ServerPins, seen: _SeenDefinition) -> HeldTool:
    before = known.trusted.get(tool)
    return HeldTool(server, tool, before.shown if before else None, seen.shown, seen.sha256)


def _describe_nothing_held(file: _PinsFile, server: str, tool: str | None) -> str:
    known = file.servers.get(server)
    if known is None or not known.held:
        waiting = [name for name, other in file.servers.items() if other.held]
        others = f"; there are some of {', '.join(waiting)}" if waiting else ""
        return f"no tool of {server!r} waits for approval{others}"
    nearest = nearest_name(tool or "", list(known.held))
    hint = f"did you mean {nearest!r}?" if nearest else f"these do: {', '.join(list(known.held)[:10])}"
    return f"no tool {tool!r} of {server!r} waits for approval; {hint}"


def escape_unprintable(text: str) -> str:
    """Escape unprintable characters, which may be meant for a model only."""
    return "".join(one if one.isprintable() else f"\\u{{{ord(one):x}}}" for one in text)


def _format_lines(definition: Mapping[str, Any]) -> list[str]:
    text = json.dumps(definition, indent=2, sort_keys=True, ensure_ascii=False)
    return [escape_unprintable(line) for line in text.splitlines()]
