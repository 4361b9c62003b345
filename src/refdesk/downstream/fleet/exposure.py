"""What of a server's lists is offered here: definitions that can be used, that the rules let through, made readable.

A definition is passed on as the server gave it, with the fields that nobody here knows, but for its name and for text
that cannot be seen. One that a strict client could not read is left out: it would cost that client the whole list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import orjson

from refdesk.config.servers import McpServerConfig, ToolRules
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.list_cache import ListName
from refdesk.downstream.fleet.sanitize import TooDeep, clean_definition, visible
from refdesk.downstream.transports.base import Message

KEY_FIELDS: Mapping[ListName, str] = {
    "tools": "name",
    "prompts": "name",
    "resources": "uri",
    "templates": "uriTemplate",
}

MAX_ENTRIES: Mapping[ListName, int] = {"tools": 1000, "prompts": 1000, "resources": 10_000, "templates": 100}
"""Of one server: more than any has that means well. A URI is held against every template, so of these there are few."""

MAX_DEFINITION_BYTES = 256 * 1024
"""Of one definition: more than a model could read, and than a client should have to."""

MAX_NAME_CHARACTERS = 256
MAX_URI_CHARACTERS = 8000
"""Of what a server calls a tool or prompt, and of a URI: names are shown, logged and kept wherever the thing is."""

MAX_REASONS = 20
"""What was left out of a list is counted, and this much of it named."""

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
"""What fields have to be where there is something in them, by list."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool, prompt, resource or template of a server, as it is offered here."""

    connection: Connection
    original: str
    """What the server calls it: its name, URI or URI template."""
    definition: Mapping[str, Any]
    """As the server gave it, under the name that it has here, its text made visible."""
    exposed: str
    is_stale: bool
    """Whether it is only the last that was known of a server which cannot be asked at the moment."""


@dataclass(frozen=True, slots=True)
class ListEntry:
    """A definition of a list that can be offered."""

    original: str
    definition: Mapping[str, Any]
    given: Message
    """The definition to the letter, by which it is pinned."""


@dataclass(slots=True)
class FilteredList:
    """A list without what cannot be offered, and what became of the rest."""

    entries: list[ListEntry] = field(default_factory=list)
    dropped: int = 0
    reasons: list[str] = field(default_factory=list)
    """Of the first that were left out."""
    invisible: int = 0
    """Characters that were taken out because nobody could have seen them."""

    def drop(self, original: object, why: str) -> None:
        """Leave an entry out."""
        self.dropped += 1
        if len(self.reasons) < MAX_REASONS:
            shown, _ = visible(str(original))
            self.reasons.append(f"{shown[:100]!r}: {why}")


def filter_list(list_name: ListName, definitions: Iterable[Message]) -> FilteredList:
    """What of a list can be used at all; of two entries of the same name, the first."""
    filtered, seen = FilteredList(), set[str]()
    for definition in definitions:
        original = definition.get(KEY_FIELDS[list_name])
        try:
            _check(list_name, definition)
            if original in seen:
                raise _InvalidDefinition("it is there twice")
            if len(seen) >= MAX_ENTRIES[list_name]:
                raise _InvalidDefinition(f"there are {MAX_ENTRIES[list_name]} of them already")
            sanitized, invisible = _sanitize(list_name, definition)
        except (_InvalidDefinition, TooDeep) as error:
            filtered.drop(original, str(error))
        else:
            seen.add(str(original))
            filtered.invisible += invisible
            filtered.entries.append(ListEntry(str(original), sanitized, definition))
    return filtered


class _InvalidDefinition(ValueError):
    """Why a definition cannot be offered."""


def _check(list_name: ListName, definition: Message) -> None:
    """Raise what is wrong with a definition."""
    for name in (KEY_FIELDS[list_name], "name"):
        if not isinstance(definition.get(name), str) or not definition[name]:
            raise _InvalidDefinition(f"its {name} is no text")
    max_length = MAX_URI_CHARACTERS if "uri" in KEY_FIELDS[list_name] else MAX_NAME_CHARACTERS
    if len(definition[KEY_FIELDS[list_name]]) > max_length:
        raise _InvalidDefinition(f"its {KEY_FIELDS[list_name]} has more than {max_length} characters")
    for name, expected_type in _FIELDS[list_name].items():
        if definition.get(name) is not None and not isinstance(definition[name], expected_type):
            raise _InvalidDefinition(f"its {name} is not of the right kind")
    if list_name == "tools" and not _is_object_schema(definition.get("inputSchema")):
        raise _InvalidDefinition("its inputSchema does not describe an object")
    if "uri" in KEY_FIELDS[list_name] and visible(definition[KEY_FIELDS[list_name]])[1]:
        raise _InvalidDefinition("its URI has characters in it that nobody can see")
    try:
        if len(orjson.dumps(definition)) > MAX_DEFINITION_BYTES:
            raise _InvalidDefinition("it is too long")
    except TypeError as error:
        raise _InvalidDefinition("it cannot be written as JSON") from error


def _is_object_schema(schema: object) -> bool:
    """Whether a client can fill it in; that it leaves its type unsaid can be mended."""
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        return False
    properties, required = schema.get("properties", {}), schema.get("required", [])
    return isinstance(properties, dict) and isinstance(required, list)


def _sanitize(list_name: ListName, definition: Message) -> tuple[Mapping[str, Any], int]:
    """The definition as it is passed on, and how much nobody could have seen of it."""
    sanitized, invisible = clean_definition(definition)
    if list_name == "tools":
        schema = sanitized["inputSchema"]
        return (
            sanitized if "type" in schema else {**sanitized, "inputSchema": {"type": "object", **schema}}
        ), invisible
    if list_name == "prompts":
        return sanitized, invisible
    name, more = visible(sanitized["name"])  # of a resource it is text like any other
    return ({**sanitized, "name": name} if more else sanitized), invisible + more


class ExposureRules:
    """Which tools of a server are offered, and what they are called: its preset, and its own rules on top.

    Their `allow` and `deny` are added up, and its own names count first. With an unknown preset nothing is offered:
    what it would have kept out is not known.
    """

    def __init__(self, settings: McpServerConfig, presets: Mapping[str, ToolRules]) -> None:
        name = settings.preset
        preset = presets.get(name) if name is not None else ToolRules()
        self.problem = None if preset else f"there is no preset {name!r} in downstream.presets"
        preset = preset or ToolRules(deny=("*",))
        self._allow = (*preset.allow, *settings.tools.allow)
        self._deny = (*preset.deny, *settings.tools.deny)
        self._rename = {**settings.tools.rename, **_exclude_keys(preset.rename, settings.tools.rename)}

    def allows(self, original: str) -> bool:
        """Whether a tool is offered."""
        if any(fnmatchcase(original, pattern) for pattern in self._deny):
            return False
        return not self._allow or any(fnmatchcase(original, pattern) for pattern in self._allow)

    def name_of(self, original: str) -> str:
        """What the tool is to be called; a `*` in a new name stands for what the `*` of its pattern stood for."""
        if original in self._rename:
            return _fill_wildcard(self._rename[original], original, original)
        for pattern, name in self._rename.items():
            if fnmatchcase(original, pattern):
                return _fill_wildcard(name, pattern, original)
        return original


def _exclude_keys(rename: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    return {pattern: name for pattern, name in rename.items() if pattern not in others}


def _fill_wildcard(name: str, pattern: str, original: str) -> str:
    before, star, after = pattern.partition("*")
    if not star or any(sign in before + after for sign in "*?["):
        return name
    return name.replace("*", original[len(before) : len(original) - len(after)], 1)
