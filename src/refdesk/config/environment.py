"""Environment variables that set a setting: the well-known ones, and `REFDESK__SECTION__KEY`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from refdesk.config.messages import Fault, quoted
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


def read_environment(environ: Mapping[str, str]) -> Iterator[SettingValue | Fault]:
    """Yield the settings given by environment variables: the well-known ones, then `REFDESK__SECTION__KEY`."""
    variables = {name: value for name, value in environ.items() if value.strip()}
    effective = {variable.key: variable for variable in reversed(ENVIRONMENT) if variable.name in variables}
    for variable in effective.values():
        text, source = variables[variable.name], f"environment {variable.name}"
        try:
            yield SettingValue(variable.key, variable.parse(text), source)
        except ValueError as error:
            value = MASK if SETTINGS[variable.key].is_secret else quoted(text)
            yield Fault(source, variable.key, f"{value} is not {error}")
    for name in sorted(name for name in variables if name.upper().startswith(PREFIX)):
        key = name[len(PREFIX) :].lower().replace("__", ".")
        yield from assign(key, variables[name], f"environment {quoted(name)}")
