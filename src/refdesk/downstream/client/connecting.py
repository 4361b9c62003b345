"""`refdesk.connect`: resolves a target and connects a client to it."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from refdesk.config.environment import ENVIRONMENT, read_environment
from refdesk.config.messages import Fault, quoted
from refdesk.config.models import DownstreamConfig
from refdesk.config.server_entries import read_entries
from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.client.handlers import Handlers, OnChange, OnElicitation, OnLog, OnProgress, OnRoots, OnSampling
from refdesk.downstream.client.mcp_client import Client
from refdesk.downstream.client.messages import Implementation
from refdesk.downstream.connection.connection import Status
from refdesk.downstream.request_meta import CLIENT_INFO
from refdesk.errors import ConfigError

# A library doesn't log until the program configures logging.
logging.getLogger("refdesk").addHandler(logging.NullHandler())


Target = str | Sequence[str] | Mapping[str, Any] | McpServerConfig

_SECTIONS = ("mcpServers", "servers")
_SCHEMES = ("http://", "https://", "ws://", "wss://")
_SOURCE = "connect"


@asynccontextmanager
async def connect(
    target: Target,
    *,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,  # noqa: ASYNC109  per call, and the server is notified when it expires
    list_timeout: float | None = None,
    connect_timeout: float | None = None,
    connect_tries: int | None = None,
    breaker_failures: int | None = None,
    breaker_seconds: float | None = None,
    breaker_trials: int | None = None,
    protocol_version: str | None = None,
    client_info: Implementation | None = None,
    tool_cache_seconds: float | None = None,
    require_tools: bool = True,
    on_sampling: OnSampling | None = None,
    on_elicitation: OnElicitation | None = None,
    on_roots: OnRoots | None = None,
    on_progress: OnProgress | None = None,
    on_log: OnLog | None = None,
    on_change: OnChange | None = None,
    on_status: Callable[[Status], None] | None = None,
    log_level: str = "info",
    environ: Mapping[str, str] = os.environ,
) -> AsyncIterator[Client]:
    """Connect to one MCP server for the duration of the block.

    `target` is a URL, a command (a string or a list of words), servers as in other clients' files, or a configuration.
    Missing options come from the target, or from `MCP_PROTOCOL_VERSION` and `MCP_TOOL_CACHE_TTL` (milliseconds). `env`
    and `headers` are added to those of the target. `client_info` is the name and version that the server sees.

    Raises ConfigError for an invalid target, ServerAway if all connection attempts fail, and ServerLacks if tools are
    required and the server has none.
    """
    overrides: dict[str, Any] = {"env": env, "cwd": cwd, "headers": headers, "connect_tries": connect_tries}
    overrides |= {
        "breaker_failures": breaker_failures,
        "breaker_seconds": breaker_seconds,
        "breaker_trials": breaker_trials,
    }
    seconds = {"call": timeout, "capabilities": list_timeout, "connect": connect_timeout}
    overrides |= {f"{phase}_timeout_seconds": value for phase, value in seconds.items()}
    info = dict(CLIENT_INFO if client_info is None else client_info)
    if not all(isinstance(info.get(key), str) and info[key] for key in ("name", "version")):
        raise ConfigError([f"{_SOURCE}: client_info needs a name and a version, both of them text"])
    server, settings = find_target(target, name, overrides, environ)
    defaults = read_defaults(environ)
    ttl = settings.cache_ttl_seconds if tool_cache_seconds is None else tool_cache_seconds
    client = Client(
        server,
        settings,
        Handlers(on_sampling, on_elicitation, on_roots, on_progress, on_log, on_change),
        protocol_version=protocol_version or defaults.protocol_version,
        tool_cache_seconds=defaults.tool_cache_ttl_seconds if ttl is None else ttl,
        require_tools=require_tools,
        client_info=info,
        on_status=on_status,
    )
    async with client.run(log_level):
        yield client


def find_target(
    target: Target, name: str | None, overrides: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[str, McpServerConfig]:
    """Resolve a target to one server: its name in errors and logs, and its settings. `name` selects among several.

    `overrides` take precedence over the target's own settings unless they are None. Mappings are merged.

    Raises ConfigError with all problems.
    """
    overrides = {key: value for key, value in overrides.items() if value is not None}
    match target:
        case str() if target.lower().startswith(_SCHEMES):
            return _build_target(name, {"url": target, **overrides})
        case str() if "://" in target.split(" ")[0]:
            raise ConfigError([f"{_SOURCE}: a server is reached by http://, https://, ws:// or wss://, or a command"])
        case McpServerConfig():
            found_name, settings = name or _derive_name(target), target
        case Mapping():
            found_name, settings = _select_entry(target, name, environ)
        case _:
            return _build_target(name, {**_parse_command(target), **overrides})
    if not overrides:
        return found_name, settings
    own = {key: getattr(settings, key) for key in settings.model_fields_set}
    merged: dict[str, Any] = {
        key: {**own[key], **overrides[key]} for key in ("env", "headers") if key in own and key in overrides
    }
    return _build_target(found_name, {**own, **overrides, **merged})


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


def _parse_command(command: str | Sequence[str]) -> dict[str, Any]:
    try:
        words = shlex.split(command) if isinstance(command, str) else command
    except ValueError as error:
        raise ConfigError([f"{_SOURCE}: the command cannot be split into words: {error}"]) from None
    if not isinstance(words, Sequence) or not words or not all(isinstance(word, str) for word in words):
        raise ConfigError([f"{_SOURCE}: a command is a program and its arguments, all of them text"])
    return {"command": words[0], "args": tuple(words[1:])}


def _build_target(name: str | None, values: Mapping[str, Any]) -> tuple[str, McpServerConfig]:
    try:
        settings = McpServerConfig.model_validate(dict(values))
    except ValidationError as error:
        raise _to_config_error(error) from None
    return name or _derive_name(settings), settings


def _select_entry(
    target: Mapping[str, Any], name: str | None, environ: Mapping[str, str]
) -> tuple[str, McpServerConfig]:
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
        return str(chosen), read.servers[str(chosen)]
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
    problems = []
    for fault in error.errors(include_url=False, include_input=False):
        parts = (_SOURCE, ".".join(map(str, fault["loc"])), fault["msg"].removeprefix("Value error, "))
        problems.append(": ".join(filter(None, parts)))
    return ConfigError(problems)
