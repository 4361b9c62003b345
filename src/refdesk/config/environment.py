"""The environment variables that set something: the well-known names, and `REFDESK__SECTION__KEY` for all the rest.

The environment is an argument; an empty variable counts as unset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from refdesk.config.settings import SETTINGS, Given, place
from refdesk.config.types import MASK
from refdesk.config.wording import Fault, quoted

PREFIX = "REFDESK__"


def _as_given(text: str) -> Any:
    return text


def _milliseconds(text: str) -> float:
    try:
        return int(text) / 1000
    except (ValueError, OverflowError):
        raise ValueError("a whole number of milliseconds") from None


def _window(text: str) -> int:
    if not text.strip().isdecimal() or len(text) > 9 or int(text) < 1:
        raise ValueError("a whole number of chunks, 1 or more")
    return (int(text) - 1) // 2


@dataclass(frozen=True, slots=True)
class Variable:
    """A well-known environment variable and the setting it is for."""

    name: str
    key: str
    parse: Callable[[str], Any] = _as_given
    note: str = ""
    """How its value differs from the setting's own."""


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
        _window,
        "the chunks of a whole window: N gives a radius of (N − 1) / 2, rounded down",
    ),
    Variable("MCP_PROXY_BLOCKLIST_KEYWORDS", "reader.blocklist_keywords"),
    Variable("MCP_PROTOCOL_VERSION", "downstream.protocol_version"),
    Variable("MCP_TOOL_CACHE_TTL", "downstream.tool_cache_ttl_seconds", _milliseconds, "in milliseconds"),
)
"""Of several names for one setting, the first that is set wins."""


def read_environment(environ: Mapping[str, str]) -> Iterator[Given | Fault]:
    """What the variables set, weakest first."""
    given = {name: value for name, value in environ.items() if value.strip()}
    strongest = {variable.key: variable for variable in reversed(ENVIRONMENT) if variable.name in given}
    for variable in strongest.values():
        yield _parsed(variable, given[variable.name])
    for name in sorted(name for name in given if name.upper().startswith(PREFIX)):
        key = name[len(PREFIX) :].lower().replace("__", ".")
        yield from place(key, given[name], f"environment {quoted(name)}")


def _parsed(variable: Variable, text: str) -> Given | Fault:
    source = f"environment {variable.name}"
    try:
        return Given(variable.key, variable.parse(text), source)
    except ValueError as error:
        value = MASK if SETTINGS[variable.key].is_secret else quoted(text)
        return Fault(source, variable.key, f"{value} is not {error}")
