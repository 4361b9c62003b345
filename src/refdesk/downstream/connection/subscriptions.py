"""Subscriptions and log level of a server, restored in every new session.

A server with a handshake gets one request for each. A server without one gets a single request that stays open for the
whole session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from refdesk.downstream.session import Session
from refdesk.errors import DependencyError, ServerRefused
from refdesk.resilience.dependency import Pause
from refdesk.support.lru import BoundedDict

logger = logging.getLogger(__name__)

SUBSCRIBE, UNSUBSCRIBE, SET_LEVEL = "resources/subscribe", "resources/unsubscribe", "logging/setLevel"
SUBSCRIPTION_METHODS = frozenset({SUBSCRIBE, UNSUBSCRIBE, SET_LEVEL})

MAX_SUBSCRIPTIONS = 10_000
"""Subscriptions remembered per server. Beyond that the oldest is not restored."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
"""Delay before listening again after the server ended the request."""

LIST_KINDS = ("tools", "prompts", "resources")
"""Lists whose changes a server announces."""


class SubscriptionState:
    """Subscribed resources and log level, independent of the session."""

    def __init__(self) -> None:
        self.level: str | None = None
        self.changed = asyncio.Event()
        self.uris: BoundedDict[str, None] = BoundedDict(MAX_SUBSCRIPTIONS)

    def record(self, method: str, params: Mapping[str, Any]) -> None:
        """Apply a subscribe, unsubscribe or log level request."""
        uri, level = params.get("uri"), params.get("level")
        if method == SET_LEVEL and isinstance(level, str):
            self.level = level
        elif method == SUBSCRIBE and isinstance(uri, str):
            self.uris[uri] = None
        elif method == UNSUBSCRIBE and isinstance(uri, str):
            self.uris.pop(uri, None)
        self.changed.set()


async def restore_subscriptions(
    session: Session, state: SubscriptionState, on_missed: Callable[[str, Mapping[str, Any]], None], pause: Pause
) -> None:
    """Restore the state in a new session. Without a handshake this runs as long as the session.

    `on_missed` receives the notifications that may have been missed while not listening.
    """
    if session.server_profile.is_modern:
        await _listen_until_refused(session, state, on_missed, pause)
        return
    has_level = state.level is not None and session.server_profile.has("logging")
    requests: list[tuple[str, dict[str, Any]]] = [(SET_LEVEL, {"level": state.level})] if has_level else []
    for method, params in [*requests, *((SUBSCRIBE, {"uri": uri}) for uri in state.uris)]:
        try:
            await session.request(method, params)
        except (ServerRefused, DependencyError) as error:
            fields = {"server": session.name, "method": method, "why": error.detail[:200]}
            logger.info("downstream.not_upheld", extra={"fields": fields})
            if isinstance(error, DependencyError):
                return


async def _listen_until_refused(
    session: Session, state: SubscriptionState, on_missed: Callable[[str, Mapping[str, Any]], None], pause: Pause
) -> None:
    seconds = FIRST_PAUSE_SECONDS
    while True:
        state.changed.clear()
        listen_filter: dict[str, Any] = {
            f"{kind}ListChanged": True for kind in LIST_KINDS if session.server_profile.has(f"{kind}.listChanged")
        }
        if state.uris:
            listen_filter["resourceSubscriptions"] = list(state.uris)
        try:
            ended = await _listen_once(session, state, listen_filter)
        except ServerRefused as error:
            fields = {"server": session.name, "why": error.detail[:200]}
            logger.info("downstream.not_listening", extra={"fields": fields})
            return
        if ended:
            await pause(seconds)
            seconds = min(2 * seconds, LONGEST_PAUSE_SECONDS)
        for kind in LIST_KINDS:
            if listen_filter.get(f"{kind}ListChanged"):
                on_missed(f"notifications/{kind}/list_changed", {})


async def _listen_once(session: Session, state: SubscriptionState, listen_filter: Mapping[str, Any]) -> bool:
    """Listen until the server ends the request (True) or the state changes (False)."""
    change = asyncio.ensure_future(state.changed.wait())
    waits: set[asyncio.Future[Any]] = {change}
    if listen_filter:
        waits.add(asyncio.ensure_future(session.request("subscriptions/listen", {"notifications": listen_filter})))
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in done - {change}:
            wait.result()
        return change not in done
    except DependencyError as error:
        logger.debug("downstream.listening_ended", extra={"fields": {"server": session.name, "why": error.detail}})
        return True
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
