"""Exposure of server lists: valid definitions only, without invisible text, selected and named by rules. No I/O.

Definitions keep unknown fields, and change only in their name and in invisible text. A definition that a strict client
couldn't parse is dropped: it would cost that client the whole list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import orjson

from refdesk.config.server_model import McpServerConfig, ToolRules
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.sanitize import InvalidDefinition, remove_invisible, visible
from refdesk.downstream.jsonrpc import Message
from refdesk.downstream.session import LISTS, ListName

MAX_EXPOSED_ENTRIES: Mapping[ListName, int] = {"tools": 1000, "prompts": 1000, "resources": 10_000, "templates": 100}
"""Entries per server: more than any legitimate server has. Templates have a low limit because every URI is matched
against all of them."""

MAX_DEFINITION_BYTES = 256 * 1024
"""Size of one definition: more than a model could read, or a client should have to."""

MAX_NAME_CHARACTERS = 256
MAX_URI_CHARACTERS = 8000
"""Length of tool and prompt names, and of URIs. They are displayed, logged and stored in many places."""

MAX_REASONS = 20
"""Dropped entries that are named. The others are only counted."""

_COMMON_FIELDS: Mapping[str, Any] = {
    "annotations": dict,
    "_meta": dict,
    "icons": list,
    "title": str,
    "description": str,
}
_FIELDS: Mapping[ListName, Mapping[str, Any]] = {
    "tools": {**_COMMON_FIELDS, "outputSchema": dict, "execution": dict},
    "prompts": {**_COMMON_FIELDS, "arguments": list},
    "resources": {**_COMMON_FIELDS, "mimeType": str, "size": (int, float)},
    "templates": {**_COMMON_FIELDS, "mimeType": str},
}
"""Expected types of optional fields, by list."""


@dataclass(frozen=True, slots=True)
class ExposedItem:
    """An exposed tool, prompt, resource or template of a server."""

    connection: Connection
    original: str
    """The server's own name, URI or URI template."""
    definition: Mapping[str, Any]
    """The server's definition with the exposed name, and without invisible text."""
    exposed: str
    is_stale: bool
    """Whether it's only the last known definition, because the server is unavailable."""


@dataclass(frozen=True, slots=True)
class ListEntry:
    """A valid definition of a list."""

    original: str
    definition: Mapping[str, Any]
    given: Message
    """The unmodified definition, which is what gets pinned."""


@dataclass(slots=True)
class FilteredList:
    """The valid entries of a list, and statistics about the rest."""

    entries: list[ListEntry] = field(default_factory=list)
    dropped: int = 0
    reasons: list[str] = field(default_factory=list)
    """Reasons for the first dropped entries."""
    invisible: int = 0
    """Number of invisible characters removed."""

    def drop(self, original: object, why: str) -> None:
        """Record a dropped entry."""
        self.dropped += 1
        if len(self.reasons) < MAX_REASONS:
            shown, _ = visible(str(original))
            self.reasons.append(f"{shown[:100]!r}: {why}")


def filter_list(list_name: ListName, definitions: Iterable[Message]) -> FilteredList:
    """Return the valid entries of a list. Of duplicates, the first is kept."""
    filtered, seen = FilteredList(), set[str]()
    for definition in definitions:
        original = definition.get(LISTS[list_name].key)
        try:
            _check(list_name, definition)
            if original in seen:
                raise InvalidDefinition("it's a duplicate")
            if len(seen) >= MAX_EXPOSED_ENTRIES[list_name]:
                raise InvalidDefinition(f"there are more than {MAX_EXPOSED_ENTRIES[list_name]}")
            sanitized, invisible = _sanitize(list_name, definition)
        except InvalidDefinition as error:
            filtered.drop(original, str(error))
        else:
            seen.add(str(original))
            filtered.invisible += invisible
            filtered.entries.append(ListEntry(str(original), sanitized, definition))
    return filtered


def _check(list_name: ListName, definition: Message) -> None:
    key = LISTS[list_name].key
    for name in (key, "name"):
        if not isinstance(definition.get(name), str) or not definition[name]:
            raise InvalidDefinition(f"its {name} is not text")
    max_length = MAX_URI_CHARACTERS if "uri" in key else MAX_NAME_CHARACTERS
    if len(definition[key]) > max_length:
        raise InvalidDefinition(f"its {key} has more than {max_length} characters")
    for name, expected_type in _FIELDS[list_name].items():
        if definition.get(name) is not None and not isinstance(definition[name], expected_type):
            raise InvalidDefinition(f"its {name} has the wrong type")
    if list_name == "tools" and not _is_object_schema(definition.get("inputSchema")):
        raise InvalidDefinition("its inputSchema does not describe an object")
    if "uri" in key and visible(definition[key])[1]:
        raise InvalidDefinition("its URI contains invisible characters")
    try:
        if len(orjson.dumps(definition)) > MAX_DEFINITION_BYTES:
            raise InvalidDefinition("it is too long")
    except TypeError as error:
        raise InvalidDefinition("it cannot be written as JSON") from error


def _is_object_schema(schema: object) -> bool:
    """Whether a schema describes an object. A missing type is added later."""
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        return False
    properties, required = schema.get("properties", {}), schema.get("required", [])
    return isinstance(properties, dict) and isinstance(required, list)


def _sanitize(list_name: ListName, definition: Message) -> tuple[Mapping[str, Any], int]:
    """Return the definition to expose, and the number of invisible characters removed."""
    sanitized, invisible = remove_invisible(definition)
    if list_name == "tools":
        schema = sanitized["inputSchema"]
        if "type" not in schema:
            sanitized = {**sanitized, "inputSchema": {"type": "object", **schema}}
    elif list_name != "prompts":
        name, more = visible(sanitized["name"])  # a resource's name is only display text
        sanitized, invisible = {**sanitized, "name": name} if more else sanitized, invisible + more
    return sanitized, invisible


class ExposureRules:
    """Which tools of a server are exposed and under which names: its preset plus its own rules.

    `allow` and `deny` are merged, and the server's own renames take precedence. With an unknown preset nothing is
    exposed, because what it would deny is unknown.
    """

    def __init__(self, settings: McpServerConfig, presets: Mapping[str, ToolRules]) -> None:
        name = settings.preset
        preset = presets.get(name) if name is not None else ToolRules()
        self.problem = None if preset else f"there is no preset {name!r} in downstream.presets"
        preset = preset or ToolRules(deny=("*",))
        self._allow = (*preset.allow, *settings.tools.allow)
        self._deny = (*preset.deny, *settings.tools.deny)
        own = settings.tools.rename
        self._rename = {**own, **preset.rename, **own}  # its own come first, and win

    def allows(self, original: str) -> bool:
        """Whether a tool is exposed."""
        if any(fnmatchcase(original, pattern) for pattern in self._deny):
            return False
        return not self._allow or any(fnmatchcase(original, pattern) for pattern in self._allow)

    def name_of(self, original: str) -> str:
        """Return the name for a tool. A `*` in the new name stands for what the `*` of the pattern matched."""
        if original in self._rename:
            return _fill_wildcard(self._rename[original], original, original)
        for pattern, name in self._rename.items():
            if fnmatchcase(original, pattern):
                return _fill_wildcard(name, pattern, original)
        return original


def _fill_wildcard(name: str, pattern: str, original: str) -> str:
    before, star, after = pattern.partition("*")
    if not star or any(sign in before + after for sign in "*?["):
        return name
    return name.replace("*", original[len(before) : len(original) - len(after)], 1)
