"""What the ways in need from the desk behind them; `app.Desk` is it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from refdesk.calls import Caller, Handler, Listener
from refdesk.documents.conversions import Conversions
from refdesk.telemetry import Metrics


class Services(Protocol):
    """The desk, as the door sees it."""

    handle: Handler
    has_keys: bool
    """Whether anybody has an API key here: on a desk without any, everybody is trusted alike."""
    conversions: Conversions
    metrics: Metrics

    def identify(self, credential: str | None) -> Caller:
        """The caller behind a credential."""
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

    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether the desk can do its work, and how each part of it is."""
        ...
