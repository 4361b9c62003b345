"""Log lines and metrics: how they look and what they are called. Measures nothing itself."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import stat
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from errno import EBADF, EPIPE
from pathlib import Path
from select import PIPE_BUF
from time import perf_counter
from typing import Any, BinaryIO, Literal

import orjson
import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from structlog.typing import FilteringBoundLogger, Processor

from refdesk.calls import Call
from refdesk.errors import ConfigError

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds: from a cached answer to the longest call there can be."""

MAX_WAITING_BYTES = 1_048_576
"""How much log is kept for a reader that is slow; then lines are dropped."""

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


CONVERSION_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 300.0)
"""Seconds: from a small file to the longest conversion there can be."""


@dataclass(slots=True)
class Conversion:
    """A conversion under way; failed until something else is known."""

    outcome: Literal["ok", "cached", "refused", "failed"] = "failed"


class Metrics:
    """Every metric of the server, on a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Counter(
            "refdesk_calls", "Calls answered, by outcome.", ["method", "tool", "outcome"], registry=self.registry
        )
        self.call_seconds = Histogram(
            "refdesk_call_seconds", "Time to answer a call.", ["method", "tool"],
            buckets=BUCKETS, registry=self.registry,
        )  # fmt: skip
        self.refusals = Counter(
            "refdesk_http_refusals", "HTTP requests refused at the door.", ["status"], registry=self.registry
        )
        self.conversions = Counter(
            "refdesk_conversions", "Files converted, by outcome: ok, cached, refused or failed.", ["outcome"],
            registry=self.registry,
        )  # fmt: skip
        self.conversion_seconds = Histogram(
            "refdesk_conversion_seconds", "Time to convert a file, waiting for a worker included.",
            buckets=CONVERSION_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self.documents = Counter(
            "refdesk_documents", "Documents read for the index, by outcome: indexed, unchanged, failed or postponed.",
            ["outcome"], registry=self.registry,
        )  # fmt: skip
        self.embedded_chunks = Counter(
            "refdesk_embedded_chunks", "Chunks of documents that were embedded.", registry=self.registry
        )
        self._children: dict[tuple[str, str, str], tuple[Counter, Histogram]] = {}

    def call_finished(self, method: str, tool: str, outcome: str, seconds: float) -> None:
        """Count a call and its time."""
        # Looking a labelled child up costs more than counting with it; methods, tools and outcomes are few.
        child = self._children.get((method, tool, outcome))
        if child is None:
            child = self.calls.labels(method, tool, outcome), self.call_seconds.labels(method, tool)
            self._children[method, tool, outcome] = child
        child[0].inc()
        child[1].observe(seconds)

    @contextmanager
    def conversion(self) -> Iterator[Conversion]:
        """Count the conversion that goes on in the block, and its time unless it was found done."""
        conversion, started = Conversion(), perf_counter()
        try:
            yield conversion
        finally:
            self.conversions.labels(conversion.outcome).inc()
            if conversion.outcome != "cached":
                self.conversion_seconds.observe(perf_counter() - started)

    def exposition(self, *, shared: bool = False) -> bytes:
        """All metrics in Prometheus' text format; `shared` adds up those of every worker process."""
        if not shared:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # the library leaves it unannotated
        return generate_latest(registry)


class Log:
    """Where events are written: one line each, JSON for machines or columns for people."""

    def __init__(self, level: str, style: str = "auto", file: Path | None = None) -> None:
        terminal = file is None and sys.stderr.isatty()
        if style == "auto":
            style = "console" if terminal else "json"
        self._level = level
        self._file = _open_log_file(file) if file else None
        self._lines = Lines(self._file or sys.stderr.buffer)
        self.events: FilteringBoundLogger = structlog.wrap_logger(
            self._lines,
            processors=_processors(style, colors=terminal),
            wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        ).bind()
        self._calls_as_json = style == "json" and LEVELS[level] <= logging.INFO

    def call(self, call: Call, target: str, outcome: str, seconds: float) -> None:
        """One line for one call; of what was sent with it, only names."""
        fields = {
            "timestamp": datetime.now(UTC),
            "level": "info",
            "event": "call",
            "method": call.method[:200],
            "target": target[:200],
            "outcome": outcome,
            "ms": round(seconds * 1000, 3),
            "user": call.caller.user,
            "tenant": call.caller.tenant,
            "trace_id": call.trace_id,
        }
        if self._calls_as_json:
            # The same line as the logger's, without its detours: this is on every call's path.
            self._lines.msg(orjson.dumps(fields, option=orjson.OPT_UTC_Z))
        else:
            for name in ("timestamp", "level", "event"):
                del fields[name]
            self.events.info("call", **fields)

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


class Lines:
    """Writes lines to a stream; inside an event loop, all that one turn of it brought in one go.

    It never waits for a reader: what does not fit into a pipe waits for the next line, and beyond a bound is dropped.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream: BinaryIO | None = stream
        self._pipe = _pipe_behind(stream)
        self._waiting: list[bytes] = []
        self._left = b""
        self._flush_is_due = False

    def msg(self, line: bytes) -> None:
        """Write a line, at the latest when the loop turns next."""
        self._waiting.append(line)
        if not self._flush_is_due:
            try:
                asyncio.get_running_loop().call_soon(self.flush)
                self._flush_is_due = True
            except RuntimeError:
                self.flush()

    debug = info = warning = error = critical = exception = log = msg

    def flush(self) -> None:
        """Write what waits, or as much of it as there is room for."""
        self._flush_is_due = False
        data = self._left + b"".join([line + b"\n" for line in self._waiting])
        self._waiting.clear()
        if self._stream is None or not data:
            return
        try:
            data = self._write(self._stream, data)
        except OSError as error:
            # Nobody reads it any more; to complain of that would be to write to it. A full disk may have room again.
            self._stream = None if error.errno in (EPIPE, EBADF) else self._stream
            data = b""
        self._left = data if len(data) <= MAX_WAITING_BYTES else b""

    def _write(self, stream: BinaryIO, data: bytes) -> bytes:
        """Write without waiting; answers what is left."""
        if self._pipe is None:
            stream.write(data)
            stream.flush()
            return b""
        while data and self._pipe.poll(0):
            # So much always fits into a pipe that says it can be written to.
            data = data[os.write(stream.fileno(), data[:PIPE_BUF]) :]
        return data


def _pipe_behind(stream: BinaryIO) -> select.poll | None:
    """Tells whether a pipe, socket or terminal can be written to; None for files, which have no reader to wait for."""
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
        structlog.dev.ConsoleRenderer(colors=colors),
        _encoded,
    ]


def _json_line(_: Any, level: str, event: MutableMapping[str, Any]) -> bytes:
    # All in one step: a chain of small ones costs twice as much.
    if "exc_info" in event:
        event = structlog.processors.format_exc_info(_, level, event)
    line = {"timestamp": datetime.now(UTC), "level": level, "event": event.pop("event", ""), **event}
    return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z)


def _encoded(_: Any, __: str, line: Any) -> bytes:
    return str(line).encode("utf-8", "replace")
