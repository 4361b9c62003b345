"""Telemetry that needs an optional extra. Its libraries are only imported if it's enabled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from refdesk.config import OpenTelemetryConfig, SentryConfig
from refdesk.errors import ConfigError
from refdesk.telemetry.log import Report

if TYPE_CHECKING:
    from refdesk.telemetry.otlp import OtlpSpans

CLOSING_SECONDS = 3.0
"""Time limit for sending what is queued at shutdown."""


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
    """Open the error reporter. Yields None if it's disabled."""
    if not settings.enabled:
        yield None
        return
    if settings.dsn is None:
        raise ConfigError(["monitoring.sentry.dsn: not set; it says where monitoring.sentry.enabled sends errors"])
    try:
        from refdesk.telemetry.sentry import open_sentry
    except ImportError as error:
        raise _build_missing_extra("monitoring.sentry.enabled", "sentry") from error
    async with open_sentry(settings.dsn.get_secret_value(), closing_seconds=closing_seconds) as report:
        yield report


def _build_missing_extra(setting: str, extra: str) -> ConfigError:
    return ConfigError([f"{setting}: it needs an extra that is not installed; run: pip install 'refdesk[{extra}]'"])
