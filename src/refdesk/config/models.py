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
    """Where the server listens, and how much of a stranger's traffic it takes on."""

    host: types.Address = Field("127.0.0.1", description="The address to listen on.")
    port: types.Whole = Field(8001, ge=0, le=65535, description="The port to listen on; 0 takes any free one.")
    workers: types.Whole = Field(1, ge=1, le=64, description="How many processes serve the port.")
    stateless: bool = Field(False, description="Whether sessions of the older MCP revisions are switched off.")
    allowed_origins: types.Origins = Field(
        (), description="The web origins that browsers may call from; `*` allows any."
    )
    allowed_hosts: types.Hosts = Field(
        (), description="The names that a `Host` header may carry besides the address itself; `*` allows any."
    )
    allow_anonymous: bool = Field(
        False, description="Whether other machines may call without a key when authentication is off."
    )
    max_body_bytes: types.Bytes = Field(4_194_304, ge=1, description="The largest request body.")
    max_inflight_body_bytes: types.Bytes = Field(
        67_108_864, ge=1, description="The most that all request bodies being read may hold together."
    )
    max_json_depth: types.Whole = Field(64, ge=1, le=512, description="The deepest nesting in a request body.")
    max_connections: types.Whole = Field(2048, ge=1, description="The most connections open at a time, per process.")
    header_timeout_seconds: types.Seconds = Field(10, description="How long a client may take to send its headers.")
    body_timeout_seconds: types.Seconds = Field(30, description="How long a client may take to send a body.")
    idle_timeout_seconds: types.Seconds = Field(60, description="How long an idle connection is kept alive.")
    write_timeout_seconds: types.Seconds = Field(
        30, description="How long a client may leave an answer unread before it is cut off."
    )
    request_timeout_seconds: types.Seconds = Field(60, description="How long a call may take.")
    shutdown_grace_seconds: types.SecondsOrNone = Field(
        20, description="How long open calls may go on once the server is told to stop."
    )
    max_sessions: types.Whole = Field(1000, ge=1, description="The most MCP sessions open at a time, per process.")
    session_idle_seconds: types.Seconds = Field(1800, description="How long an unused session is kept.")
    page_size: types.Whole = Field(100, ge=1, le=1000, description="The number of items in a page of any list.")

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

    key: types.Key = Field(None, description="The key itself.")
    key_sha256: types.Sha256 = Field(None, description="The SHA-256 of the key, in place of the key.")
    user: str = Field("default", min_length=1, description="The user who calls with this key.")
    tenant: str = Field(DEFAULT_TENANT, min_length=1, description="The tenant whose documents this key opens.")
    roles: types.Texts = Field((), description="The roles that this key gives.")
    toolsets: types.Texts = Field((), description="The toolsets that this key opens; none named opens all.")
    servers: types.Texts = Field(
        (),
        description=(
            "The MCP servers behind this one that this key opens, or single tools of theirs (`server__tool`); patterns "
            "are those of a shell, and none named opens all."
        ),
    )
    name: str = Field("", description="What people call this key.")

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        if (self.key is None) == (self.key_sha256 is None):
            raise ValueError("an entry with exactly one of key and key_sha256")
        return self

    @property
    def digest(self) -> str:
        """SHA-256 of the key in hexadecimal, whichever way the key was given."""
        if self.key_sha256 is not None:
            return self.key_sha256.get_secret_value()
        key = self.key.get_secret_value() if self.key else ""
        return hashlib.sha256(key.encode()).hexdigest()


def _parse_keys(value: Any) -> Any:
    keys = types.split_commas(value)
    return [{"key": key, "user": "api-key"} for key in keys] if isinstance(value, str) else value


class OAuthConfig(ConfigSection):
    """Access tokens of an authorization server, in place of keys or beside them."""

    issuer: types.OptionalWebUrl = Field(None, description="The authorization server; tokens of no other are taken.")
    audience: types.OptionalText = Field(
        None, description="What a token must be meant for; the server's own address when not set."
    )
    jwks_url: types.OptionalWebUrl = Field(
        None, description="Where the issuer's keys are; found through its metadata when not set."
    )
    required_scopes: types.Texts = Field((), description="The scopes that every token must have.")
    scope_roles: Mapping[str, types.Texts] = Field(
        default_factory=dict, description="The roles that a scope gives, by scope."
    )
    user_claim: str = Field("sub", min_length=1, description="The claim that names the user.")
    tenant_claim: types.OptionalText = Field(
        None, description="The claim that names the tenant; all tokens are of the tenant `default` when not set."
    )


