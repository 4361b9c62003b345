"""Protocols of what the inbound layer needs from the application, implemented by `app.Desk`."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from refdesk.calls import Caller, Handler, Listener, LogLevel
from refdesk.documents.conversions import Conversions
from refdesk.telemetry import Metrics


class ConsoleAsset(Protocol):
    """A static file of the console."""

    @property
    def body(self) -> bytes: ...

    @property
    def media_type(self) -> str: ...

    @property
    def etag(self) -> str: ...


class ConsoleSubscription(Protocol):
    """A subscription to the console's change events."""

    async def next(self) -> Sequence[tuple[str, Any]] | None:
        """Return the changes since the last call as (name, data) pairs.

        Empty after a quiet interval, None when the subscription has ended.
        """
        ...


class ConsolePages(Protocol):
    """The web console as seen by its HTTP routes."""

    def find(self, path: str) -> ConsoleAsset | None:
        """Return the static file at a path below `/console/`, or the page of a view."""
        ...

    def open_feed_subscription(self, caller: Caller) -> AbstractContextManager[ConsoleSubscription]:
        """Subscribe a caller to change events. Raises RateLimited or Overloaded if there are too many subscriptions."""
        ...

    def drain(self) -> None:
        """End all subscriptions."""
        ...


class Services(Protocol):
    """The application as seen by the inbound layer."""

    handle: Handler
    conversions: Conversions
    metrics: Metrics

    @property
    def console(self) -> ConsolePages | None:
        """The web console, or None if it's disabled."""
        ...

    @property
    def has_keys(self) -> bool:
        """Whether callers are authenticated, by keys or tokens. Otherwise all callers are trusted alike."""
        ...

    def identify(self, credential: str | None) -> Caller | Awaitable[Caller]:
        """Return the caller of a credential. Must be awaited if the token issuer may have to be asked."""
        ...

    def scopes_for(self, caller: Caller, tool: str) -> tuple[str, ...]:
        """Return the scopes that a caller's access token needs for a tool, empty if scopes aren't what's missing."""
        ...

    def has_header_params(self, tool: str) -> bool:
        """Return whether a tool takes arguments from HTTP headers."""
        ...

    def input_schema(self, tool: str) -> Mapping[str, Any] | None:
        """Return a tool's input schema."""
        ...

    def listen(self, listener: Listener) -> None:
        """Call `listener` for every change of tools, resources and prompts."""
        ...

    async def measure(self) -> None:
        """Update the metrics that are only measured on request."""
        ...

    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the server is ready, and the state of each component."""
        ...

    async def subscribe(self, uri: str, caller: Caller) -> None:
        """Subscribe to a downstream resource. Must be paired with one `unsubscribe`, unless it raises."""
        ...

    def unsubscribe(self, uri: str, caller: Caller) -> None:
        """Cancel a subscription to a downstream resource."""
        ...

    def set_level(self, level: LogLevel) -> None:
        """Request log messages of downstream servers from this level on."""
        ...

    def instructions(self, caller: Caller) -> str:
        """Return the instructions of the downstream servers available to a caller."""
        ...
