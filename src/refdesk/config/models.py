"""Configuration models: one small frozen model per section, with each setting's default and description.

The reference page and the configuration template are generated from the descriptions and the class docstrings. A
component receives its own section, never the whole configuration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from platformdirs import user_data_path
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from refdesk.calls import DEFAULT_TENANT
from refdesk.config import types
from refdesk.config.server_model import McpServerConfig, ToolRules
from refdesk.config.wording import format_value

Toolset = Literal["docs", "r2r", "reader", "convert", "downstream"]
TOOLSETS: tuple[Toolset, ...] = get_args(Toolset)


METADATA_FIELDS = frozenset({"sources", "config_file", "warnings"})
"""Fields that aren't settings: the source of each value, the file that was read, and warnings."""


class ConfigSection(BaseModel):
    """Base of all configuration sections."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ServerConfig(ConfigSection):
    """HTTP server: address, access from browsers, limits and timeouts."""

    host: types.Address = Field("127.0.0.1", description="Address to listen on.")
    port: types.Whole = Field(8001, ge=0, le=65535, description="Port to listen on. 0 picks a free port.")
    workers: types.Whole = Field(1, ge=1, le=64, description="Number of server processes.")
    stateless: bool = Field(False, description="Serve MCP revisions up to 2025-11-25 without sessions.")
    allowed_origins: types.Origins = Field(
        (), description="Web origins that browsers may send requests from. `*` allows any."
    )
    allowed_hosts: types.Hosts = Field(
        (), description="Values of the `Host` header to accept besides the address itself. `*` allows any."
    )
    allow_anonymous: bool = Field(False, description="Allow requests from other machines while authentication is off.")
    max_body_bytes: types.Bytes = Field(4_194_304, ge=1, description="Maximum size of a request body.")
    max_inflight_body_bytes: types.Bytes = Field(
        67_108_864, ge=1, description="Maximum total size of the request bodies being read at the same time."
    )
    max_json_depth: types.Whole = Field(
        64, ge=1, le=512, description="Maximum nesting depth of JSON in a request body."
    )
    max_connections: types.Whole = Field(2048, ge=1, description="Maximum number of open connections per process.")
    header_timeout_seconds: types.Seconds = Field(10, description="Time limit for receiving request headers.")
    body_timeout_seconds: types.Seconds = Field(30, description="Time limit for receiving a request body.")
    idle_timeout_seconds: types.Seconds = Field(60, description="Time after which an idle connection is closed.")
    write_timeout_seconds: types.Seconds = Field(
        30, description="Time after which a connection is closed if the client doesn't read the response."
    )
    request_timeout_seconds: types.Seconds = Field(60, description="Time limit for a call.")
    shutdown_grace_seconds: types.SecondsOrNone = Field(
        20, description="Time that running calls get to finish on shutdown."
    )
    max_sessions: types.Whole = Field(1000, ge=1, description="Maximum number of open MCP sessions per process.")
    session_idle_seconds: types.Seconds = Field(1800, description="Time after which an unused session is closed.")
    page_size: types.Whole = Field(100, ge=1, le=1000, description="Number of items per page in lists.")

    @property
    def is_loopback(self) -> bool:
        """Whether the address is reachable only from this machine."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


class ApiKey(ConfigSection):
    """An API key and the identity it authenticates."""

    key: types.Key = Field(None, description="The key.")
    key_sha256: types.Sha256 = Field(None, description="SHA-256 of the key, instead of the key.")
    user: str = Field("default", min_length=1, description="User that the key authenticates.")
    tenant: str = Field(DEFAULT_TENANT, min_length=1, description="Tenant of the user.")
    roles: types.Texts = Field((), description="Roles of the user.")
    toolsets: types.Texts = Field((), description="Toolsets that the key may use. Empty allows all.")
    servers: types.Texts = Field(
        (),
        description=(
            "Downstream MCP servers, or tools of theirs (`server__tool`), that the key may use. Shell patterns are "
            "allowed. Empty allows all."
        ),
    )
    name: str = Field("", description="Display name.")

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        if (self.key is None) == (self.key_sha256 is None):
            raise ValueError("an entry with exactly one of key and key_sha256")
        return self

    @property
    def digest(self) -> str:
        """SHA-256 of the key in hexadecimal, whichever way the key was given."""
        if self.key_sha256 is not None:
            return self.key_sha256.get_secret_value().lower()
        key = self.key.get_secret_value() if self.key else ""
        return hashlib.sha256(key.encode()).hexdigest()