class AuthConfig(ConfigSection):
    """Who may call."""

    required: bool = Field(False, description="Whether a call needs a key.")
    keys: Annotated[tuple[ApiKey, ...], BeforeValidator(_parse_keys)] = Field(
        (), description="The keys that are let in; a text of keys set apart by commas makes each the user `api-key`."
    )
    oauth: OAuthConfig = OAuthConfig()


class R2RConfig(ConfigSection):
    """The R2R server, when knowledge is kept there."""

    api_url: types.OptionalWebUrl = Field(None, description="The address of the R2R server.")
    email: types.OptionalText = Field(
        None, description="The service account's e-mail address; `service_account.email` is the same setting."
    )
    password: types.OptionalSecret = Field(
        None, description="The service account's password; `service_account.password` is the same setting."
    )
    api_key: types.OptionalSecret = Field(None, description="An R2R API key, in place of the service account.")
    timeout_seconds: types.Seconds = Field(30, description="How long R2R may take to search, list or read.")
    rag_timeout_seconds: types.Seconds = Field(120, description="How long R2R may take to write an answer.")
    ingest_timeout_seconds: types.Seconds = Field(1800, description="How long R2R may take to bring in a document.")
    max_connections: types.Whole = Field(20, ge=1, le=1000, description="The most requests to R2R at a time.")


class RedisConfig(ConfigSection):
    """The Redis server, when the cache is kept there."""

    url: types.RedisUrl = Field(types.Url("redis://localhost:6379"), description="The address of the Redis server.")
    db: types.Whole = Field(0, ge=0, description="The number of the database in it.")
    timeout_seconds: types.Seconds = Field(0.1, description="How long Redis may take before a call goes on without it.")


class CacheTtlConfig(ConfigSection):
    """How long answers are kept; zero keeps none."""

    search: types.SecondsOrNone = Field(300, description="How many seconds search results are kept.")
    rag: types.SecondsOrNone = Field(120, description="How many seconds written answers are kept.")
    list: types.SecondsOrNone = Field(60, description="How many seconds lists are kept.")


class CacheConfig(ConfigSection):
    """Where answers are kept, and how many."""

    type: Annotated[Literal["memory", "redis"], types.AnyCase] = Field(
        "memory", description="Where the cache is: in each process, or in Redis for all of them."
    )
    redis: RedisConfig = RedisConfig()
    ttl: CacheTtlConfig = CacheTtlConfig()
    max_bytes: types.Bytes = Field(67_108_864, ge=0, description="The most that the cache in memory may hold.")
    max_entries: types.Whole = Field(10_000, ge=0, description="The most answers that the cache in memory may hold.")
    stale_seconds: types.SecondsOrNone = Field(
        600, description="How long past its time an answer is still given when no new one can be had."
    )


class RateLimitConfig(ConfigSection):
    """How much may be asked in a minute, besides what the reader tools allow on one document; zero is no limit."""

    type: Annotated[Literal["memory", "redis"], types.AnyCase] = Field(
        "memory", description="Where calls are counted: in each process, or in the cache's Redis for all of them."
    )
    calls: types.Whole = Field(0, ge=0, description="The most calls a minute with one key, or of one user.")
    tokens: types.Whole = Field(0, ge=0, description="The most tokens a minute returned to one key or user.")
    total_calls: types.Whole = Field(0, ge=0, description="The most calls a minute of all together.")


class CircuitBreakerConfig(ConfigSection):
    """When a failing knowledge engine is left alone."""

    failure_threshold: types.Whole = Field(5, ge=1, description="How many failures in a row open the breaker.")
    timeout_seconds: types.Seconds = Field(60, description="How long it stays open before a trial call.")
    success_threshold: types.Whole = Field(2, ge=1, description="How many trial calls must succeed to close it.")
    slow_call_seconds: types.SecondsOrNone = Field(
        0, description="How long a call may take before it counts as a failure; zero counts none."
    )


