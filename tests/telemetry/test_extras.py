"""What is switched off is not there; what is switched on and not installed is said."""

from __future__ import annotations

import subprocess
import sys

import pytest

from refdesk.config.models import OpenTelemetryConfig, SentryConfig
from refdesk.telemetry.extras import open_reports, open_spans
from tests.waiting import PATIENCE_SECONDS

OPENED = """
import asyncio, sys
import refdesk.app, refdesk.inbound.http_app
from refdesk.config.models import OpenTelemetryConfig, SentryConfig
from refdesk.telemetry.extras import open_reports, open_spans

async def main():
    async with open_spans(OpenTelemetryConfig()) as spans, open_reports(SentryConfig()) as report:
        assert (spans, report) == (None, None)

asyncio.run(main())
heavy = ("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto", "google.protobuf", "sentry_sdk")
print([name for name in sys.modules if name.startswith(heavy)])
"""

NOT_INSTALLED = """
import asyncio, sys
from pydantic import SecretStr
for name in ("opentelemetry.sdk", "sentry_sdk"):
    sys.modules[name] = None  # as if it were not installed
from refdesk.config.models import OpenTelemetryConfig, SentryConfig
from refdesk.errors import ConfigError
from refdesk.telemetry.extras import open_reports, open_spans
from tests.waiting import PATIENCE_SECONDS

async def main():
    dsn = SecretStr("https://key@sentry.example/1")
    for opening in (open_spans(OpenTelemetryConfig(enabled=True)), open_reports(SentryConfig(enabled=True, dsn=dsn))):
        try:
            async with opening:
                print("opened")
        except ConfigError as error:
            print(error.detail)

asyncio.run(main())
"""


def run_program(program: str) -> list[str]:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.slow
def test_nothing_is_imported_that_is_switched_off() -> None:
    assert run_program(OPENED) == ["[]"]


@pytest.mark.slow
def test_what_is_not_installed_is_said_with_the_line_that_installs_it() -> None:
    otel, sentry = run_program(NOT_INSTALLED)
    assert otel.startswith("monitoring.opentelemetry.enabled: ")
    assert otel.endswith("scripts/setup --extra otel")
    assert sentry.startswith("monitoring.sentry.enabled: ")
    assert sentry.endswith("scripts/setup --extra sentry")


@pytest.mark.anyio
async def test_what_is_switched_off_opens_as_nothing() -> None:
    async with open_spans(OpenTelemetryConfig()) as spans, open_reports(SentryConfig()) as report:
        assert spans is None
        assert report is None
