"""Log lines and metrics: how they look and what they are called. Measures nothing itself."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from structlog.typing import FilteringBoundLogger, Processor

from refdesk.errors import ConfigError

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds: from a cached answer to the longest call there can be."""

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


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
        self.calls_in_progress = Gauge(
            "refdesk_calls_in_progress", "Calls being answered now.",
            registry=self.registry, multiprocess_mode="livesum",
        )  # fmt: skip
        self.refusals = Counter(
            "refdesk_http_refusals", "HTTP requests refused at the door.", ["status"], registry=self.registry
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

    def exposition(self, *, shared: bool = False) -> bytes:
        """All metrics in Prometheus' text format; `shared` adds up those of every worker process."""
        if not shared:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # the library leaves it unannotated
        return generate_latest(registry)


def open_logger(level: str, style: str, file: Path | None = None) -> FilteringBoundLogger:
    """A logger that writes one line an event, to a file or standard error: JSON for machines, columns for people."""
    terminal = file is None and sys.stderr.isatty()
    if style == "auto":
        style = "console" if terminal else "json"
    stream = _open_log_file(file) if file else sys.stderr.buffer
    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.BytesLogger(stream),
        processors=_processors(style, colors=terminal),
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
    ).bind()  # the logger itself: the proxy that is bound anew for every line costs as much as the line
    return logger


def _open_log_file(path: Path) -> BinaryIO:
    try:
        return path.open("ab")
    except OSError as error:
        raise ConfigError([f"logging.file: cannot write to {path}: {error.strerror}"]) from error


def capture_standard_logging(logger: FilteringBoundLogger, level: str) -> None:
    """Write what libraries log through `logging` in the same form; only their warnings, unless debugging."""
    root = logging.getLogger()
    root.handlers = [_Forward(logger)]
    root.setLevel(LEVELS[level] if level in ("debug", "error") else logging.WARNING)


class _Forward(logging.Handler):
    def __init__(self, logger: FilteringBoundLogger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        self._logger.log(record.levelno, record.getMessage(), logger=record.name, **_exception(record.exc_info))


def _exception(info: Any) -> dict[str, Any]:
    return {"exc_info": info} if info and info[0] else {}


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
    # All in one step: a chain of small ones costs twice as much, on every call's path.
    if "exc_info" in event:
        event = structlog.processors.format_exc_info(_, level, event)
    line = {"timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"), "level": level, **event}
    return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS)


def _encoded(_: Any, __: str, line: Any) -> bytes:
    return str(line).encode("utf-8", "replace")