def _parse_keys(value: Any) -> Any:
    keys = types.split_commas(value)
    return [{"key": key, "user": "api-key"} for key in keys] if isinstance(value, str) else value


class OAuthConfig(ConfigSection):
    """Access tokens of an OAuth authorization server, instead of API keys or in addition to them."""

    issuer: types.OptionalWebUrl = Field(
        None, description="URL of the authorization server. Tokens of other issuers are rejected."
    )
    audience: types.OptionalText = Field(
        None, description="Required audience of a token. Defaults to the URL of this server."
    )
    jwks_url: types.OptionalWebUrl = Field(
        None, description="URL of the issuer's public keys. By default, it's read from the issuer's metadata."
    )
    required_scopes: types.Texts = Field((), description="Scopes that every token must have.")
    scope_roles: Mapping[str, types.Texts] = Field(default_factory=dict, description="Roles granted by each scope.")
    user_claim: str = Field("sub", min_length=1, description="Claim that contains the user.")
    tenant_claim: types.OptionalText = Field(
        None, description="Claim that contains the tenant. If unset, all tokens belong to the tenant `default`."
    )


class AuthConfig(ConfigSection):
    """Authentication."""

    required: bool = Field(False, description="Require an API key or access token.")
    keys: Annotated[tuple[ApiKey, ...], BeforeValidator(_parse_keys)] = Field(
        (), description="API keys. A comma-separated text is a list of keys, each for the user `api-key`."
    )
    oauth: OAuthConfig = OAuthConfig()


class R2RConfig(ConfigSection):
    """R2R server that stores and searches documents, instead of the embedded engine."""

    api_url: types.OptionalWebUrl = Field(None, description="URL of the R2R server.")
    email: types.OptionalText = Field(
        None, description="Email address of the service account. Also accepted as `service_account.email`."
    )
    password: types.OptionalSecret = Field(
        None, description="Password of the service account. Also accepted as `service_account.password`."
    )
    api_key: types.OptionalSecret = Field(None, description="R2R API key, instead of a service account.")
    timeout_seconds: types.Seconds = Field(30, description="Time limit for search, list and read requests.")
    rag_timeout_seconds: types.Seconds = Field(120, description="Time limit for generating an answer.")
    ingest_timeout_seconds: types.Seconds = Field(1800, description="Time limit for ingesting a document.")
    max_connections: types.Whole = Field(20, ge=1, le=1000, description="Maximum number of concurrent requests to R2R.")


class RedisConfig(ConfigSection):
    """Redis server, for a cache or rate limits that processes share."""

    url: types.RedisUrl = Field(types.Url("redis://localhost:6379"), description="URL of the Redis server.")
    db: types.Whole = Field(0, ge=0, description="Database number.")
    timeout_seconds: types.Seconds = Field(
        0.1, description="Time limit for a Redis request. After it, the call continues without Redis."
    )


class CacheTtlConfig(ConfigSection):
    """Lifetime of cached results. 0 disables caching."""

    search: types.SecondsOrNone = Field(300, description="Lifetime of search results.")
    rag: types.SecondsOrNone = Field(120, description="Lifetime of generated answers.")
    list: types.SecondsOrNone = Field(60, description="Lifetime of lists.")


class CacheConfig(ConfigSection):
    """Cache of search results, answers and lists."""

    type: Annotated[Literal["memory", "redis"], types.AnyCase] = Field(
        "memory", description="Cache backend: `memory` in each process, or `redis` shared by all of them."
    )
    redis: RedisConfig = RedisConfig()
    ttl: CacheTtlConfig = CacheTtlConfig()
    max_bytes: types.Bytes = Field(67_108_864, ge=0, description="Maximum size of the in-memory cache.")
    max_entries: types.Whole = Field(10_000, ge=0, description="Maximum number of entries in the in-memory cache.")
    stale_seconds: types.SecondsOrNone = Field(
        600, description="Time past its lifetime that an entry is still served if it can't be refreshed."
    )


