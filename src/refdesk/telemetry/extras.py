"""Telemetry that needs an optional extra: OpenTelemetry spans, and error reports to Sentry.

The libraries are only imported if enabled. Error reports have the location in the code, but no data. They use a client
of their own without the library's integrations, which would collect requests, arguments and variables.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio.to_thread import run_sync

from refdesk.config.models import OpenTelemetryConfig, SentryConfig
from refdesk.errors import ConfigError
from refdesk.support.extras import build_install_command
from refdesk.telemetry.log import Report
from refdesk.telemetry.traces import is_trace_id
from refdesk.version import __version__

if TYPE_CHECKING:
    from sentry_sdk import Client
    from sentry_sdk.types import Event, Hint

    from refdesk.telemetry.otlp import OtlpSpans

CLOSING_SECONDS = 3.0
"""Time limit for sending what is queued at shutdown."""

EVENT_FIELDS = ("event_id", "timestamp", "level", "platform", "release", "environment", "sdk", "tags")
FRAME_FIELDS = ("filename", "function", "module", "lineno", "in_app")
"""Everything that is sent. Paths on disk may name a person, source lines may belong to a program that uses the library,
and error messages may quote an argument. The log has the message, under the same trace id."""


@asynccontextmanager
async def open_spans(
    settings: OpenTelemetryConfig, *, closing_seconds: float = CLOSING_SECONDS
) -> AsyncIterator[OtlpSpans | None]:
    """Open the span recorder. Yields None if tracing is disabled."""
    if not settings.enabled:
        yield None
        return
    try:
        from refdesk.telemetry.otlp import open_otlp
    except ImportError as error:
        raise _build_missing_extra("monitoring.opentelemetry.enabled", "otel") from error
    async with open_otlp(settings, closing_seconds=closing_seconds) as spans:
        yield spans


@asynccontextmanager
async def open_reports(
    settings: SentryConfig, *, closing_seconds: float = CLOSING_SECONDS
) -> AsyncIterator[Report | None]:
    """Open an error reporter that sends in the background, from a bounded queue. Yields None if it's disabled."""
    if not settings.enabled:
        yield None
        return
    if settings.dsn is None:
        raise ConfigError(["monitoring.sentry.dsn: not set; it says where monitoring.sentry.enabled sends errors"])
    client = _create_client(settings.dsn.get_secret_value())
    try:
        yield partial(_report, client)
    finally:
        await run_sync(client.close, closing_seconds, abandon_on_cancel=True)


def _build_missing_extra(setting: str, extra: str) -> ConfigError:
    return ConfigError([f"{setting}: it needs an extra that is not installed; run: {build_install_command(extra)}"])


def _create_client(dsn: str) -> Client:
    try:
        import sentry_sdk
        from sentry_sdk.utils import BadDsn
    except ImportError as error:
        raise _build_missing_extra("monitoring.sentry.enabled", "sentry") from error
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


def _report(client: Client, error: BaseException, trace_id: str) -> None:
    from sentry_sdk.utils import capture_internal_exceptions, event_from_exception

    # The library may fail on unusual exceptions, which must not affect the code that logs.
    with capture_internal_exceptions():
        event, hint = event_from_exception(error, client_options=client.options)
        if is_trace_id(trace_id):
            event["tags"] = {"trace_id": trace_id}
        client.capture_event(event, hint)


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
