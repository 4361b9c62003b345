"""Structured log: one line per event, as JSON or as columns.

Control characters are escaped, so client input can't forge or hide lines. Configured secrets are masked.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import select
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from datetime import UTC, datetime
from errno import EBADF, EPIPE
from pathlib import Path
from textwrap import indent
from typing import Any, BinaryIO

import orjson
import structlog
from pydantic import BaseModel, SecretStr
from structlog.typing import FilteringBoundLogger, Processor

from refdesk.calls import Call
from refdesk.config import types
from refdesk.config.secrets import find_url_secrets
from refdesk.config.server_model import McpServerConfig
from refdesk.errors import ConfigError, RefdeskError
from refdesk.telemetry.traces import current_trace_id

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

MIN_SECRET_CHARACTERS = 6
"""Shorter secrets aren't masked: they would match ordinary words, and protect nothing."""

MAX_WAITING_BYTES = 1_048_576
"""Bytes to buffer for a slow reader. Beyond that, lines are dropped."""

_now = datetime.now

Report = Callable[[BaseException, str], None]
"""Reports an unexpected error with its trace id."""

_UNREPORTED_LOGGERS = ("sentry_sdk", "opentelemetry")
"""Loggers of the reporting libraries themselves, which would cause a loop."""

_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
                     "\U000e0000-\U000e0fff\ud800-\udfff]")  # fmt: skip
"""Characters that control a terminal or are invisible: controls, line ends, bidi marks, tags."""

_HIDDEN_EXCEPT_NEWLINE = re.compile(_HIDDEN.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))


class Log:
    """Log with one line per event, as JSON or as columns."""

    def __init__(self, level: str, style: str = "auto", file: Path | None = None) -> None:
        terminal = file is None and sys.stderr.isatty()
        if style == "auto":
            style = "console" if terminal else "json"
        self._level = level
        try:
            if file:
                file.parent.mkdir(parents=True, exist_ok=True)
            self._file = file.open("ab") if file else None
        except OSError as error:
            raise ConfigError([f"logging.file: cannot write to {file}: {error.strerror}"]) from error
        self._lines = Lines(self._file or sys.stderr.buffer)
        self.report: Report | None = None
        """Reports unexpected errors, if set."""
        self._secrets: re.Pattern[bytes] | None = None
        self.events: FilteringBoundLogger = structlog.wrap_logger(
            self._lines,
            processors=[_add_trace_id, self._report_error, *_build_processors(style, colors=terminal), self._mask],
            wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        ).bind()
        self.includes_calls = LEVELS[level] <= logging.INFO
        self._calls_as_json = style == "json"

    def call(self, call: Call, target: str, outcome: str, seconds: float) -> None:
        """Log a call without its arguments, for a log that `includes_calls`."""
        caller = call.caller
        fields = {
            "timestamp": _now(UTC),
            "level": "info",
            "event": "call",
            "method": call.method[:200],
            "target": self._mask_name(target)[:200],
            "outcome": outcome,
            "ms": int(seconds * 1e6) / 1000,
            "user": caller.user,
            "tenant": caller.tenant,
            "trace_id": call.trace_id,
        }
        if self._calls_as_json:
            # The same line as the logger's, without its overhead: this runs for every call.
            self._lines.msg(_encode_json(fields, orjson.OPT_UTC_Z))
        else:
            for name in ("timestamp", "level", "event"):
                del fields[name]
            self.events.info("call", **fields)

    def mask_secrets(self, secrets: Iterable[str]) -> None:
        """Mask these secrets in every line, for example in the text of a library's error."""
        variants: set[bytes] = set()
        for secret in secrets:
            if len(secret) >= MIN_SECRET_CHARACTERS:
                # Plain, in JSON and as a Python repr.
                variants |= {secret.encode("utf-8", "replace"), orjson.dumps(secret)[1:-1], repr(secret)[1:-1].encode()}
        # Longest first, because one secret may be the prefix of another.
        longest_first = sorted(map(re.escape, variants), key=len, reverse=True)
        self._secrets = re.compile(b"|".join(longest_first)) if variants else None

    def close(self) -> None:
        """Flush and close. Nothing may be logged afterwards."""
        self._lines.flush()
        if self._file is not None:
            self._file.close()

    def capture_standard_logging(self) -> None:
        """Redirect the `logging` module to this log. Libraries only log warnings, unless the level is debug."""
        root = logging.getLogger()
        root.handlers = [_Forward(self.events)]
        logging.getLogger("refdesk").setLevel(LEVELS[self._level])
        root.setLevel(LEVELS[self._level] if self._level in ("debug", "error") else logging.WARNING)

    def _report_error(self, _: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Report unexpected errors, as a processor that returns the event unchanged."""
        if self.report is not None and level in ("error", "critical", "exception"):
            given = event.get("exc_info")
            error = sys.exc_info()[1] if given is True else given[1] if isinstance(given, tuple) else given
            is_reporting = str(event.get("logger", "")).startswith(_UNREPORTED_LOGGERS)
            if isinstance(error, Exception) and not isinstance(error, RefdeskError) and not is_reporting:
                self.report(error, str(event.get("trace_id", "")))
        return event

    def _mask_name(self, name: str) -> str:
        """Mask secrets in a name from a client, who may have sent a key in its place."""
        if self._secrets is None:
            return name
        encoded = name.encode("utf-8", "replace")
        return self._secrets.sub(types.MASK.encode(), encoded).decode() if self._secrets.search(encoded) else name

    def _mask(self, _: Any, __: str, line: Any) -> Any:
        return self._secrets.sub(types.MASK.encode(), line) if self._secrets is not None else line


class Lines:
    """Line writer that batches the lines of one event loop iteration.

    It never blocks: what doesn't fit into a pipe waits for the next line, and is dropped beyond a limit.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream: BinaryIO | None = stream
        self._poll = _create_poll(stream)
        self._pending: list[bytes] = []
        self._unwritten = b""
        self._flush_is_scheduled = False

    def msg(self, line: bytes) -> None:
        """Write a line, in the next loop iteration at the latest."""
        self._pending.append(line)
        if not self._flush_is_scheduled:
            try:
                asyncio.get_running_loop().call_soon(self.flush)
                self._flush_is_scheduled = True
            except RuntimeError:
                self.flush()

    debug = info = warning = error = critical = exception = log = msg

    def flush(self) -> None:
        """Write the buffered lines, as far as there is room."""
        self._flush_is_scheduled = False
        data = self._unwritten + b"".join([line + b"\n" for line in self._pending])
        self._pending.clear()
        if self._stream is None or not data:
            return
        try:
            data = self._write(self._stream, data)
        except OSError as error:
            # The reader is gone, and reporting that would write to the same stream. A full disk may recover.
            self._stream = None if error.errno in (EPIPE, EBADF) else self._stream
            data = b""
        self._unwritten = data if len(data) <= MAX_WAITING_BYTES else b""

    def _write(self, stream: BinaryIO, data: bytes) -> bytes:
        """Write without blocking, and return the rest."""
        if self._poll is None:
            stream.write(data)
            stream.flush()
            return b""
        while data and self._poll.poll(0):
            # A writable pipe has room for this much.
            data = data[os.write(stream.fileno(), data[: select.PIPE_BUF]) :]
        return data


def _create_poll(stream: BinaryIO) -> select.poll | None:
    """Return a poll object for a pipe, socket or terminal. None for files, which never block."""
    try:
        if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            return None
    except (OSError, ValueError):
        return None
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLOUT)
    return poll


