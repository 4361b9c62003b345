"""Unforeseen errors to Sentry: where in the code they happened, and nothing of what was being worked on.

Imported only where it is switched on. The client is the desk's own, without the library's integrations, which would
look into requests, arguments and variables. Reports wait in a bounded queue for a thread that sends them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import sentry_sdk
from anyio.to_thread import run_sync
from sentry_sdk.utils import BadDsn, capture_internal_exceptions, event_from_exception

from refdesk.errors import ConfigError
from refdesk.telemetry.log import Report
from refdesk.telemetry.traces import is_trace_id
from refdesk.version import __version__

if TYPE_CHECKING:
    from sentry_sdk.types import Event, Hint

OF_AN_EVENT = ("event_id", "timestamp", "level", "platform", "release", "environment", "sdk", "tags")
OF_A_FRAME = ("filename", "function", "module", "lineno", "in_app")
"""All that leaves the house. Not a path on the disk, which may name a person; no lines of source, which may be those of
a program that uses the library; nor an error's words, which may quote an argument: the log has them, under the same
trace id."""


@asynccontextmanager
async def open_sentry(dsn: str, *, closing_seconds: float) -> AsyncIterator[Report]:
    """Reports that are sent in the background; what waits at the end is still sent."""
    client = _client(dsn)

    def report(error: BaseException, trace_id: str) -> None:
        # An error can be so odd that the library stumbles over it; whoever logs it is not to.
        with capture_internal_exceptions():
            event, hint = event_from_exception(error, client_options=client.options)
            if is_trace_id(trace_id):
                event["tags"] = {"trace_id": trace_id}
            client.capture_event(event, hint)

    try:
        yield report
    finally:
        await run_sync(client.close, closing_seconds, abandon_on_cancel=True)


def _client(dsn: str) -> sentry_sdk.Client:
    try:
        return sentry_sdk.Client(
            dsn=dsn,
            release=f"refdesk@{__version__}",
            default_integrations=False,
            auto_enabling_integrations=False,
            auto_session_tracking=False,
            include_local_variables=False,
            include_source_context=False,
            send_client_reports=False,
            max_breadcrumbs=0,
            before_send=_scrubbed,
        )
    except BadDsn:
        # Not with the library's words, which quote it: it is a secret.
        raise ConfigError(["monitoring.sentry.dsn: is not a DSN; Sentry's project settings show it"]) from None


def _scrubbed(event: Event, _: Hint) -> Event:
    """A new event of what may be in one, so that what a later version of the library adds is not."""
    found: dict[str, Any] = dict(event)
    values = found.get("exception", {}).get("values", [])
    kept: Any = {name: found[name] for name in OF_AN_EVENT if name in found}
    kept["exception"] = {"values": [_exception(value) for value in values]}
    return kept  # type: ignore[no-any-return]  # their type of it is a TypedDict


def _exception(value: dict[str, Any]) -> dict[str, Any]:
    frames = (value.get("stacktrace") or {}).get("frames") or []
    kept = [{name: frame[name] for name in OF_A_FRAME if name in frame} for frame in frames]
    return {"type": value.get("type"), "module": value.get("module"), "stacktrace": {"frames": kept}}