class RateLimitConfig(ConfigSection):
    """Rate limits per minute, in addition to those of the reader tools. 0 means no limit."""

    type: Annotated[Literal["memory", "redis"], types.AnyCase] = Field(
        "memory",
        description="Counter backend: `memory` in each process, or the Redis of the cache, shared by all of them.",
    )
    calls: types.Whole = Field(0, ge=0, description="Maximum number of calls per minute for a key or user.")
    tokens: types.Whole = Field(0, ge=0, description="Maximum number of tokens per minute returned to a key or user.")
    total_calls: types.Whole = Field(
        0, ge=0, description="Maximum number of calls per minute for all callers together."
    )


class CircuitBreakerConfig(ConfigSection):
    """Circuit breaker around the document engine."""

    failure_threshold: types.Whole = Field(5, ge=1, description="Number of consecutive failures that open the breaker.")
    timeout_seconds: types.Seconds = Field(
        60, description="Time that the breaker stays open before it lets a trial call through."
    )
    success_threshold: types.Whole = Field(
        2, ge=1, description="Number of successful trial calls that close the breaker."
    )
    slow_call_seconds: types.SecondsOrNone = Field(
        0, description="Duration from which a call counts as a failure. 0 disables this."
    )


class LoggingConfig(ConfigSection):
    """Logging."""

    level: Annotated[Literal["debug", "info", "warning", "error"], types.AnyCase] = Field(
        "info", description="Minimum level of logged messages."
    )
    format: Annotated[Literal["auto", "json", "console"], types.AnyCase] = Field(
        "auto", description="Log format. `auto` is `console` on a terminal and `json` otherwise."
    )
    file: types.OptionalPath = Field(None, description="Log file, instead of standard error.")


class PrometheusConfig(ConfigSection):
    """Prometheus metrics."""

    enabled: bool = Field(True, description="Serve metrics at `/metrics` on the server's port.")


class SentryConfig(ConfigSection):
    """Error reports to Sentry."""

    enabled: bool = Field(False, description="Report errors to Sentry.")
    dsn: types.OptionalSecret = Field(None, description="DSN of the Sentry project.")


class OpenTelemetryConfig(ConfigSection):
    """OpenTelemetry traces."""

    enabled: bool = Field(False, description="Send traces to an OpenTelemetry collector.")
    endpoint: types.OptionalWebUrl = Field(
        None,
        description="OTLP/HTTP endpoint of the collector. By default, OpenTelemetry's environment variables apply.",
    )


class MonitoringConfig(ConfigSection):
    """Metrics, traces and error reports."""

    prometheus: PrometheusConfig = PrometheusConfig()
    sentry: SentryConfig = SentryConfig()
    opentelemetry: OpenTelemetryConfig = OpenTelemetryConfig()


class ConsoleConfig(ConfigSection):
    """Web console."""

    enabled: bool = Field(True, description="Serve the web console at `/console/`.")


class ProjectsConfig(ConfigSection):
    """Collections of projects."""

    auto_create_collections: bool = Field(
        True, description="Create a collection when a project without one is first used."
    )
    collection_mapping_file: types.OptionalPath = Field(
        None, description="File that maps projects to collections. By default, it's in the data folder."
    )


