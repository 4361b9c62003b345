"""What the ways in need from the desk behind them; `app.Desk` is it."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from refdesk.calls import Caller, Handler, Listener, LogLevel
from refdesk.documents.conversions import Conversions
from refdesk.telemetry import Metrics


class Asset(Protocol):
    """A file of the console."""

    @property
    def body(self) -> bytes: ...

    @property
    def media_type(self) -> str: ...

    @property
    def etag(self) -> str: ...


class ConsoleWatch(Protocol):
    """What somebody who looks at the console is told of while they look."""

    async def next(self) -> Sequence[tuple[str, Any]] | None:
        """What has changed since the last time: names and data, none when it was quiet for a while; None at the end."""
        ...


class ConsolePages(Protocol):
    """The web console, as the door sees it: its files, and what is told to those who look at it."""

    def find(self, path: str) -> Asset | None:
        """A file by its path below `/console/`, or the page that shows the view of that name."""
        ...

    def watched_by(self, caller: Caller) -> AbstractContextManager[ConsoleWatch]:
        """Tell a caller of changes; raises RateLimited or Overloaded where too many are told already."""
        ...

    def drain(self) -> None:
        """End every watch."""
        ...


class Services(Protocol):
    """The desk, as the door sees it."""

    handle: Handler
    conversions: Conversions
    metrics: Metrics

    @property
    def console(self) -> ConsolePages | None:
        """The web console, unless it is switched off."""
        ...

    @property
    def has_keys(self) -> bool:
        """Whether callers are told apart here, by keys or tokens: on a desk without, everybody is trusted alike."""
        ...

    def identify(self, credential: str | None) -> Caller | Awaitable[Caller]:
        """The caller behind a credential; to be awaited when the issuer of a token may have to be asked."""
        ...

    def scopes_for(self, caller: Caller, tool: str) -> tuple[str, ...]:
        """The scopes that a caller's access token would have to have to use a tool; none when they do not lack."""
        ...

    def is_plain(self, method: str, target: str) -> bool:
        """Whether a bare request and a bare answer are all that a call needs."""
        ...

    def input_schema(self, tool: str) -> Mapping[str, Any] | None:
        """A tool's input schema."""
        ...

    def listen(self, listener: Listener) -> None:
        """Be told of every change of what is on offer."""
        ...

    async def measure(self) -> None:
        """Set what is measured only when somebody looks."""
        ...

    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether the desk can do its work, and how each part of it is."""
        ...


@runtime_checkable
class Beyond(Protocol):
    """A desk with other servers behind it, which are to know what its clients want of them."""

    async def subscribe(self, uri: str, caller: Caller) -> None:
        """A client wants to be told when this resource changes; followed by one `unsubscribe`, unless it raises."""
        ...

    def unsubscribe(self, uri: str, caller: Caller) -> None:
        """It no longer wants to, or has left."""
        ...

    def set_level(self, level: LogLevel) -> None:
        """A client wants log messages from this level on."""
        ...

    def instructions(self, caller: Caller) -> str:
        """What the servers behind the desk that are open to a caller say of their use; empty for nothing."""
        ...


class NothingBeyond:
    """What a desk that has no servers behind it does about all that."""

    async def subscribe(self, uri: str, caller: Caller) -> None:
        return

    def unsubscribe(self, uri: str, caller: Caller) -> None:
        return

    def set_level(self, level: LogLevel) -> None:
        return

    def instructions(self, caller: Caller) -> str:
        return ""


def beyond(services: Services) -> Beyond:
    """What is behind a desk."""
    return services if isinstance(services, Beyond) else NothingBeyond()
