"""Exposure of server lists: valid definitions only, without invisible text, selected and named by rules. No I/O.

Definitions keep unknown fields, and change only in their name and in invisible text. A definition that a strict client
couldn't parse is dropped: it would cost that client the whole list.

Invisible characters are control characters, bidirectional marks and hidden letters. They can carry instructions to a
model that the person who approves a tool doesn't see, or make one word look like another. Values that programs read
(defaults, argument names, `_meta`) are left alone.

A name depends only on the settings, the server and the server's own name for the tool, so that a rule about a name
keeps meaning the same tool. Only on a collision do other servers matter. Names are ASCII of the kind that model APIs
accept, so that no two look alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from itertools import count
from typing import Any, NamedTuple

import orjson

from refdesk.config.models import DownstreamConfig
from refdesk.config.server_model import McpServerConfig, ToolRules
from refdesk.downstream.connection.connection import Connection
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

MAX_DEPTH = 60
"""Nesting levels of a definition: deeper than any real schema, and safe for recursive readers."""

_INVISIBLE = re.compile(
    r"["
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls except line feed and tab
    r"\xad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffc"  # joiners and bidirectional marks
    r"\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # the same for historic scripts and music
    r"\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0"  # blank letters
    r"\ufe00-\ufe0d\U000e0000-\U000e0fff"  # variation selectors and tags, except the two for emoji
    r"\ud800-\udfff"  # surrogates, which can't be encoded
    r"]"
)

_LINE_ENDS = re.compile(r"\r\n?|[\u2028\u2029]")

_TEXT_KEYS = frozenset({"title", "description"})
_DATA_KEYS = frozenset({"_meta", "icons", "default", "const", "enum", "examples"})
_NAME_MAP_KEYS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Keys whose members have arbitrary names: one named `default` is a schema like any other."""

HASH_LENGTH = 8
"""Hexadecimal digits of the suffix that distinguishes colliding names."""

_UNSUPPORTED_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]")
_UNDERSCORES = re.compile(r"__+")

IsReserved = Callable[[str], bool]


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


class InvalidDefinition(ValueError):
    """Why a definition can't be exposed."""


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


# Invisible characters


def visible(text: str) -> tuple[str, int]:
    """Return the text without invisible characters, and the number removed."""
    if text.isascii() and text.isprintable():
        return text, 0
    return _INVISIBLE.subn("", _LINE_ENDS.sub("\n", text))


def remove_invisible(value: Any, depth: int = 0, key: str = "") -> tuple[Any, int]:
    """Remove invisible characters from titles and descriptions, also in schemas. Return the number removed, too.

    Returns the same object if nothing was removed. `key` is the keyword that has the value, unless it's a member with
    an arbitrary name.
    """
    if isinstance(value, str):
        return visible(value) if key in _TEXT_KEYS else (value, 0)
    if key in _DATA_KEYS or not isinstance(value, (dict, list)):
        return value, 0
    if depth > MAX_DEPTH:
        raise InvalidDefinition(f"it has more than {MAX_DEPTH} levels")
    if isinstance(value, list):
        parts = [remove_invisible(part, depth + 1) for part in value]
        is_same = all(part is before for (part, _), before in zip(parts, value, strict=True))
        return (value if is_same else [part for part, _ in parts]), sum(count for _, count in parts)
    is_named = key in _NAME_MAP_KEYS
    members = {name: remove_invisible(member, depth + 1, "" if is_named else name) for name, member in value.items()}
    changed = {name: member for name, (member, _) in members.items() if member is not value[name]}
    return ({**value, **changed} if changed else value), sum(count for _, count in members.values())


# Names


class Claim(NamedTuple):
    """A tool or prompt to be named."""

    server: str
    """The server's name in the settings."""
    id: str
    """The server's id in names, from `assign_server_ids`."""
    original: str
    """The server's own name for it."""
    plain: str
    """The cleaned name, after renaming rules."""

    @property
    def is_changed(self) -> bool:
        """Whether the name differs from the server's own."""
        return self.plain != self.original


def clean_name(name: str) -> str:
    """Replace every character that model APIs don't accept by an underscore."""
    return _UNSUPPORTED_CHARACTERS.sub("_", name) or "_"


def append_hash(name: str, source: str, max_length: int) -> str:
    """Append a hash of the source to the name, and cut the name to the maximum length."""
    suffix = sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_LENGTH]
    return f"{name[: max_length - HASH_LENGTH - 1]}_{suffix}"


def assign_server_ids(servers: Iterable[str], max_length: int) -> dict[str, str]:
    """Return the id of each server, by its name in the settings.

    No id contains `__` or ends with an underscore, so that the first `__` of a name always ends the id. An id takes at
    most half of a name, leaving the rest for the tool.
    """
    servers = tuple(servers)
    plain = {server: _UNDERSCORES.sub("_", clean_name(server)).strip("_") or "server" for server in servers}
    max_id_length = max(max_length // 2 - 1, HASH_LENGTH + 2)
    claimed = Counter(plain.values())
    ids: dict[str, str] = {}
    for server, id in plain.items():
        is_clear = len(id) <= max_id_length and (id == server or claimed[id] == 1)
        ids[server] = id if is_clear else append_hash(id, server, max_id_length)
    return ids


def assign_names(claims: Sequence[Claim], settings: DownstreamConfig, reserved: IsReserved) -> list[str]:
    """Return the names of the claims: unique, not reserved, and within the length limit.

    On a collision, a claim whose name needed no cleaning keeps it. The others get a hash of their own names,
    independent of their order.
    """
    names = [f"{claim.id}{settings.separator}{claim.plain}" for claim in claims]
    if settings.prefix == "never":
        plain = Counter(claim.plain for claim in claims)
        is_clear = {name for name, count in plain.items() if count == 1 and not reserved(name)}
        names = [claim.plain if claim.plain in is_clear else name for claim, name in zip(claims, names, strict=True)]
    wanted, taken = Counter(names), set[str]()
    for index in sorted(range(len(claims)), key=lambda index: claims[index].is_changed):
        claim, name = claims[index], names[index]
        is_alike = claim.is_changed and wanted[name] > 1
        if is_alike or name in taken or len(name) > settings.max_name_length or reserved(name):
            name = _find_free_name(name, claim, settings.max_name_length, lambda name: name in taken or reserved(name))
        names[index] = name
        taken.add(name)
    return names


def _find_free_name(base: str, claim: Claim, max_length: int, is_taken: Callable[[str], bool]) -> str:
    """Return the first free name with a hash. More than one is tried only if hashes collide."""
    source = f"{claim.server}\0{claim.original}"
    tries = (append_hash(base, f"{source}\0{attempt}" if attempt else source, max_length) for attempt in count())
    return next(name for name in tries if not is_taken(name))