class LoggingConfig(ConfigSection):
    """What is logged, and how."""

    level: Annotated[Literal["debug", "info", "warning", "error"], types.AnyCase] = Field(
        "info", description="The least important messages that are logged."
    )
    format: Annotated[Literal["auto", "json", "console"], types.AnyCase] = Field(
        "auto", description="How a line looks; `auto` is `console` on a terminal and `json` elsewhere."
    )
    file: types.OptionalPath = Field(None, description="A file to log to in place of standard error.")


class PrometheusConfig(ConfigSection):
    """Metrics for Prometheus."""

    enabled: bool = Field(True, description="Whether `/metrics` answers, on the server's own port.")


class SentryConfig(ConfigSection):
    """Error reports to Sentry."""

    enabled: bool = Field(False, description="Whether errors are reported to Sentry.")
    dsn: types.OptionalSecret = Field(None, description="The DSN of the Sentry project.")


class OpenTelemetryConfig(ConfigSection):
    """Traces for OpenTelemetry."""

    enabled: bool = Field(False, description="Whether traces are sent to an OpenTelemetry collector.")
    endpoint: types.OptionalWebUrl = Field(
        None, description="The collector's OTLP address over HTTP; OpenTelemetry's own variables when not set."
    )


class MonitoringConfig(ConfigSection):
    """Who is told how the server is doing."""

    prometheus: PrometheusConfig = PrometheusConfig()
    sentry: SentryConfig = SentryConfig()
    opentelemetry: OpenTelemetryConfig = OpenTelemetryConfig()


class ConsoleConfig(ConfigSection):
    """The pages for people, at `/console/`."""

    enabled: bool = Field(True, description="Whether there is a web console, at `/console/`.")


class ProjectsConfig(ConfigSection):
    """Which collection belongs to which project."""

    auto_create_collections: bool = Field(
        True, description="Whether a project without a collection gets one when it is first used."
    )
    collection_mapping_file: types.OptionalPath = Field(
        None, description="The file that remembers each project's collection; it is kept with the data when not set."
    )


class ReaderConfig(ConfigSection):
    """How much of a document the reader tools hand out."""

    max_pages_per_call: types.Whole = Field(5, ge=1, description="The most pages that one call may read.")
    max_text_bytes: types.Bytes = Field(20_000, ge=1, description="The most text that one call returns.")
    rate_limit_calls: types.Whole = Field(60, ge=1, description="The most calls per minute on one document.")
    rate_limit_tokens: types.Whole = Field(
        100_000, ge=1, description="The most tokens per minute returned from one document."
    )
    retrieval_window_url: types.OptionalWebUrl = Field(
        None, description="A service that is asked for the chunks around a chunk, in place of the engine."
    )
    retrieval_api_key: types.OptionalSecret = Field(None, description="The API key for that service.")
    retrieval_timeout_seconds: types.Seconds = Field(5, description="How long that service may take.")
    max_window_radius: types.Whole = Field(5, ge=0, description="The most chunks returned on each side of a chunk.")
    blocklist_keywords: types.Texts = Field((), description="Words that must not appear in the text returned.")
    blocklist_action: Annotated[Literal["refuse", "redact"], types.AnyCase] = Field(
        "refuse", description="Whether text with such a word is refused, or returned without the word."
    )


class ConvertConfig(ConfigSection):
    """What may be converted, with how much effort, and how long it is kept."""

    local_files: bool = Field(True, description="Whether tools may name files on this machine.")
    roots: types.Paths = Field(
        (),
        description=(
            "The folders that such files must be in; when not set, the folder that the server was started in, unless "
            "that is a home folder or the whole disk."
        ),
    )
    client_roots: Annotated[Literal["local", "all", "none"], types.AnyCase] = Field(
        "local",
        description=(
            "Whose MCP roots are open as well: `local` takes those of a client on standard input and output, `all` "
            "those of any client, which then reads whatever this process can."
        ),
    )
    workers: types.Whole = Field(2, ge=1, le=64, description="How many conversions run at a time, per process.")
    memory_bytes: types.Bytes = Field(
        1_073_741_824, ge=268_435_456, description="The most memory that a conversion may use."
    )
    keep_seconds: types.Seconds = Field(86_400, description="How long a converted document is kept after its last use.")
    keep_bytes: types.Bytes = Field(
        1_073_741_824, ge=1, description="The most that a tenant's converted documents hold."
    )
    keep_documents: types.Whole = Field(500, ge=1, description="The most converted documents that a tenant has.")
    fetch_timeout_seconds: types.Seconds = Field(60, description="How long the download of a URL may take.")
    allow_networks: types.Networks = Field(
        (), description="Networks that URLs may lead to although they are not public, such as 10.1.0.0/16."
    )
    respect_robots: bool = Field(True, description="Whether a site's robots.txt is asked before a page is fetched.")


