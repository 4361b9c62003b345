"""Environment variables that set a setting: the well-known ones, and `REFDESK__SECTION__KEY`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from refdesk.config.messages import Fault, quoted, suggest
from refdesk.config.setting_keys import SETTINGS, SettingValue, assign
from refdesk.config.types import MASK

PREFIX = "REFDESK__"


def _parse_milliseconds(text: str) -> float:
    try:
        return int(text) / 1000
    except (ValueError, OverflowError):
        raise ValueError("a whole number of milliseconds") from None


def _parse_window(text: str) -> int:
    if not text.strip().isdecimal() or len(text) > 9 or int(text) < 1:
        raise ValueError("a whole number of chunks, 1 or more")
    return (int(text) - 1) // 2


@dataclass(frozen=True, slots=True)
class Variable:
    """A well-known environment variable and the setting it maps to."""

    name: str
    key: str
    parse: Callable[[str], Any] = str
    note: str = ""
    """How the variable's value differs from the setting's own."""


ENVIRONMENT = (
    Variable("MCP_PROXY_APP_NAME", "server.name"),
    Variable("MCP_SERVER_HOST", "server.host"),
    Variable("MCP_PROXY_HOST", "server.host"),
    Variable("MCP_SERVER_PORT", "server.port"),
    Variable("MCP_PROXY_PORT", "server.port"),
    Variable("MCP_ALLOWED_ORIGINS", "server.allowed_origins"),
    Variable("MCP_AUTH_REQUIRED", "auth.required"),
    Variable("MCP_API_KEY", "auth.keys"),
    Variable("REFDESK_DATA", "data_dir"),
    Variable("R2R_API_URL", "r2r.api_url"),
    Variable("R2R_SERVICE_EMAIL", "r2r.email"),
    Variable("R2R_SERVICE_PASSWORD", "r2r.password"),
    Variable("R2R_API_KEY", "r2r.api_key"),
    Variable("REDIS_URL", "cache.redis.url"),
    Variable("MCP_LOG_LEVEL", "logging.level"),
    Variable("MCP_PROXY_LOG_LEVEL", "logging.level"),
    Variable("SENTRY_DSN", "monitoring.sentry.dsn"),
    Variable("MCP_PROXY_MAX_PAGES_PER_CALL", "reader.max_pages_per_call"),
    Variable("MCP_PROXY_MAX_TEXT_BYTES", "reader.max_text_bytes"),
    Variable("MCP_PROXY_RATE_LIMIT_CALLS", "reader.rate_limit_calls"),
    Variable("MCP_PROXY_RATE_LIMIT_TOKENS", "reader.rate_limit_tokens"),
    Variable("MCP_PROXY_RETRIEVAL_WINDOW_URL", "reader.retrieval_window_url"),
    Variable("MCP_PROXY_RETRIEVAL_TIMEOUT", "reader.retrieval_timeout_seconds"),
    Variable("MCP_PROXY_MAX_WINDOW_RADIUS", "reader.max_window_radius"),
    Variable("RAG_WINDOW_RADIUS", "reader.max_window_radius"),
    Variable(
        "MCP_PROXY_MAX_CHUNK_WINDOW",
        "reader.max_window_radius",
        _parse_window,
        "the chunks of a whole window: N gives a radius of (N − 1) / 2, rounded down",
    ),
    Variable("MCP_PROXY_BLOCKLIST_KEYWORDS", "reader.blocklist_keywords"),
    Variable("MCP_PROTOCOL_VERSION", "downstream.protocol_version"),
    Variable("MCP_TOOL_CACHE_TTL", "downstream.tool_cache_ttl_seconds", _parse_milliseconds, "in milliseconds"),
)
"""Where several variables map to one setting, the first that is set wins."""


OTHER_VARIABLES = ("REFDESK_CONFIG", "REFDESK_TRACEBACK", "MCP_PROXY_MOCK_MODE")
"""Variables that Refdesk reads and that set no setting."""

_OWN_PREFIX = re.compile("(?:MCP|R2R|REFDESK)_")
_OF_OTHERS = re.compile(
    r"MCP_(?:TOOL_)?TIMEOUT|REFDESK_(?:KEY|URL|TEST_\w+)"
    r"|R2R_(?:POSTGRES_\w+|CONFIG_\w+|PROJECT_NAME|SECRET_KEY|HOST|PORT)"
    r"|\w+_SERVICE_(?:HOST|PORT(?:_\w+)?)|\w+_PORT_\d+_(?:TCP|UDP)(?:_\w+)?"
)
"""Variables of Claude Code, Refdesk's clients and tests, R2R, and of Kubernetes for services of these names."""

_ON = frozenset({"1", "true", "yes", "on", "t", "y"})


def find_unknown_variables(environ: Mapping[str, str], mentioned: str, dotenv: Collection[str] = ()) -> Iterator[Fault]:
    """Yield a warning for each variable that looks like one of Refdesk's, unless the text `mentioned` has its name."""
    known = {name.lower(): name for name in (*(variable.name for variable in ENVIRONMENT), *OTHER_VARIABLES)}
    known |= {name.lower(): name for name in (f"{PREFIX}{key.replace('.', '__').upper()}" for key in SETTINGS)}
    for name in sorted(environ):
        if not _OWN_PREFIX.match(name) or name.upper().startswith(PREFIX) or name in known.values():
            continue
        is_of_others = _OF_OTHERS.fullmatch(name) or (name.endswith("_PORT") and environ[name].startswith("tcp://"))
        if is_of_others or name in mentioned or not environ[name].strip():
            continue
        nearest = suggest(name, list(known), cutoff=0.75)
        hint = f"did you mean {known[nearest]}?" if nearest else "refdesk.yaml and the manual list the settings"
        yield Fault(_describe_source(name, dotenv), "", f"is not a variable of Refdesk; {hint}")


def _describe_source(name: str, dotenv: Collection[str]) -> str:
    return f"{'.env' if name in dotenv else 'environment'} {quoted(name)}"


def read_environment(environ: Mapping[str, str], dotenv: Collection[str] = ()) -> Iterator[SettingValue | Fault]:
    """Yield the settings given by environment variables: the well-known ones, then `REFDESK__SECTION__KEY`.

    `dotenv` are the names of those that come from a `.env` file.
    """
    variables = {name: value for name, value in environ.items() if value.strip()}
    if variables.get("MCP_PROXY_MOCK_MODE", "").strip().lower() in _ON:
        text = "Refdesk has no mock mode; unset it, and add documents to read with `refdesk add`"
        yield Fault(_describe_source("MCP_PROXY_MOCK_MODE", dotenv), "", text)
    effective = {variable.key: variable for variable in reversed(ENVIRONMENT) if variable.name in variables}
    for variable in effective.values():
        text, source = variables[variable.name], _describe_source(variable.name, dotenv)
        try:
            yield SettingValue(variable.key, variable.parse(text), source)
        except ValueError as error:
            value = MASK if SETTINGS[variable.key].is_secret else quoted(text)
            yield Fault(source, variable.key, f"{value} is not {error}")
    for name in sorted(name for name in variables if name.upper().startswith(PREFIX)):
        key = name[len(PREFIX) :].lower().replace("__", ".")
        yield from assign(key, variables[name], _describe_source(name, dotenv))
