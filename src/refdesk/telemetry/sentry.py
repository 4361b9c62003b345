"""Error reports to Sentry with the location in the code, but no data.

Only imported if enabled. Uses its own client without the library's integrations, which would collect requests,
arguments and variables. A thread sends the reports from a bounded queue.
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

EVENT_FIELDS = ("event_id", "timestamp", "level", "platform", "release", "environment", "sdk", "tags")
FRAME_FIELDS = ("filename", "function", "module", "lineno", "in_app")
"""Everything that is sent. Paths on disk may name a person, source lines may belong to a program that uses the library,
and error messages may quote an argument. The log has the message, under the same trace id."""


@asynccontextmanager
async def open_sentry(dsn: str, *, closing_seconds: float) -> AsyncIterator[Report]:
    """Open a reporter that sends in the background and flushes at the end."""
    client = _create_client(dsn)

    def report(error: BaseException, trace_id: str) -> None:
        # The library may fail on unusual exceptions, which must not affect the code that logs.
        with capture_internal_exceptions():
            event, hint = event_from_exception(error, client_options=client.options)
            if is_trace_id(trace_id):
                event["tags"] = {"trace_id": trace_id}
            client.capture_event(event, hint)

    try:
        yield report
    finally:
        await run_sync(client.close, closing_seconds, abandon_on_cancel=True)


def _create_client(dsn: str) -> sentry_sdk.Client:
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
            before_send=_scrub,
        )
    except BadDsn:
        # The library's message quotes the DSN, which is a secret.
        raise ConfigError(["monitoring.sentry.dsn: is not a DSN; Sentry's project settings show it"]) from None


def _scrub(event: Event, _: Hint) -> Event:
    """Return a new event with allowed fields only, so that future versions of the library can't add others."""
    fields: dict[str, Any] = dict(event)
    scrubbed: Any = {name: fields[name] for name in EVENT_FIELDS if name in fields}
    exceptions = []
    for value in fields.get("exception", {}).get("values", []):
        frames = (value.get("stacktrace") or {}).get("frames") or []
        kept = [{name: frame[name] for name in FRAME_FIELDS if name in frame} for frame in frames]
        exceptions.append({"type": value.get("type"), "module": value.get("module"), "stacktrace": {"frames": kept}})
    scrubbed["exception"] = {"values": exceptions}
    return scrubbed  # type: ignore[no-any-return]  # their type of it is a TypedDict
