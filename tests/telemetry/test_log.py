"""Log lines: one for each event, whatever is in it, with its trace id and without secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from refdesk.calls import Call, Caller, UserId
from refdesk.config.loading import load
from refdesk.errors import EngineError
from refdesk.telemetry.log import Log, iter_secrets
from refdesk.telemetry.traces import enter_trace, leave_trace

HOSTILE = (
    'x"\n{"event":"forged"}\r\nsecond \x1b[31mred \x1b]8;;http://evil\x07 \x9b2J '
    "\u2028 \u2029 \u202egnp.exe \u200b \U000e0041 \x00 \x7f"
)
UNSEEN = "\n\r\x1b\x9b\u2028\u2029\u202e\u200b\U000e0041\x00\x7f\x07"

Written = Callable[[], str]


@contextmanager
def log_to(path: Path, style: str) -> Iterator[Log]:
    with closing(Log("info", style, path)) as log:
        yield log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_line_stays_one_line_that_shows_what_is_in_it(path: Path, style: str) -> None:
    with log_to(path, style) as log:
        log.events.info(HOSTILE, detail=HOSTILE, things=[HOSTILE])
        log.call(Call(HOSTILE, {"name": HOSTILE}, Caller(user=UserId(HOSTILE)), trace_id=HOSTILE), HOSTILE, "ok", 0.1)
    text = path.read_bytes().decode()
    assert text.count("\n") == 2
    assert not any(character in text.replace("\n", "") for character in UNSEEN)
    assert "gnp.exe" in text


def test_json_says_after_all_what_was_sent(path: Path) -> None:
    with log_to(path, "json") as log:
        log.events.info("event", detail=HOSTILE, wide="naïve 文書 🙂")
    entry = json.loads(path.read_text())
    assert entry["detail"] == HOSTILE
    assert entry["wide"] == "naïve 文書 🙂"
    assert "naïve 文書 🙂" in path.read_text(), "what can be read is left readable"


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_text_that_is_no_unicode_is_written_all_the_same(path: Path, style: str) -> None:
    with log_to(path, style) as log:
        log.events.info("event", detail="broken \ud800 half")
        log.call(Call("tools/list", caller=Caller(user=UserId("half \ud800 a user"))), "", "ok", 0.1)
    event, call = path.read_text().splitlines()
    assert "broken " in event
    assert "half " in call


def test_a_traceback_for_the_eye_has_no_line_that_looks_like_one_of_the_log(path: Path) -> None:
    with log_to(path, "console") as log:
        try:
            raise RuntimeError("one\n2026-01-01T00:00:00Z [info     ] forged\x1b[2J")
        except RuntimeError:
            log.events.exception("failed")
    first, *others = path.read_text().splitlines()
    assert "failed" in first
    assert others
    assert all(line.startswith("    ") or not line for line in others)
    assert "\x1b" not in path.read_text()


def test_everything_that_is_logged_during_a_call_has_its_trace_id(path: Path) -> None:
    with log_to(path, "json") as log:
        token = enter_trace("a" * 32)
        log.events.warning("inside")
        log.events.warning("with its own", trace_id="b" * 32)
        leave_trace(token)
        log.events.warning("outside")
    inside, own, outside = map(json.loads, path.read_text().splitlines())
    assert (inside["trace_id"], own["trace_id"]) == ("a" * 32, "b" * 32)
    assert "trace_id" not in outside


@pytest.mark.parametrize("style", ["json", "console"])
def test_what_is_to_be_kept_secret_is_masked_however_it_got_into_a_line(path: Path, style: str) -> None:
    secrets = ["hunter2-hunter2", 'quo"ted\\secret', "hunter2-hunter2-longer", "tab\tbed-secret"]
    with log_to(path, style) as log:
        log.mask_secrets([*secrets, "", "short"])
        log.events.info(f"at https://user:{secrets[0]}@host", url=secrets[1], both=secrets[2], short="shortbread")
        try:
            raise ConnectionError(f"cannot log in with {secrets!r}")
        except ConnectionError:
            log.events.exception("failed")
    text = path.read_text()
    for secret in secrets:
        assert secret not in text
        assert json.dumps(secret)[1:-1] not in text
        assert repr(secret)[1:-1] not in text
    assert "longer" not in text
    assert "shortbread" in text


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_key_that_was_sent_in_place_of_a_name_is_masked_too(path: Path, style: str) -> None:
    with log_to(path, style) as log:
        log.mask_secrets(["hunter2-hunter2"])
        for target in ("hunter2-hunter2", "x" * 195 + "hunter2-hunter2"):
            log.call(Call("resources/read"), target, "UnknownResource", 0.001)
    assert "hunte" not in path.read_text()


def test_only_errors_that_nobody_foresaw_are_reported(path: Path) -> None:
    reported: list[tuple[BaseException, str]] = []
    unforeseen = KeyError("unforeseen")
    with log_to(path, "json") as log:
        log.report = lambda error, trace_id: reported.append((error, trace_id))
        log.events.error("no exception at all")
        log.events.error("foreseen", exc_info=EngineError("down"))
        log.events.warning("only a warning", exc_info=unforeseen)
        log.events.error("somebody else's", exc_info=unforeseen, logger="sentry_sdk.errors")
        assert reported == []
        log.events.error("unforeseen", exc_info=unforeseen, trace_id="c" * 32)
        try:
            raise unforeseen
        except KeyError:
            log.events.exception("unforeseen")
    assert reported == [(unforeseen, "c" * 32), (unforeseen, "")]


def test_what_is_logged_through_the_standard_library_is_reported_too(path: Path) -> None:
    reported: list[BaseException] = []
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    try:
        with log_to(path, "json") as log:
            log.report = lambda error, _: reported.append(error)
            log.capture_standard_logging()
            error = ValueError("unforeseen")
            fields = {"trace_id": "d" * 32}
            logging.getLogger("refdesk.x").error("failed", exc_info=error, extra={"fields": fields})
    finally:
        root.handlers = handlers
        root.setLevel(level)
        logging.getLogger("refdesk").setLevel(logging.NOTSET)
    assert reported == [error]
    assert json.loads(path.read_text())["trace_id"] == "d" * 32


def test_every_secret_of_a_configuration_can_be_kept() -> None:
    config = load(
        None,
        {},
        {
            "auth.keys": "key-of-a-caller",
            "answers.api_key": "key-for-answers",
            "cache.redis.url": "redis://user:p%40ssword@localhost:6379",
            "answers.api_url": "https://api.example/v1?token=in-the-query",
            "r2r.email": "desk@example.com",
            "r2r.password": "password-of-r2r",
        },
    )
    kept = set(iter_secrets(config))
    assert {"key-of-a-caller", "key-for-answers", "p%40ssword", "p@ssword", "password-of-r2r"} <= kept
    assert "token=in-the-query" in kept
    assert not any("localhost" in secret or "user" in secret for secret in kept)
