"""Reports of unforeseen errors, as a Sentry on loopback gets them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from refdesk.config.models import SentryConfig
from refdesk.errors import ConfigError, EngineError
from refdesk.telemetry.extras import open_reports
from refdesk.telemetry.log import Log
from tests.telemetry.receiver import Receiver, receiving
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

PUBLIC_KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def sentry() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def reporting_to(sentry: Receiver) -> SentryConfig:
    return SentryConfig(enabled=True, dsn=SecretStr(sentry.url.replace("://", f"://{PUBLIC_KEY}@") + "/42"))


def event_in(sentry: Receiver) -> dict[str, Any]:
    """The event of the next envelope."""
    posted = sentry.next()
    assert posted.path == "/api/42/envelope/"
    _, header, payload = posted.body.split(b"\n")[:3]
    assert json.loads(header)["type"] == "event"
    event: dict[str, Any] = json.loads(payload)
    return event


def fail(argument: str) -> None:
    local = f"local {argument}"
    raise KeyError(local)


async def test_an_unforeseen_error_is_reported_with_its_place_and_nothing_else(
    sentry: Receiver, tmp_path: Path
) -> None:
    secret = "the-argument"
    async with open_reports(reporting_to(sentry), closing_seconds=PATIENCE_SECONDS) as report:
        with closing(Log("info", "json", tmp_path / "log")) as log:
            log.report = report
            try:
                fail(secret)
            except KeyError:
                log.events.exception("a call failed", user="ann@example.com", trace_id="a" * 32)
    event = event_in(sentry)
    (error,) = event["exception"]["values"]
    assert error["type"] == "KeyError"
    assert [frame["function"] for frame in error["stacktrace"]["frames"]][-1] == "fail"
    assert event["tags"] == {"trace_id": "a" * 32}
    assert event["release"].startswith("refdesk@")
    assert secret in (tmp_path / "log").read_text(), "the log has it"
    told = json.dumps(event)
    for kept_back in (
        secret,
        "ann@example.com",
        str(Path(__file__).parent),
        "server_name",
        '"vars"',
        "abs_path",
        "context",
    ):
        assert kept_back not in told


async def test_errors_that_were_foreseen_are_not_reported(sentry: Receiver, tmp_path: Path) -> None:
    async with open_reports(reporting_to(sentry), closing_seconds=PATIENCE_SECONDS) as report:
        with closing(Log("info", "json", tmp_path / "log")) as log:
            log.report = report
            log.events.error("down", exc_info=EngineError("down"))
    assert sentry.posted.empty()


async def test_the_causes_of_an_error_are_reported_without_their_words(sentry: Receiver) -> None:
    async with open_reports(reporting_to(sentry), closing_seconds=PATIENCE_SECONDS) as report:
        assert report is not None
        try:
            try:
                fail("x")
            except KeyError as cause:
                raise RuntimeError("quotes-much") from cause
        except RuntimeError as error:
            report(error, "not one of W3C's: ann@example.com")
    event = event_in(sentry)
    assert [value["type"] for value in event["exception"]["values"]] == ["KeyError", "RuntimeError"]
    assert "quotes-much" not in json.dumps(event)
    assert "ann@example.com" not in json.dumps(event)


async def test_an_error_that_cannot_even_be_described_does_no_harm(sentry: Receiver) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

        __repr__ = __str__

    async with open_reports(reporting_to(sentry), closing_seconds=PATIENCE_SECONDS) as report:
        assert report is not None
        report(Odd(), "")
        report(RuntimeError(), "")
    found = [event_in(sentry)["exception"]["values"][0]["type"]]
    if not sentry.posted.empty():
        found.append(event_in(sentry)["exception"]["values"][0]["type"])
    assert found[-1] == "RuntimeError"


async def test_a_sentry_that_does_not_answer_holds_nobody_up(sentry: Receiver) -> None:
    sentry.open.clear()
    async with open_reports(reporting_to(sentry), closing_seconds=0.1) as report:
        assert report is not None
        for _ in range(120):  # more than are kept waiting
            report(RuntimeError("x"), "")
    assert not sentry.open.is_set(), "it is closed although nothing was ever answered"


@pytest.mark.parametrize("dsn", [None, "no-dsn-but-a-secret", "https://host/1", "ftp://key@host/1"])
async def test_a_dsn_that_is_none_is_said_without_quoting_it(dsn: str | None) -> None:
    settings = SentryConfig(enabled=True, dsn=SecretStr(dsn) if dsn else None)
    with pytest.raises(ConfigError, match=r"monitoring\.sentry\.dsn") as error:
        async with open_reports(settings):
            raise AssertionError("never reached")
    assert dsn is None or dsn not in error.value.detail