class ReaderConfig(ConfigSection):
    """Limits of the reader tools."""

    max_pages_per_call: types.Whole = Field(5, ge=1, description="Maximum number of pages per call.")
    max_text_bytes: types.Bytes = Field(20_000, ge=1, description="Maximum size of the text returned by a call.")
    rate_limit_calls: types.Whole = Field(60, ge=1, description="Maximum number of calls per minute for a document.")
    rate_limit_tokens: types.Whole = Field(
        100_000, ge=1, description="Maximum number of tokens per minute returned from a document."
    )
    retrieval_window_url: types.OptionalWebUrl = Field(
        None, description="URL of a service that returns the chunks around a chunk, instead of the engine."
    )
    retrieval_api_key: types.OptionalSecret = Field(None, description="API key for that service.")
    retrieval_timeout_seconds: types.Seconds = Field(5, description="Time limit for a request to that service.")
    max_window_radius: types.Whole = Field(
        5, ge=0, description="Maximum number of chunks returned on each side of a chunk."
    )
    blocklist_keywords: types.Texts = Field((), description="Words that must not appear in returned text.")
    blocklist_action: Annotated[Literal["refuse", "redact"], types.AnyCase] = Field(
        "refuse", description="What to do with text that contains such a word: `refuse` it, or `redact` the word."
    )


class ConvertConfig(ConfigSection):
    """Document conversion: allowed files and URLs, resources, and retention."""

    local_files: bool = Field(True, description="Allow tools to read files on this machine.")
    roots: types.Paths = Field(
        (),
        description=(
            "Folders that such files must be in. Defaults to the working folder, unless that is a home folder or "
            "the root of the file system."
        ),
    )
    client_roots: Annotated[Literal["local", "all", "none"], types.AnyCase] = Field(
        "local",
        description=(
            "Clients whose MCP roots are allowed as well: `local` for clients on stdio, `all` for any client. With "
            "`all`, clients can read every file that this process can."
        ),
    )
    workers: types.Whole = Field(2, ge=1, le=64, description="Number of concurrent conversions per process.")
    memory_bytes: types.Bytes = Field(1_073_741_824, ge=268_435_456, description="Memory limit of a conversion.")
    keep_seconds: types.Seconds = Field(86_400, description="Retention of a converted document after its last use.")
    keep_bytes: types.Bytes = Field(
        1_073_741_824, ge=1, description="Maximum total size of a tenant's converted documents."
    )
    keep_documents: types.Whole = Field(500, ge=1, description="Maximum number of a tenant's converted documents.")
    fetch_timeout_seconds: types.Seconds = Field(60, description="Time limit for downloading a URL.")
    allow_networks: types.Networks = Field(
        (), description="Private networks that may be fetched from, such as 10.1.0.0/16."
    )
    respect_robots: bool = Field(True, description="Respect the robots.txt of websites.")


class EmbeddingConfig(ConfigSection):
    """Embedding model for semantic search."""

    source: Annotated[Literal["builtin", "onnx", "endpoint", "none"], types.AnyCase] = Field(
        "builtin",
        description=(
            "Embedding model: the built-in one, one in a folder (`onnx`), one behind an OpenAI-compatible API "
            "(`endpoint`), or none, for full-text search only."
        ),
    )
    model_path: types.OptionalPath = Field(None, description="Folder with an ONNX model: `model.onnx` and `vocab.txt`.")
    api_url: types.OptionalWebUrl = Field(None, description="Base URL of the embeddings API, without `/embeddings`.")
    api_key: types.OptionalSecret = Field(None, description="API key.")
    api_model: str = Field("text-embedding-3-small", min_length=1, description="Name of the model.")
    workers: types.Whole = Field(2, ge=1, le=64, description="Number of processes that embed documents.")
    timeout_seconds: types.Seconds = Field(30, description="Time limit for a request to the API.")


class AnswersConfig(ConfigSection):
    """Language model that writes answers. Without one, answers quote sentences of the documents."""

    api_url: types.OptionalWebUrl = Field(
        None, description="Base URL of an OpenAI-compatible API, without `/chat/completions`."
    )
    api_key: types.OptionalSecret = Field(None, description="API key.")
    model: str = Field("gpt-5-mini", min_length=1, description="Name of the model.")
    timeout_seconds: types.Seconds = Field(30, description="Time limit for an answer.")
    sampling: bool = Field(
        True, description="Use the client's model (MCP sampling) if the client supports it and no API is set."
    )