class _Forward(logging.Handler):
    def __init__(self, logger: FilteringBoundLogger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        exception = {"exc_info": record.exc_info} if record.exc_info and record.exc_info[0] else {}
        fields = getattr(record, "fields", {"logger": record.name})
        self._logger.log(record.levelno, record.getMessage(), **fields, **exception)


def _build_processors(style: str, *, colors: bool) -> list[Processor]:
    if style == "json":
        return [_render_json]
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper("iso", utc=True),
        structlog.processors.format_exc_info,
        _escape_values,
        structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback),
        lambda _, __, line: str(line).encode("utf-8", "replace"),
    ]


def _add_trace_id(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    trace_id = current_trace_id()
    if trace_id:
        event.setdefault("trace_id", trace_id)
    return event


def _render_json(_: Any, level: str, event: MutableMapping[str, Any]) -> bytes:
    # One step: a chain of small processors costs twice as much.
    if "exc_info" in event:
        event = structlog.processors.format_exc_info(_, level, event)
    line = {"timestamp": _now(UTC), "level": level, "event": event.pop("event", ""), **event}
    return _encode_json(line, orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z)


def _encode_json(line: dict[str, Any], option: int) -> bytes:
    """Encode a line as JSON and escape invisible characters.

    JSON itself only escapes ASCII controls. Most lines are pure ASCII.
    """
    try:
        encoded = orjson.dumps(line, str, option)
    except orjson.JSONEncodeError:
        # Not valid Unicode. A degraded line is better than none.
        encoded = orjson.dumps({name: escape_hidden(str(value)) for name, value in line.items()})
    if encoded.isascii():
        return encoded
    return _HIDDEN.sub(lambda found: json.dumps(found[0])[1:-1], encoded.decode()).encode()


def escape_hidden(text: str) -> str:
    return _HIDDEN.sub(_escape, text)


def _escape_values(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape values for the console, and indent tracebacks so that they can't pass for log lines."""
    for name, value in event.items():
        if name == "exception":
            event[name] = indent(_HIDDEN_EXCEPT_NEWLINE.sub(_escape, str(value)), "    ")
        elif not isinstance(value, bool | int | float):
            event[name] = escape_hidden(str(value))
    return event


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def iter_secrets(part: BaseModel) -> Iterator[str]:
    """Yield every secret in a configuration or a part of it: keys, passwords, and secrets in URLs."""
    for _, value in part:
        yield from _iter_value_secrets(value)
    if isinstance(part, McpServerConfig):
        yield from part.hidden


def _iter_value_secrets(value: Any) -> Iterator[str]:
    match value:
        case types.Url():
            yield from find_url_secrets(value.get_secret_value())
        case SecretStr():
            yield value.get_secret_value()
        case BaseModel():
            yield from iter_secrets(value)
        case Mapping():
            for each in value.values():
                yield from _iter_value_secrets(each)
        case tuple() | list():
            for each in value:
                yield from _iter_value_secrets(each)
