"""Log lines: one for an event, JSON for machines or columns for people.

A line stays one line and shows what is in it, whatever a stranger has sent; and what the desk was told to keep secret
is not in it.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterable, MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from textwrap import indent
from typing import Any, BinaryIO

import orjson
import structlog
from structlog.typing import FilteringBoundLogger, Processor

from refdesk.calls import Call
from refdesk.errors import ConfigError, RefdeskError
from refdesk.telemetry.lines import Lines
from refdesk.telemetry.traces import current_trace_id

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

MIN_SECRET_CHARACTERS = 6
"""Shorter ones would be found in innocent words, and are no secrets worth the name."""

MASK = "********"

_now = datetime.now

Report = Callable[[BaseException, str], None]
"""Tells somebody of an error that nobody foresaw, and of its trace id."""

_NOT_OURS = ("sentry_sdk", "opentelemetry")
"""Who reports is not reported: it would go round in circles."""

_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
                     "\U000e0000-\U000e0fff\ud800-\udfff]")  # fmt: skip
"""What a terminal obeys, or what does not show: controls, line ends of every kind, marks of direction, tags."""

_UNSEEN_BUT_NEWLINE = re.compile(_UNSEEN.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))


class Log:
    """Where events are written: one line each, JSON for machines or columns for people."""

    def __init__(self, level: str, style: str = "auto", file: Path | None = None) -> None:
        terminal = file is None and sys.stderr.isatty()
        if style == "auto":
            style = "console" if terminal else "json"
        self._level = level
        self._file = _open_log_file(file) if file else None
        self._lines = Lines(self._file or sys.stderr.buffer)
        self._report: Report | None = None
        self._secrets: re.Pattern[bytes] | None = None
        self.events: FilteringBoundLogger = structlog.wrap_logger(
            self._lines,
            processors=[_add_trace_id, self._tell, *_processors(style, colors=terminal), self._mask],
            wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        ).bind()
        self._calls_as_json = style == "json" and LEVELS[level] <= logging.INFO

    def call(self, call: Call, target: str, outcome: str, seconds: float) -> None:
        """One line for one call; of what was sent with it, only names."""
        caller = call.caller
        fields = {
            "timestamp": _now(UTC),
            "level": "info",
            "event": "call",
            "method": call.method[:200],
            "target": self._without_secrets(target)[:200],
            "outcome": outcome,
            "ms": int(seconds * 1e6) / 1000,
            "user": caller.user,
            "tenant": caller.tenant,
            "trace_id": call.trace_id,
        }
        if self._calls_as_json:
            # The same line as the logger's, without its detours: this is on every call's path.
            self._lines.msg(_json_of(fields, orjson.OPT_UTC_Z))
        else:
            for name in ("timestamp", "level", "event"):
                del fields[name]
            self.events.info("call", **fields)

    def report_to(self, report: Report | None) -> None:
        """Have somebody told of every error that is logged without having been foreseen."""
        self._report = report

    def keep_secret(self, secrets: Iterable[str]) -> None:
        """Mask these wherever they would be written, in the text of somebody else's error for example."""
        ways = {way for secret in secrets if len(secret) >= MIN_SECRET_CHARACTERS for way in _ways_to_write(secret)}
        # The longest first: of two secrets, one may begin with the other.
        longest_first = sorted(map(re.escape, ways), key=len, reverse=True)
        self._secrets = re.compile(b"|".join(longest_first)) if ways else None

    def close(self) -> None:
        """Write what waits; nothing may be logged afterwards."""
        self._lines.flush()
        if self._file is not None:
            self._file.close()

    def capture_standard_logging(self) -> None:
        """Write what is logged through `logging` in the same form; of libraries only warnings, unless debugging."""
        root = logging.getLogger()
        root.handlers = [_Forward(self.events)]
        logging.getLogger("refdesk").setLevel(LEVELS[self._level])
        root.setLevel(LEVELS[self._level] if self._level in ("debug", "error") else logging.WARNING)

    def _tell(self, _: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """A processor that passes the event on as it is."""
        if self._report is not None and level in ("error", "critical", "exception"):
            error = _exception_in(event)
            if error is not None and not str(event.get("logger", "")).startswith(_NOT_OURS):
                self._report(error, str(event.get("trace_id", "")))
        return event

    def _without_secrets(self, name: str) -> str:
        """A name as a stranger has sent it: somebody may have put his key in its place."""
        if self._secrets is None:
            return name
        encoded = name.encode("utf-8", "replace")
        return self._secrets.sub(MASK.encode(), encoded).decode() if self._secrets.search(encoded) else name

    def _mask(self, _: Any, __: str, line: Any) -> Any:
        """The last processor: the line without the secrets that have found a way into it."""
        return self._secrets.sub(MASK.encode(), line) if self._secrets is not None else line


class _Forward(logging.Handler):
    def __init__(self, logger: FilteringBoundLogger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        exception = {"exc_info": record.exc_info} if record.exc_info and record.exc_info[0] else {}
        fields = getattr(record, "fields", {"logger": record.name})
        self._logger.log(record.levelno, record.getMessage(), **fields, **exception)


def _open_log_file(path: Path) -> BinaryIO:
    try:
        return path.open("ab")
    except OSError as error:
        raise ConfigError([f"logging.file: cannot write to {path}: {error.strerror}"]) from error


def _processors(style: str, *, colors: bool) -> list[Processor]:
    if style == "json":
        return [_json_line]
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper("iso", utc=True),
        structlog.processors.format_exc_info,
        _visible_values,
        structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback),
        _encoded,
    ]