class DownstreamConfig(ConfigSection):
    """Downstream MCP servers."""

    protocol_version: types.OptionalText = Field(
        None, description="MCP revision to request. Defaults to the newest supported one."
    )
    tool_cache_ttl_seconds: types.SecondsOrNone = Field(
        300, description="Lifetime of cached server lists. 0 disables caching."
    )
    separator: Literal["__", ":"] = Field("__", description="Separator between the names of server and tool.")
    prefix: Literal["always", "never"] = Field(
        "always",
        description="When to prefix tools and prompts with their server's name. `never` still does so for duplicates.",
    )
    max_name_length: types.Whole = Field(64, ge=16, le=128, description="Maximum length of a tool or prompt name.")
    tool_search: bool = Field(False, description="List `search_tools` and `call_tool` instead of the servers' tools.")
    max_result_tokens: types.Whole = Field(
        25_000, ge=0, description="Maximum number of tokens forwarded from a server's result at once. 0 means no limit."
    )
    presets: Mapping[str, ToolRules] = Field(
        default_factory=dict, description="Named sets of tool rules that servers can refer to."
    )
    servers_file: types.OptionalPath = Field(
        None, description="File that `refdesk servers` manages. Defaults to `servers.json` in the data folder."
    )


class Config(ConfigSection):
    """The whole configuration, with the source of each value."""

    data_dir: types.OptionalPath = Field(
        None, description="Data folder. Defaults to the user data folder of the platform."
    )
    toolsets: Annotated[tuple[Annotated[Toolset, types.AnyCase], ...], BeforeValidator(types.split_commas)] = Field(
        TOOLSETS, description="Enabled toolsets."
    )
    project: types.OptionalText = Field(
        None, description="Name of the current project, for clients that don't provide MCP roots."
    )
    server: ServerConfig = ServerConfig()
    auth: AuthConfig = AuthConfig()
    r2r: R2RConfig = R2RConfig()
    cache: CacheConfig = CacheConfig()
    rate_limits: RateLimitConfig = RateLimitConfig()
    circuit_breaker: CircuitBreakerConfig = CircuitBreakerConfig()
    logging: LoggingConfig = LoggingConfig()
    monitoring: MonitoringConfig = MonitoringConfig()
    console: ConsoleConfig = ConsoleConfig()
    projects: ProjectsConfig = ProjectsConfig()
    reader: ReaderConfig = ReaderConfig()
    convert: ConvertConfig = ConvertConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    answers: AnswersConfig = AnswersConfig()
    downstream: DownstreamConfig = DownstreamConfig()
    mcpServers: Mapping[str, McpServerConfig] = Field(
        default_factory=dict, description="Downstream MCP servers by name, in the format of other MCP clients."
    )
    sources: Mapping[str, str] = Field(default_factory=dict, repr=False, exclude=True)
    config_file: Path | None = Field(None, repr=False, exclude=True)
    warnings: tuple[str, ...] = Field((), repr=False, exclude=True)

    @property
    def data_path(self) -> Path:
        """The data folder. It may not exist yet."""
        return (self.data_dir or user_data_path("refdesk", appauthor=False)).absolute()

    @property
    def servers_path(self) -> Path:
        """The file managed by `refdesk servers`. It may not exist yet."""
        return (self.downstream.servers_file or self.data_path / "servers.json").absolute()

    @property
    def own_url(self) -> str:
        """URL of `/mcp` for clients on this machine."""
        host = f"[{self.server.host}]" if ":" in self.server.host else self.server.host
        return f"http://{host}:{self.server.port}/mcp"

    @property
    def token_audience(self) -> str:
        """The audience that access tokens must have."""
        return self.auth.oauth.audience or self.own_url

    def describe(self) -> list[tuple[str, str, str]]:
        """List every setting with its value and source, secrets masked; MCP servers are listed one by one."""
        rows = [(key, format_value(value), self.sources.get(key, "default")) for key, value in _iter_leaves(self)]
        source = self.sources.get("mcpServers", "default")
        return rows + [(f"mcpServers.{name}", format_value(server), source) for name, server in self.mcpServers.items()]


def _iter_leaves(section: ConfigSection, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section:
        if isinstance(value, ConfigSection):
            yield from _iter_leaves(value, f"{prefix}{name}.")
        elif name not in METADATA_FIELDS and not (name == "mcpServers" and value):
            yield f"{prefix}{name}", value
