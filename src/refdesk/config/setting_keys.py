"""The list of settings, derived from the models: key, default, bounds and description.

Also assigns the values of a file, variable or flag to their settings, and suggests a key for unknown ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from refdesk.config.messages import Fault, describe_kind, describe_unknown_key, format_value, quoted, suggest
from refdesk.config.models import ApiKey, Config
from refdesk.config.types import YEAR_SECONDS, Unit, Url


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, as documented."""

    key: str
    kind: str
    default: str
    description: str
    choices: tuple[str, ...] = ()
    bounds: str = ""
    is_secret: bool = False
    is_url: bool = False


@dataclass(frozen=True, slots=True)
class SettingValue:
    """A value, the setting it is for, and its source."""

    key: str
    value: Any
    source: str


def list_settings(model: type[BaseModel], prefix: str = "") -> Iterator[Setting]:
    """Yield the settings of a model and of its nested sections. Fields that are excluded can't be set."""
    for name, field in model.model_fields.items():
        if inner := get_section_model(field):
            yield from list_settings(inner, f"{prefix}{name}.")
        elif not field.exclude:
            yield _build_setting(f"{prefix}{name}", field)


def get_section_model(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a field that is a section, or None."""
    kind: Any = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _build_setting(key: str, field: FieldInfo) -> Setting:
    types = tuple(_flatten_types(field.annotation))
    return Setting(
        key=key,
        kind=next((rule.name for rule in field.metadata if isinstance(rule, Unit)), "")
        or _describe_type(field.annotation, types),
        default=format_value(field.get_default(call_default_factory=True)),
        description=field.description or "",
        choices=tuple(value for value in types if isinstance(value, str)),
        bounds=_describe_bounds(field.metadata),
        is_secret=SecretStr in types or ApiKey in types,
        is_url=Url in types,
    )


def _flatten_types(annotation: Any) -> Iterator[Any]:
    """Yield the types and literal values that an annotation is made of."""
    if annotation is type(None) or annotation is ...:
        return
    if not get_args(annotation):
        yield annotation
    for argument in get_args(annotation):
        yield from _flatten_types(argument)


def _describe_type(annotation: Any, types: tuple[Any, ...]) -> str:
    if get_origin(annotation) is tuple:
        return "list"
    if get_origin(annotation) is Mapping or (isinstance(types[0], type) and issubclass(types[0], BaseModel)):
        return "mapping"
    if get_origin(annotation) is Literal:
        return "word"
    names = {bool: "true or false", int: "whole number", float: "number", Path: "path", Url: "URL", SecretStr: "secret"}
    return names.get(types[0], "text")


def _describe_bounds(metadata: list[Any]) -> str:
    found = ((name, getattr(rule, name, None)) for rule in reversed(metadata) for name in ("ge", "gt", "le"))
    limits = {name: format_value(limit) for name, limit in found if limit is not None}
    if "ge" in limits and "le" in limits and limits["le"] != format_value(YEAR_SECONDS):
        return f"{limits['ge']} to {limits['le']}"
    return f"above {limits['gt']}" if "gt" in limits else f"at least {limits['ge']}" if "ge" in limits else ""


SETTINGS: dict[str, Setting] = {setting.key: setting for setting in list_settings(Config)}

ALIASES = {"r2r.service_account.email": "r2r.email", "r2r.service_account.password": "r2r.password"}
"""Alternative keys for settings."""

SERVERS = "mcpServers"
"""The setting that uses the format of other MCP clients' files."""

SECTIONS = frozenset(
    {"", "r2r.service_account", *(key[:end] for key in SETTINGS for end, sign in enumerate(key) if sign == ".")}
)

HINTS = dict.fromkeys(
    ("servers", "mcp", "mcp_servers", "context_servers", "mcpservers"),
    "unknown key; MCP servers are configured in the file, under mcpServers",
)
"""Messages for unknown keys that are common in similar servers."""


def assign(key: str, value: Any, source: str) -> Iterator[SettingValue | Fault]:
    """Yield the setting that a key's value sets, or each setting in a section."""
    target = ALIASES.get(key, key)
    if target not in SETTINGS and key not in SECTIONS:
        yield Fault(source, quoted(key), HINTS.get(key) or describe_unknown_key(_suggest_key(key), _list_siblings(key)))
    elif value is None:
        return
    elif target in SETTINGS:
        yield SettingValue(target, value, source)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            child = name if isinstance(name, str) else quoted(name)
            yield from assign(f"{key}.{child}" if key else child, item, source)
    else:
        yield Fault(source, key, f"expected a section, not {describe_kind(value)}")


def _list_siblings(key: str) -> list[str]:
    """List the last parts of the keys in the same section; the top-level keys if there is no such section."""
    parent = key.rpartition(".")[0]
    parent = parent if parent in SECTIONS else ""
    known = [*SETTINGS, *SECTIONS - {""}]
    return sorted(name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == parent)


def _suggest_key(key: str) -> str | None:
    parent, _, name = key.rpartition(".")
    if parent in SECTIONS and (sibling := suggest(name, _list_siblings(key))):
        return f"{parent}.{sibling}" if parent else sibling
    last_words = {setting.rpartition(".")[2]: setting for setting in reversed(SETTINGS)}
    if similar := suggest(name, list(last_words), cutoff=0.75):
        return last_words[similar]
    return suggest(key, [*SETTINGS, *SECTIONS]) if parent not in SECTIONS else None


def describe_settings(config: Config) -> list[tuple[str, str, str]]:
    """List every setting with its value and source, secrets masked; MCP servers are listed one by one."""
    values = {key: attrgetter(key)(config) for key in SETTINGS if key != SERVERS or not config.mcpServers}
    rows = [(key, format_value(value), config.sources.get(key, "default")) for key, value in values.items()]
    source = config.sources.get(SERVERS, "default")
    return rows + [(f"{SERVERS}.{name}", format_value(one), source) for name, one in config.mcpServers.items()]
