"""A server's error output, as it is logged and kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import pytest

from refdesk.config.types import MASK
from refdesk.downstream.transports import stdio
from refdesk.downstream.transports.stdio import StderrReader
from tests.downstream.transports.stdio_rig import bad, talk

LOGGER = "refdesk.downstream.transports.stdio"


def listen(secrets: Iterable[str] = (), now: Callable[[], float] = time.monotonic) -> StderrReader:
    return StderrReader("docs", "npx", secrets, None, lambda: None, now=now)


def test_a_line_is_logged_with_the_command_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    reader = listen()
    reader.data_received(b"first\nsec")
    reader.data_received(b"ond\r\n\n   \nlast")
    assert list(reader.lines) == ["first", "second"]
    reader.connection_lost(None)
    assert list(reader.lines) == ["first", "second", "last"]
    assert caplog.messages == ["[STDERR][npx] first", "[STDERR][npx] second", "[STDERR][npx] last"]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_per_cent_signs_are_left_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    listen().data_received(b"100%s done %d\n")
    assert caplog.messages == ["[STDERR][npx] 100%s done %d"]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"\x1b[31mred\x1b[0m and\ttab", "red and\\ttab"),
        (b"bell \x07 and \x1b]0;title", "bell \\x07 and \\x1b]0;title"),
        (b"invalid \xff byte", "invalid � byte"),
        ("to the left \u202e and a line \u2028 end".encode(), "to the left \\u202e and a line \\u2028 end"),
    ],
)
def test_a_line_shows_what_is_in_it_and_stays_a_line(raw: bytes, shown: str) -> None:
    assert listen().clean(raw) == shown


@pytest.mark.parametrize(
    "line",
    [
        "the key is open-sesame-77",
        "the key is open\x1b[1m-sesame-77",
        "api_key=open-sesame-99",
        'API-KEY: "open-sesame-99"',
        '{"access_token":"open-sesame-99"}',
        "Authorization: Bearer open-sesame-99",
        "sent bearer open-sesame-99",
        "password = open-sesame-99",
        "postgres://user:open-sesame-99@host/db",
        "key sk-open-sesame-99",
        "MULTI-SESAME-LINE",
    ],
)
def test_secrets_are_masked_whether_we_set_them_or_not(line: str) -> None:
    shown = listen(["open-sesame-77", "BEGIN\nMULTI-SESAME-LINE\nEND"]).clean(line.encode())
    assert "sesame" not in shown.lower()
    assert MASK in shown


def test_short_values_are_no_secrets() -> None:
    assert listen(["true", "1", ""]).clean(b"true: 1 file") == "true: 1 file"


def test_a_secret_that_a_cut_goes_through_is_not_left_in_half() -> None:
    secret = "sesame" * 5000
    raw = (secret * 3).encode()[: stdio.MAX_LINE_BYTES]
    assert "sesame" not in listen([secret]).clean(raw)


def test_a_long_line_is_cut_and_costs_no_memory() -> None:
    chatter_ = listen()
    for _ in range(100):
        chatter_.data_received(b"y" * 100_000)
    assert len(chatter_._partial) == stdio.MAX_LINE_BYTES
    chatter_.data_received(b"\nshort\n")
    assert [len(line) for line in chatter_.lines] == [stdio.MAX_LINE_CHARACTERS, 5]


def test_of_a_flood_a_few_lines_are_logged_and_the_rest_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    flooded = listen(now=lambda: 100.0)
    for start in range(0, 50_000, 1000):
        flooded.data_received(b"".join(b"line %d\n" % number for number in range(start, start + 1000)))
    flooded.connection_lost(None)
    assert list(flooded.lines) == [f"line {number}" for number in range(49_800, 50_000)]
    told = sum(record.fields["lines"] for record in caplog.records if "left out" in record.message)  # type: ignore[attr-defined]
    logged = [message for message in caplog.messages if "left out" not in message]
    assert len(logged) + told == 50_000
    assert len(logged) == stdio.LINES_PER_SECOND


@pytest.mark.anyio
async def test_what_a_real_server_prints_is_heard_without_its_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    async with talk(bad(env={"API_KEY": "open-sesame"})) as conversation:
        await conversation.call("stderrodd")
        await conversation.call("secret")
    assert conversation.stderr_seen == list(conversation.transport._stderr.lines)
    assert conversation.stderr_seen[:2] == ["red and\\ttab", "invalid � byte"]
    assert conversation.stderr_seen[3] == "without an endusing key ******** for this"
    everything = "\n".join([*conversation.stderr_seen, *caplog.messages])
    assert not [secret for secret in ("sesame", "SECRET123", "abc.DEF", "hunter22") if secret in everything]
