"""Protocols of what the inbound layer needs from the application, implemented by `components.Desk`."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from refdesk.calls import Caller, Handler, Listener, LogLevel
from refdesk.documents.conversions import Conversions
from refdesk.telemetry.metrics import Metrics


class ConsoleSubscription(Protocol):
    """A subscription to the console's change events."""

    async def next(self) -> Sequence[tuple[str, Any]] | None:
        """Return the changes since the last call as (name, data) pairs.

        Empty after a quiet interval, None when the subscription has ended.
        """


class ConsoleFeed(Protocol):
    """The event feed of the web console."""

    def open_feed_subscription(self, caller: Caller) -> AbstractContextManager[ConsoleSubscription]: ...

    def drain(self) -> None: ...


class WebConsole(Protocol):
    """The web console, as far as it isn't reached by calls."""

    @property
    def feed(self) -> ConsoleFeed: ...


class Authentication(Protocol):
    """Resolves credentials."""

    @property
    def has_keys(self) -> bool:
        """Whether callers are authenticated, by keys or tokens. Otherwise all callers are trusted alike."""

    def identify(self, credential: str | None) -> Caller | Awaitable[Caller]:
        """Return the caller of a credential. Must be awaited if the token issuer may have to be asked."""


class ScopeRules(Protocol):
    """Knows which scopes tools need."""

    def scopes_for(self, caller: Caller, tool: str) -> tuple[str, ...]:
        """Return the scopes that a caller's access token needs for a tool, empty if scopes aren't what's missing."""


class ToolSchemas(Protocol):
    """Knows the arguments of tools."""

    def has_header_params(self, tool: str) -> bool: ...

    def input_schema(self, tool: str) -> Mapping[str, Any] | None: ...


class ChangeSource(Protocol):
    """Publishes changes of tools, resources and prompts."""

    def listen(self, listener: Listener) -> None: ...


class DownstreamServers(Protocol):
    """The downstream servers, as far as they aren't reached by calls."""

    async def subscribe(self, uri: str, caller: Caller) -> None:
        """Subscribe to a resource. Must be paired with one `unsubscribe`, unless it raises."""

    def unsubscribe(self, uri: str, caller: Caller) -> None: ...

    def set_level(self, level: LogLevel) -> None: ...

    @property
    def uses_roots(self) -> bool:
        """Whether there are servers that may ask for roots."""

    def set_roots(self, client: object, caller: Caller, roots: Sequence[Mapping[str, Any]]) -> None:
        """Set the roots of a client, empty when it leaves."""

    def instructions(self, caller: Caller) -> str: ...


class Services(Protocol):
    """The application as seen by the inbound layer."""

    conversions: Conversions
    metrics: Metrics

    @property
    def handle(self) -> Handler: ...

    @property
    def console(self) -> WebConsole | None: ...

    @property
    def authenticate(self) -> Authentication: ...

    @property
    def permissions(self) -> ScopeRules: ...

    @property
    def dispatcher(self) -> ToolSchemas: ...

    @property
    def registry(self) -> ChangeSource: ...

    @property
    def gateway(self) -> DownstreamServers: ...

    async def measure(self) -> None: ...

    async def readiness(self) -> tuple[bool, dict[str, Any]]: ...