class EmbeddingConfig(ConfigSection):
    """The model that turns text into vectors, so that meaning finds what words do not."""

    source: Annotated[Literal["builtin", "onnx", "endpoint", "none"], types.AnyCase] = Field(
        "builtin",
        description=(
            "Where the model is: in Refdesk itself, in a folder (`onnx`), at an OpenAI-compatible address "
            "(`endpoint`), or nowhere, which leaves full-text search."
        ),
    )
    model_path: types.OptionalPath = Field(
        None, description="The folder of an ONNX model: `model.onnx` and its `vocab.txt`."
    )
    api_url: types.OptionalWebUrl = Field(
        None, description="The address of the embeddings API, up to and without `/embeddings`."
    )
    api_key: types.OptionalSecret = Field(None, description="The key for that API.")
    api_model: str = Field("text-embedding-3-small", min_length=1, description="The model to ask that API for.")
    workers: types.Whole = Field(2, ge=1, le=64, description="How many processes embed documents.")
    timeout_seconds: types.Seconds = Field(30, description="How long that API may take for a request.")


class AnswersConfig(ConfigSection):
    """Who writes answers to questions; without a model, the sentences that answer are quoted."""

    api_url: types.OptionalWebUrl = Field(
        None, description="The address of an OpenAI-compatible API, up to and without `/chat/completions`."
    )
    api_key: types.OptionalSecret = Field(None, description="The key for that API.")
    model: str = Field("gpt-5-mini", min_length=1, description="The model to ask that API for.")
    timeout_seconds: types.Seconds = Field(30, description="How long that API may take for an answer.")
    sampling: bool = Field(
        True, description="Whether the client's own model is asked where it offers that and no API is set."
    )


class DownstreamConfig(ConfigSection):
    """How other MCP servers are talked to."""

    protocol_version: types.OptionalText = Field(
        None, description="The MCP revision to ask for; the newest known one when not set."
    )
    tool_cache_ttl_seconds: types.SecondsOrNone = Field(
        300, description="How long a server's lists are kept; zero asks each time."
    )
    separator: Literal["__", ":"] = Field("__", description="What stands between a server's name and a tool's.")
    prefix: Literal["always", "never"] = Field(
        "always", description="Whether tools and prompts carry their server's name; `never` only where two are alike."
    )
    max_name_length: types.Whole = Field(64, ge=16, le=128, description="The longest name of a tool or prompt.")
    tool_search: bool = Field(
        False, description="Whether `search_tools` and `call_tool` stand for the servers' tools in the list of tools."
    )
    max_result_tokens: types.Whole = Field(
        25_000, ge=0, description="The most of a server's result that is passed on at once; zero is no bound."
    )
    presets: Mapping[str, ToolRules] = Field(
        default_factory=dict, description="Named sets of rules that servers can begin with."
    )
    servers_file: types.OptionalPath = Field(
        None, description="The file that `refdesk servers` keeps; `servers.json` in the data folder when not set."
    )


class Config(ConfigSection):
    """The whole configuration, with the source of each value."""

    data_dir: types.OptionalPath = Field(
        None, description="The folder that the data lives in; the platform's user data folder when not set."
    )
    toolsets: Annotated[tuple[Annotated[Toolset, types.AnyCase], ...], BeforeValidator(types.split_commas)] = Field(
        TOOLSETS, description="The toolsets that are switched on."
    )
    project: types.OptionalText = Field(
        None, description="The current project's name, for clients that do not announce a root."
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
        default_factory=dict, description="The MCP servers behind this one, by name; as in other clients' files."
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
