"""Configuration models: one small frozen model per section, with each setting's default and description.

The reference page and the configuration template are generated from the descriptions and the class docstrings. A
component receives its own section, never the whole configuration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from platformdirs import user_data_path
from pydantic import BeforeValidator, Field, model_validator

from refdesk.calls import DEFAULT_TENANT
from refdesk.config import types
from refdesk.config.server_model import McpServerConfig, ToolRules
from refdesk.config.types import ConfigSection, setting

Toolset = Literal["docs", "r2r", "reader", "convert", "downstream"]
TOOLSETS: tuple[Toolset, ...] = get_args(Toolset)


class ServerConfig(ConfigSection):
    """HTTP server: address, access from browsers, limits and timeouts."""

    name: str = setting("Refdesk", "Name of the server that clients display.", min_length=1)
    host: types.Address = setting("127.0.0.1", "Address to listen on.")
    port: types.Whole = setting(8001, "Port to listen on. 0 picks a free port.", ge=0, le=65535)
    workers: types.Whole = setting(1, "Number of server processes.", ge=1, le=64)
    reload: bool = setting(False, "Ignored. Accepted from configurations of similar servers.")
    stateless: bool = setting(False, "Serve MCP revisions up to 2025-11-25 without sessions.")
    allowed_origins: types.Origins = setting((), "Web origins that browsers may send requests from. `*` allows any.")
    allowed_hosts: types.Hosts = setting(
        (), "Values of the `Host` header to accept besides the address itself. `*` allows any."
    )
    allow_anonymous: bool = setting(False, "Allow requests from other machines while authentication is off.")
    max_body_bytes: types.Bytes = setting(4_194_304, "Maximum size of a request body.", ge=1)
    max_inflight_body_bytes: types.Bytes = setting(
        67_108_864, "Maximum total size of the request bodies being read at the same time.", ge=1
    )
    max_json_depth: types.Whole = setting(64, "Maximum nesting depth of JSON in a request body.", ge=1, le=512)
    max_connections: types.Whole = setting(2048, "Maximum number of open connections per process.", ge=1)
    header_timeout_seconds: types.Seconds = setting(10, "Time limit for receiving request headers.")
    body_timeout_seconds: types.Seconds = setting(30, "Time limit for receiving a request body.")
    idle_timeout_seconds: types.Seconds = setting(60, "Time after which an idle connection is closed.")
    write_timeout_seconds: types.Seconds = setting(
        30, "Time after which a connection is closed if the client doesn't read the response."
    )
    request_timeout_seconds: types.Seconds = setting(60, "Time limit for a call.")
    shutdown_grace_seconds: types.SecondsOrNone = setting(20, "Time that running calls get to finish on shutdown.")
    max_sessions: types.Whole = setting(1000, "Maximum number of open MCP sessions per process.", ge=1)
    session_idle_seconds: types.Seconds = setting(1800, "Time after which an unused session is closed.")
    page_size: types.Whole = setting(100, "Number of items per page in lists.", ge=1, le=1000)

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

    key: types.Key = setting(None, "The key.")
    key_sha256: types.Sha256 = setting(None, "SHA-256 of the key, instead of the key.")
    user: str = setting("default", "User that the key authenticates.", min_length=1)
    tenant: str = setting(DEFAULT_TENANT, "Tenant of the user.", min_length=1)
    roles: types.Texts = setting((), "Roles of the user.")
    toolsets: types.Texts = setting((), "Toolsets that the key may use. Empty allows all.")
    servers: types.Texts = setting(
        (),
        "Downstream MCP servers, or tools of theirs (`server__tool`), that the key may use. Shell patterns are "
        "allowed. Empty allows all.",
    )
    name: str = setting("", "Display name.")

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

    issuer: types.OptionalWebUrl = setting(
        None, "URL of the authorization server. Tokens of other issuers are rejected."
    )
    audience: types.OptionalText = setting(None, "Required audience of a token. Defaults to the URL of this server.")
    jwks_url: types.OptionalWebUrl = setting(
        None, "URL of the issuer's public keys. By default, it's read from the issuer's metadata."
    )
    required_scopes: types.Texts = setting((), "Scopes that every token must have.")
    scope_roles: Mapping[str, types.Texts] = setting({}, "Roles granted by each scope.")
    user_claim: str = setting("sub", "Claim that contains the user.", min_length=1)
    tenant_claim: types.OptionalText = setting(
        None, "Claim that contains the tenant. If unset, all tokens belong to the tenant `default`."
    )


class AuthConfig(ConfigSection):
    """Authentication."""

    required: bool = setting(False, "Require an API key or access token.")
    keys: Annotated[tuple[ApiKey, ...], BeforeValidator(_parse_keys)] = setting(
        (), "API keys. A comma-separated text is a list of keys, each for the user `api-key`."
    )
    oauth: OAuthConfig = OAuthConfig()


class R2RConfig(ConfigSection):
    """R2R server that stores and searches documents, instead of the embedded engine."""

    api_url: types.OptionalWebUrl = setting(None, "URL of the R2R server.")
    email: types.OptionalText = setting(
        None, "Email address of the service account. Also accepted as `service_account.email`."
    )
    password: types.OptionalSecret = setting(
        None, "Password of the service account. Also accepted as `service_account.password`."
    )
    api_key: types.OptionalSecret = setting(None, "R2R API key, instead of a service account.")
    timeout_seconds: types.Seconds = setting(30, "Time limit for search, list and read requests.")
    rag_timeout_seconds: types.Seconds = setting(120, "Time limit for generating an answer.")
    ingest_timeout_seconds: types.Seconds = setting(1800, "Time limit for ingesting a document.")
    max_connections: types.Whole = setting(20, "Maximum number of concurrent requests to R2R.", ge=1, le=1000)


class RedisConfig(ConfigSection):
    """Redis server, for a cache or rate limits that processes share."""

    url: types.RedisUrl = setting(types.Url("redis://localhost:6379"), "URL of the Redis server.")
    db: types.Whole = setting(0, "Database number.", ge=0)
    timeout_seconds: types.Seconds = setting(
        0.1, "Time limit for a Redis request. After it, the call continues without Redis."
    )


class CacheTtlConfig(ConfigSection):
    """Lifetime of cached results. 0 disables caching."""

    search: types.SecondsOrNone = setting(300, "Lifetime of search results.")
    rag: types.SecondsOrNone = setting(120, "Lifetime of generated answers.")
    list: types.SecondsOrNone = setting(60, "Lifetime of lists.")


class CacheConfig(ConfigSection):
    """Cache of search results, answers and lists."""

    type: Annotated[Literal["memory", "redis"], types.AnyCase] = setting(
        "memory", "Cache backend: `memory` in each process, or `redis` shared by all of them."
    )
    redis: RedisConfig = RedisConfig()
    ttl: CacheTtlConfig = CacheTtlConfig()
    max_bytes: types.Bytes = setting(67_108_864, "Maximum size of the in-memory cache.", ge=0)
    max_entries: types.Whole = setting(10_000, "Maximum number of entries in the in-memory cache.", ge=0)
    stale_seconds: types.SecondsOrNone = setting(
        600, "Time past its lifetime that an entry is still served if it can't be refreshed."
    )


class RateLimitConfig(ConfigSection):
    """Rate limits per minute, in addition to those of the reader tools. 0 means no limit."""

    type: Annotated[Literal["memory", "redis"], types.AnyCase] = setting(
        "memory", "Counter backend: `memory` in each process, or the Redis of the cache, shared by all of them."
    )
    calls: types.Whole = setting(0, "Maximum number of calls per minute for a key or user.", ge=0)
    tokens: types.Whole = setting(0, "Maximum number of tokens per minute returned to a key or user.", ge=0)
    total_calls: types.Whole = setting(0, "Maximum number of calls per minute for all callers together.", ge=0)


class CircuitBreakerConfig(ConfigSection):
    """Circuit breaker around the document engine."""

    failure_threshold: types.Whole = setting(5, "Number of consecutive failures that open the breaker.", ge=1)
    timeout_seconds: types.Seconds = setting(
        60, "Time that the breaker stays open before it lets a trial call through."
    )
    success_threshold: types.Whole = setting(2, "Number of successful trial calls that close the breaker.", ge=1)
    slow_call_seconds: types.SecondsOrNone = setting(
        0, "Duration from which a call counts as a failure. 0 disables this."
    )


class LoggingConfig(ConfigSection):
    """Logging."""

    level: Annotated[Literal["debug", "info", "warning", "error"], types.AnyCase] = setting(
        "info", "Minimum level of logged messages."
    )
    format: Annotated[Literal["auto", "json", "console"], types.AnyCase] = setting(
        "auto", "Log format. `auto` is `console` on a terminal and `json` otherwise."
    )
    file: types.OptionalPath = setting(None, "Log file, instead of standard error.")


class PrometheusConfig(ConfigSection):
    """Prometheus metrics."""

    enabled: bool = setting(True, "Serve metrics at `/metrics` on the server's port.")
    port: types.OptionalPort = setting(
        None, "Additional port that serves `/metrics` without a key, and nothing else.", ge=1, le=65535
    )


class SentryConfig(ConfigSection):
    """Error reports to Sentry."""

    enabled: bool = setting(False, "Report errors to Sentry.")
    dsn: types.OptionalSecret = setting(None, "DSN of the Sentry project.")


class OpenTelemetryConfig(ConfigSection):
    """OpenTelemetry traces."""

    enabled: bool = setting(False, "Send traces to an OpenTelemetry collector.")
    endpoint: types.OptionalWebUrl = setting(
        None, "OTLP/HTTP endpoint of the collector. By default, OpenTelemetry's environment variables apply."
    )


class MonitoringConfig(ConfigSection):
    """Metrics, traces and error reports."""

    prometheus: PrometheusConfig = PrometheusConfig()
    sentry: SentryConfig = SentryConfig()
    opentelemetry: OpenTelemetryConfig = OpenTelemetryConfig()


class ConsoleConfig(ConfigSection):
    """Web console."""

    enabled: bool = setting(True, "Serve the web console at `/console/`.")


class ProjectsConfig(ConfigSection):
    """Collections of projects."""

    auto_create_collections: bool = setting(True, "Create a collection when a project without one is first used.")
    collection_mapping_file: types.OptionalPath = setting(
        None, "File that maps projects to collections. By default, it's in the data folder."
    )


class ReaderConfig(ConfigSection):
    """Limits of the reader tools."""

    max_pages_per_call: types.Whole = setting(5, "Maximum number of pages per call.", ge=1)
    max_text_bytes: types.Bytes = setting(20_000, "Maximum size of the text returned by a call.", ge=1)
    rate_limit_calls: types.Whole = setting(60, "Maximum number of calls per minute for a document.", ge=1)
    rate_limit_tokens: types.Whole = setting(
        100_000, "Maximum number of tokens per minute returned from a document.", ge=1
    )
    retrieval_window_url: types.OptionalWebUrl = setting(
        None, "URL of a service that returns the chunks around a chunk, instead of the engine."
    )
    retrieval_api_key: types.OptionalSecret = setting(None, "API key for that service.")
    retrieval_timeout_seconds: types.Seconds = setting(5, "Time limit for a request to that service.")
    max_window_radius: types.Whole = setting(5, "Maximum number of chunks returned on each side of a chunk.", ge=0)
    blocklist_keywords: types.Texts = setting((), "Words that must not appear in any returned text.")
    blocklist_action: Annotated[Literal["refuse", "redact"], types.AnyCase] = setting(
        "refuse", "What to do with text that contains such a word: `refuse` it, or `redact` the word."
    )


class ConvertConfig(ConfigSection):
    """Document conversion: allowed files and URLs, resources, and retention."""

    local_files: bool = setting(True, "Allow tools to read files on this machine.")
    roots: types.Paths = setting(
        (),
        "Folders that such files must be in. Defaults to the working folder, unless that is a home folder or "
        "the root of the file system.",
    )
    client_roots: Annotated[Literal["local", "all", "none"], types.AnyCase] = setting(
        "local",
        "Clients whose MCP roots are allowed as well: `local` for clients on stdio, `all` for any client. With "
        "`all`, clients can read every file that this process can.",
    )
    workers: types.Whole = setting(2, "Number of concurrent conversions per process.", ge=1, le=64)
    memory_bytes: types.Bytes = setting(1_073_741_824, "Memory limit of a conversion.", ge=268_435_456)
    keep_seconds: types.Seconds = setting(86_400, "Retention of a converted document after its last use.")
    keep_bytes: types.Bytes = setting(1_073_741_824, "Maximum total size of a tenant's converted documents.", ge=1)
    keep_documents: types.Whole = setting(500, "Maximum number of a tenant's converted documents.", ge=1)
    fetch_timeout_seconds: types.Seconds = setting(60, "Time limit for downloading a URL.")
    allow_networks: types.Networks = setting((), "Private networks that may be fetched from, such as 10.1.0.0/16.")
    respect_robots: bool = setting(True, "Respect the robots.txt of websites.")


class EmbeddingConfig(ConfigSection):
    """Embedding model for semantic search."""

    source: Annotated[Literal["builtin", "onnx", "endpoint", "none"], types.AnyCase] = setting(
        "builtin",
        "Embedding model: the built-in one, one in a folder (`onnx`), one behind an OpenAI-compatible API "
        "(`endpoint`), or none, for full-text search only.",
    )
    model_path: types.OptionalPath = setting(None, "Folder with an ONNX model: `model.onnx` and `vocab.txt`.")
    api_url: types.OptionalWebUrl = setting(None, "Base URL of the embeddings API, without `/embeddings`.")
    api_key: types.OptionalSecret = setting(None, "API key.")
    api_model: str = setting("text-embedding-3-small", "Name of the model.", min_length=1)
    workers: types.Whole = setting(2, "Number of processes that embed documents.", ge=1, le=64)
    timeout_seconds: types.Seconds = setting(30, "Time limit for a request to the API.")


class AnswersConfig(ConfigSection):
    """Language model that writes answers. Without one, answers quote sentences of the documents."""

    api_url: types.OptionalWebUrl = setting(None, "Base URL of an OpenAI-compatible API, without `/chat/completions`.")
    api_key: types.OptionalSecret = setting(None, "API key.")
    model: str = setting("gpt-5-mini", "Name of the model.", min_length=1)
    timeout_seconds: types.Seconds = setting(30, "Time limit for an answer.")
    sampling: bool = setting(True, "Use the client's model (MCP sampling) if the client supports it and no API is set.")


class DownstreamConfig(ConfigSection):
    """Downstream MCP servers."""

    protocol_version: types.OptionalText = setting(
        None, "MCP revision to request. Defaults to the newest supported one."
    )
    tool_cache_ttl_seconds: types.SecondsOrNone = setting(300, "Lifetime of cached server lists. 0 disables caching.")
    separator: Literal["__", ":"] = setting("__", "Separator between the names of server and tool.")
    prefix: Literal["always", "never"] = setting(
        "always", "When to prefix tools and prompts with their server's name. `never` still does so for duplicates."
    )
    max_name_length: types.Whole = setting(64, "Maximum length of a tool or prompt name.", ge=16, le=128)
    tool_search: bool = setting(False, "List `search_tools` and `call_tool` instead of the servers' tools.")
    max_result_tokens: types.Whole = setting(
        25_000, "Maximum number of tokens forwarded from a server's result at once. 0 means no limit.", ge=0
    )
    presets: Mapping[str, ToolRules] = setting({}, "Named sets of tool rules that servers can refer to.")
    servers_file: types.OptionalPath = setting(
        None, "File that `refdesk servers` manages. Defaults to `servers.json` in the data folder."
    )


class Config(ConfigSection):
    """The whole configuration, with the source of each value."""

    data_dir: types.OptionalPath = setting(None, "Data folder. Defaults to the user data folder of the platform.")
    toolsets: Annotated[tuple[Annotated[Toolset, types.AnyCase], ...], BeforeValidator(types.split_list)] = setting(
        TOOLSETS, "Enabled toolsets."
    )
    project: types.OptionalText = setting(
        None, "Name of the current project, for clients that don't provide MCP roots."
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
    mcpServers: Mapping[str, McpServerConfig] = setting(
        {}, "Downstream MCP servers by name, in the format of other MCP clients."
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
