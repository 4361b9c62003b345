"""`refdesk serve`: the desk behind HTTP or standard input, until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import tempfile
from argparse import Namespace
from collections.abc import Coroutine
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from refdesk.cli.settings import load_settings
from refdesk.config import Config, require_support, without_effect
from refdesk.errors import ConfigError, RefdeskError

if TYPE_CHECKING:
    from refdesk.telemetry import Log


def serve(arguments: Namespace) -> int:
    """Run the server; answers its exit code."""
    config = load_settings(arguments)
    require_support(config)
    if arguments.stdio:
        _run(_serve_stdio(config))
        # Not by way of the interpreter's end: it would wait for the thread that may still wait for a line.
        sys.stderr.flush()
        os._exit(0)
    if config.server.workers > 1:
        return _serve_with_workers(config)
    _run(_serve_http(config, _bind(config)))
    return 0


def _serve_with_workers(config: Config) -> int:
    if not hasattr(os, "fork"):
        raise ConfigError(["server.workers: more than one process needs a system with fork; set it to 1"])
    with tempfile.TemporaryDirectory(prefix="refdesk-metrics-") as folder:
        # Before prometheus_client is imported: by this it knows that its numbers are to be added up over processes.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        from refdesk.inbound.workers import run_workers

        work = partial(_work, config, _bind(config), secrets.token_bytes(32))
        return run_workers(config.server.workers, work)


def _bind(config: Config) -> socket.socket:
    from refdesk.inbound.serve import bind

    return bind(config.server)


def _run(main: Coroutine[Any, Any, None]) -> None:
    """On the fastest loop that there is for this system."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def _work(config: Config, listener: socket.socket, state_key: bytes) -> int:
    from refdesk.inbound.workers import CANNOT_START

    try:
        _run(_serve_http(config, listener, state_key))
    except RefdeskError as error:
        for line in error.detail.splitlines():
            print(f"refdesk: {line}", file=sys.stderr)
        return CANNOT_START
    return 0


async def _serve_http(config: Config, listener: socket.socket, state_key: bytes | None = None) -> None:
    from refdesk.app import open_desk
    from refdesk.inbound.serve import serve_http, url_of

    with closing(_open_log(config)) as log:
        ready = partial(log.events.info, "ready", endpoint=f"{url_of(listener)}/mcp", pid=os.getpid())
        async with open_desk(config, log=log) as desk:
            await serve_http(desk, config, listener, ready, state_key)


async def _serve_stdio(config: Config) -> None:
    from refdesk.app import open_desk
    from refdesk.inbound.stdio import serve_stdio

    with closing(_open_log(config)) as log:
        async with open_desk(config, log=log) as desk:
            await serve_stdio(desk, config.server)


def _open_log(config: Config) -> Log:
    from refdesk.telemetry import Log

    log = Log(config.logging.level, config.logging.format, config.logging.file)
    log.capture_standard_logging()
    for warning in without_effect(config):
        log.events.warning(warning)
    return log
