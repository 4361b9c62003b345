"""What the ways in need from the desk behind them; `app.Desk` is it."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from refdesk.calls import Caller, Handler, Listener
from refdesk.documents.conversions import Conversions
from refdesk.telemetry import Metrics


class Services(Protocol):
    """The desk, as the door sees it."""

    handle: Handler
    conversions: Conversions
    metrics: Metrics

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
