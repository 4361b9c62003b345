"""Resolution of a `connect` target to the settings of one server."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from refdesk.config.environment import ENVIRONMENT, read_environment
from refdesk.config.models import DownstreamConfig
from refdesk.config.server_entries import read_entries
from refdesk.config.server_model import McpServerConfig
from refdesk.config.wording import Fault, quoted
from refdesk.errors import ConfigError

Target = str | Sequence[str] | Mapping[str, Any] | McpServerConfig

_SECTIONS = ("mcpServers", "servers")
_SCHEMES = ("http://", "https://", "ws://", "wss://")
_SOURCE = "connect"


@dataclass(frozen=True, slots=True)
class ResolvedTarget:
    """A server's settings, and its name in errors and logs."""

    name: str
    settings: McpServerConfig


def find_target(
    target: Target, name: str | None, overrides: Mapping[str, Any], environ: Mapping[str, str]
) -> ResolvedTarget:
    """Resolve a target to one server. `name` selects among several.

    `overrides` take precedence over the target's own settings unless they are None. Mappings are merged.

    Raises ConfigError with all problems.
    """
    overrides = {key: value for key, value in overrides.items() if value is not None}
    match target:
        case McpServerConfig():
            found = ResolvedTarget(name or _derive_name(target), target)
        case str() if target.lower().startswith(_SCHEMES):
            return _build_target(name, {"url": target, **overrides})
        case str() if "://" in target.split(" ")[0]:
            raise ConfigError([f"{_SOURCE}: a server is reached by http://, https://, ws:// or wss://, or a command"])
        case str():
            return _build_target(name, {**_command_settings(_split_command(target)), **overrides})
        case Mapping():
            found = _select_entry(target, name, environ)
        case _:
            return _build_target(name, {**_command_settings(target), **overrides})
    if not overrides:
        return found
    own = {key: getattr(found.settings, key) for key in found.settings.model_fields_set}
    merged: dict[str, Any] = {
        key: {**own[key], **overrides[key]} for key in ("env", "headers") if key in own and key in overrides
    }
    return _build_target(found.name, {**own, **overrides, **merged})


def read_defaults(environ: Mapping[str, str]) -> DownstreamConfig:
    """Return the settings for all servers from the environment. Other variables are ignored."""
    names = {variable.name for variable in ENVIRONMENT if variable.key.startswith("downstream.")}
    given: dict[str, Any] = {}
    for found in read_environment({name: value for name, value in environ.items() if name in names}):
        if isinstance(found, Fault):
            raise ConfigError([str(found)])
        given[found.key.removeprefix("downstream.")] = found.value
    try:
        return DownstreamConfig.model_validate(given)
    except ValidationError as error:
        raise _to_config_error(error) from None


def _split_command(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ConfigError([f"{_SOURCE}: the command cannot be split into words: {error}"]) from None


def _command_settings(words: Sequence[str]) -> dict[str, Any]:
    if not isinstance(words, Sequence) or not words or not all(isinstance(word, str) for word in words):
        raise ConfigError([f"{_SOURCE}: a command is a program and its arguments, all of them text"])
    return {"command": words[0], "args": tuple(words[1:])}


def _build_target(name: str | None, values: Mapping[str, Any]) -> ResolvedTarget:
    try:
        settings = McpServerConfig.model_validate(dict(values))
    except ValidationError as error:
        raise _to_config_error(error) from None
    return ResolvedTarget(name or _derive_name(settings), settings)


def _select_entry(target: Mapping[str, Any], name: str | None, environ: Mapping[str, str]) -> ResolvedTarget:
    """Select a server from `{"mcpServers": {name: entry}}`, from the entries alone, or from one unnamed entry."""
    entries: Any = next((target[section] for section in _SECTIONS if section in target), target)
    if isinstance(entries, Mapping) and ("command" in entries or "url" in entries):
        entries = {name or "server": entries}
    read = read_entries(entries, environ, source=_SOURCE, folder=Path.cwd())
    chosen = name or (next(iter(entries)) if isinstance(entries, Mapping) and len(entries) == 1 else None)
    if chosen is None and not read.faults:
        names = ", ".join(quoted(each) for each in entries) or "none"
        raise ConfigError([f"{_SOURCE}: say by `name` which of the servers is meant; there are {names}"])
    if chosen in read.servers:
        return ResolvedTarget(str(chosen), read.servers[str(chosen)])
    faults = read.broken.get(str(chosen), read.faults)
    missing = f"{_SOURCE}: there is no server {quoted(chosen)}"
    raise ConfigError([str(fault) for fault in faults] or [missing])


def _derive_name(settings: McpServerConfig) -> str:
    """Derive the name of an unnamed server from its host or program."""
    if settings.url is not None:
        return urlsplit(settings.url.get_secret_value()).hostname or "server"
    return PurePath(settings.command or "").name or "server"


def _to_config_error(error: ValidationError) -> ConfigError:
    """Convert validation errors, without values because they may be secrets."""
    found = error.errors(include_url=False, include_input=False)
    return ConfigError(
        [
            ": ".join(
                filter(None, (_SOURCE, ".".join(map(str, fault["loc"])), fault["msg"].removeprefix("Value error, ")))
            )
            for fault in found
        ]
    )
