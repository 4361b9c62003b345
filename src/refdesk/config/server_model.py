"""Model of one downstream MCP server in `mcpServers`. Key names follow other MCP clients' files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from refdesk.config import types
from refdesk.config.secrets import find_argument_secrets, find_token, mask_address, mask_arguments, without
from refdesk.config.types import ConfigSection, setting

TransportKind = Literal["stdio", "http", "sse", "websocket"]

_KIND_ALIASES = {"streamable-http": "http", "streamable_http": "http", "streamablehttp": "http", "ws": "websocket"}
"""Transport names used in other clients' files."""

_ResolveAlias = BeforeValidator(lambda value: _KIND_ALIASES.get(value, value) if isinstance(value, str) else value)
_ResolveFlag = BeforeValidator(lambda value: {} if value is True else None if value is False else value)
"""Makes `docs: true` the default search tool, and `docs: false` none."""


class ToolRules(ConfigSection):
    """Filter and rename rules for a server's tools. Patterns use shell syntax, such as `get_*`."""

    allow: types.Texts = setting((), "Tools to expose. Empty exposes all.")
    deny: types.Texts = setting((), "Tools to hide, even if `allow` matches.")
    rename: Mapping[str, str] = setting({}, "New names of tools.")


class DocsSource(ConfigSection):
    """The search tool through which a server takes part in `search_documentation`."""

    tool: str = setting("search", "Name of the search tool.")
    argument: str = setting("query", "Argument that takes the query.")
    arguments: Mapping[str, Any] = setting({}, "Other arguments of the search tool.")
    timeout_seconds: types.Seconds = setting(5, "Time limit for a search.")
    max_results: types.Whole = setting(10, "Maximum number of results.", ge=1, le=100)
    version: types.OptionalText = setting(None, "Version of the documented product, if results don't include it.")


class McpServerConfig(ConfigSection):
    """One MCP server: its transport, timeouts, exposed tools and access rules."""

    type: Annotated[TransportKind | None, _ResolveAlias, types.AnyCase] = setting(
        None, "Transport. By default, it's inferred from `command` or `url`."
    )
    command: types.Program = setting(None, "Program to start, for the stdio transport.")
    args: types.Arguments = setting((), "Arguments of the program.")
    env: types.Variables = setting({}, "Environment variables of the program.")
    cwd: types.OptionalPath = setting(None, "Working folder of the program.")
    url: types.ServerUrl = setting(None, "URL, for the other transports.")
    headers: types.Headers = setting({}, "HTTP headers, such as `Authorization`.")
    enabled: bool = setting(True, "Use this server.")
    session: Literal["pooled", "short"] = setting(
        "pooled", "`pooled` keeps the connection open, `short` opens one for each operation."
    )
    protocol_version: types.OptionalText = setting(
        None, "MCP revision to request. Defaults to `downstream.protocol_version`."
    )
    call_timeout_seconds: types.Seconds = setting(60, "Time limit for a call.")
    capabilities_timeout_seconds: types.Seconds = setting(30, "Time limit for a list request.")
    connect_timeout_seconds: types.Seconds = setting(30, "Time limit for connecting.")
    connect_tries: types.Whole = setting(5, "Number of consecutive connection attempts.", ge=1, le=100)
    breaker_failures: types.Whole = setting(5, "Number of consecutive failures that open the breaker.", ge=1)
    breaker_seconds: types.Seconds = setting(
        30, "Time that the breaker stays open before it lets a trial call through."
    )
    breaker_trials: types.Whole = setting(1, "Number of concurrent trial calls.", ge=1)
    idle_seconds: types.SecondsOrNone = setting(
        600, "Time after which an unused connection is closed. 0 keeps it open."
    )
    cache_ttl_seconds: types.SecondsOrNone | None = setting(
        None, "Lifetime of cached lists. Defaults to `downstream.tool_cache_ttl_seconds`."
    )
    tools: ToolRules = ToolRules()
    preset: types.OptionalText = setting(None, "Name of a rule set in `downstream.presets` that `tools` extends.")
    hold: Literal["changed", "new", "nothing"] = setting(
        "changed", "Tools that need `refdesk servers approve`: changed ones, changed and new ones, or none."
    )
    docs: Annotated[DocsSource | None, _ResolveFlag] = setting(
        None, "Search tool for `search_documentation`. `true` means a tool `search` with the argument `query`."
    )
    max_message_bytes: types.Bytes = setting(16_777_216, "Maximum size of a message from the server.", ge=1024)
    max_result_tokens: types.Whole | None = setting(
        None, "Maximum number of tokens forwarded from a result. Defaults to `downstream.max_result_tokens`.", ge=0
    )
    tenants: types.Texts = setting((), "Tenants that may use the server. Empty allows all.")
    forward_token: bool = setting(False, "Forward the caller's credential to the server, over HTTP.")
    filled_in: tuple[SecretStr, ...] = Field((), exclude=True, repr=False)
    """Secrets from the environment that were expanded into the fields above."""
    problem: str | None = Field(None, exclude=True)
    """Why the server is disabled although it's configured: it lacks a variable or its file of variables."""

    @property
    def kind(self) -> TransportKind:
        """The transport, inferred from `command` and `url` if not set."""
        if self.type is not None:
            return self.type
        if self.url is None:
            return "stdio"
        address = self.url.get_secret_value()
        if address.startswith(("ws://", "wss://")):
            return "websocket"
        return "sse" if address.split("?")[0].rstrip("/").endswith("/sse") else "http"

    @property
    def where(self) -> str:
        """The command line or URL, with secrets masked."""
        if self.url is not None:
            return mask_address(self.url.get_secret_value())
        return " ".join((without(self._secrets, self.command or ""), *mask_arguments(self.args, self._secrets)))

    @property
    def hidden(self) -> Iterator[str]:
        """Secrets embedded in arguments and header values."""
        yield from find_argument_secrets(self.args)
        for value in self.headers.values():
            yield from find_token(value.get_secret_value())

    @property
    def _secrets(self) -> list[str]:
        known = (*self.env.values(), *self.headers.values(), *self.filled_in)
        return [*(secret.get_secret_value() for secret in known), *self.hidden]

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield the fields that were set, with secrets masked."""
        for name, value in super().__repr_args__():
            if name in self.model_fields_set:
                yield name, self._mask_value(str(name), value)

    def _mask_value(self, name: str, value: Any) -> Any:
        match name, value:
            case "args", _:
                return mask_arguments(self.args, self._secrets)
            case "url", types.Url():
                return self.where
            case "docs", DocsSource():
                return value.model_copy(update={"arguments": dict.fromkeys(value.arguments, types.MASK)})
            case (("command" | "cwd"), value) if value is not None:
                return without(self._secrets, str(value))
        return value

    @model_validator(mode="after")
    def _check_transport(self) -> McpServerConfig:
        if (self.command is None) == (self.url is None):
            raise ValueError("a server with either a command or a url")
        if (self.kind == "stdio") != (self.url is None):
            required = "a command" if self.kind == "stdio" else "a url"
            raise ValueError(f"a server of the type {self.kind}, which needs {required}")
        return self