def _add_trace_id(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    trace_id = current_trace_id()
    if trace_id:
        event.setdefault("trace_id", trace_id)
    return event


def _exception_in(event: MutableMapping[str, Any]) -> BaseException | None:
    """The error that an event tells of, unless it is one of ours: those were foreseen."""
    given = event.get("exc_info")
    error = sys.exc_info()[1] if given is True else given[1] if isinstance(given, tuple) else given
    return error if isinstance(error, Exception) and not isinstance(error, RefdeskError) else None


def _json_line(_: Any, level: str, event: MutableMapping[str, Any]) -> bytes:
    # All in one step: a chain of small ones costs twice as much.
    if "exc_info" in event:
        event = structlog.processors.format_exc_info(_, level, event)
    line = {"timestamp": _now(UTC), "level": level, "event": event.pop("event", ""), **event}
    return _json_of(line, orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z)


def _json_of(line: dict[str, Any], option: int) -> bytes:
    """In one line, and visible: JSON escapes only the oldest control characters, but most lines are all ASCII."""
    try:
        encoded = orjson.dumps(line, str, option)
    except orjson.JSONEncodeError:
        # A text that is no Unicode; what can be written of it is better than no line.
        encoded = orjson.dumps({name: _visible(str(value)) for name, value in line.items()})
    if encoded.isascii():
        return encoded
    return _UNSEEN.sub(lambda found: _json_escape(found[0]), encoded.decode()).encode()


def _json_escape(character: str) -> str:
    code = ord(character)
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def _visible(text: str) -> str:
    return _UNSEEN.sub(_escape, text)


def _visible_values(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """For the eye: every text on one line, and a traceback's lines where none can be taken for a line of the log."""
    for name, value in event.items():
        if name == "exception":
            event[name] = indent(_UNSEEN_BUT_NEWLINE.sub(_escape, str(value)), "    ")
        elif not isinstance(value, bool | int | float):
            event[name] = _visible(str(value))
    return event


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _encoded(_: Any, __: str, line: Any) -> bytes:
    return str(line).encode("utf-8", "replace")


def _ways_to_write(secret: str) -> set[bytes]:
    """As it is, as it stands inside JSON, and as Python shows it."""
    return {secret.encode("utf-8", "replace"), orjson.dumps(secret)[1:-1], repr(secret)[1:-1].encode()}
