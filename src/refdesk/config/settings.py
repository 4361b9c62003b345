"""Every setting there is, read off the models: its key, default, bounds and sentence.

Places what a file, a variable or a flag gives under its setting, or says which key was meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from refdesk.config.models import NOT_SETTINGS, ApiKey, Config
from refdesk.config.servers import NOT_WRITTEN
from refdesk.config.types import YEAR_SECONDS, Unit, Url
from refdesk.config.wording import Fault, kind_of, quoted, shown, suggestion, unknown


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as people know it."""

    key: str
    kind: str
    default: str
    description: str
    choices: tuple[str, ...] = ()
    bounds: str = ""
    is_secret: bool = False
    is_url: bool = False


@dataclass(frozen=True, slots=True)
class Given:
    """A value, the setting it is for, and where it was given."""

    key: str
    value: Any
    source: str


def settings_of(part: type[BaseModel], prefix: str = "") -> Iterator[Setting]:
    """The settings of a part and of the parts in it."""
    for name, field in part.model_fields.items():
        if inner := _part(field):
            yield from settings_of(inner, f"{prefix}{name}.")
        elif name not in NOT_SETTINGS | NOT_WRITTEN:
            yield _setting(f"{prefix}{name}", field)


def _sections_of(part: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in part.model_fields.items():
        if inner := _part(field):
            yield f"{prefix}{name}"
            yield from _sections_of(inner, f"{prefix}{name}.")


def _part(field: FieldInfo) -> type[BaseModel] | None:
    kind: Any = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _setting(key: str, field: FieldInfo) -> Setting:
    types = tuple(_types(field.annotation))
    return Setting(
        key=key,
        kind=_unit(field.metadata) or _kind(field.annotation, types),
        default=shown(field.get_default(call_default_factory=True)),
        description=field.description or "",
        choices=tuple(value for value in types if isinstance(value, str)),
        bounds=_bounds(field.metadata),
        is_secret=SecretStr in types or ApiKey in types,
        is_url=Url in types,
    )


def _types(annotation: Any) -> Iterator[Any]:
    """The types, and the values of literals, that an annotation is made of."""
    if annotation is type(None) or annotation is ...:
        return
    if not get_args(annotation):
        yield annotation
    for argument in get_args(annotation):
        yield from _types(argument)


def _kind(annotation: Any, types: tuple[Any, ...]) -> str:
    if get_origin(annotation) is tuple:
        return "list"
    if get_origin(annotation) is Mapping or (isinstance(types[0], type) and issubclass(types[0], BaseModel)):
        return "mapping"
    if get_origin(annotation) is Literal:
        return "word"
    names = {bool: "true or false", int: "whole number", float: "number", Path: "path", Url: "URL", SecretStr: "secret"}
    return names.get(types[0], "text")


def _unit(metadata: list[Any]) -> str:
    return next((rule.name for rule in metadata if isinstance(rule, Unit)), "")


def _bounds(metadata: list[Any]) -> str:
    lowest, above, highest = (_limit(metadata, name) for name in ("ge", "gt", "le"))
    if lowest and highest and highest != shown(YEAR_SECONDS):
        return f"{lowest} to {highest}"
    return f"above {above}" if above else f"at least {lowest}" if lowest else ""


def _limit(metadata: list[Any], name: str) -> str:
    limits = (getattr(rule, name, None) for rule in metadata)
    return next((shown(limit) for limit in limits if limit is not None), "")


SETTINGS: dict[str, Setting] = {setting.key: setting for setting in settings_of(Config)}

OTHER_NAMES = {"r2r.service_account.email": "r2r.email", "r2r.service_account.password": "r2r.password"}
"""Keys that are another way to write a setting."""

SERVERS = "mcpServers"
"""The one setting that is a file of its own in other programs, and is read as they read it."""

SECTIONS = frozenset({"", "r2r.service_account", *_sections_of(Config)})

HINTS = {
    "monitoring.prometheus.port": "unknown key; metrics are at /metrics on server.port, so leave it out",
    **dict.fromkeys(
        ("servers", "mcp", "mcp_servers", "context_servers", "mcpservers"),
        "unknown key; MCP servers are set in the file, under mcpServers",
    ),
    "server.reload": "unknown key; the server is started anew to take changes, so leave it out",
}
"""What to say of keys that people bring along from similar servers."""


def place(key: str, value: Any, source: str) -> Iterator[Given | Fault]:
    """What a value given under a key sets: one setting, or each one in a section."""
    target = OTHER_NAMES.get(key, key)
    if target not in SETTINGS and key not in SECTIONS:
        yield Fault(source, quoted(key), HINTS.get(key) or unknown(_nearest(key), _children(key)))
    elif value is None:
        return
    elif target in SETTINGS:
        yield Given(target, value, source)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from place(_joined(key, name), item, source)
    else:
        yield Fault(source, key, f"expected a section with keys of its own, not {kind_of(value)}")


def _joined(parent: str, name: object) -> str:
    child = name if isinstance(name, str) else quoted(name)
    return f"{parent}.{child}" if parent else child


def _children(key: str) -> list[str]:
    """The last words of the keys beside this one; those at the top when its section does not exist."""
    parent = key.rpartition(".")[0]
    parent = parent if parent in SECTIONS else ""
    known = [*SETTINGS, *SECTIONS - {""}]
    return sorted(name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == parent)


def _nearest(key: str) -> str | None:
    parent, _, name = key.rpartition(".")
    if parent in SECTIONS and (sibling := suggestion(name, _children(key))):
        return _joined(parent, sibling)
    last_words = {setting.rpartition(".")[2]: setting for setting in reversed(SETTINGS)}
    if cousin := suggestion(name, list(last_words), cutoff=0.75):
        return last_words[cousin]
    return suggestion(key, [*SETTINGS, *SECTIONS]) if parent not in SECTIONS else None
