"""`refdesk serve`: run the server over HTTP or stdio until it is stopped."""

from __future__ import annotations

import asyncio
import os
import resource
import secrets
import socket
import sys
import tempfile
import traceback
from collections.abc import Coroutine
from contextlib import closing, suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from refdesk.cli.error_report import print_failure
from refdesk.cli.load_config import load_settings
from refdesk.config.models import Config
from refdesk.config.rules import REDIS_SOURCE, require_support
from refdesk.errors import ConfigError, RefdeskError
from refdesk.support.fs import make_private_folder

if TYPE_CHECKING:
    from refdesk.telemetry.log import Log

MAX_OPEN_FILES = 65_536
"""Soft limit of open files that is raised to if the system allows it."""


def serve(arguments: SimpleNamespace) -> int:
    """Run the server and return the exit code."""
    config = load_settings(arguments, serves=True)
    require_support(config)
    _raise_open_files_limit()
    if arguments.stdio:
        _serve_stdio_and_exit(config)
    if config.server.workers > 1:
        return _serve_with_workers(config)
    from refdesk.inbound.http_server import bind_all

    _run_event_loop(_serve_http(config, bind_all(config)))
    return 0


def _raise_open_files_limit() -> None:
    """Raise the soft limit of open files, which is 1,024 on many systems, to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError):  # macOS has a lower limit than the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _serve_stdio_and_exit(config: Config) -> NoReturn:
    """Serve on stdio and exit with `os._exit`: a regular exit would join threads blocked on reading or writing."""
    code = 1
    try:
        _run_event_loop(_serve_stdio(config))
        code = 0
    except RefdeskError as error:
        print_failure(error.detail.splitlines())
        code = 2 if isinstance(error, ConfigError) else 1
    except Exception:  # noqa: BLE001 - top level: the traceback is printed
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _serve_with_workers(config: Config) -> int:
    if not hasattr(os, "fork"):
        raise ConfigError(["server.workers: more than one process needs a system with fork; set it to 1"])
    make_private_folder(config.data_path)
    # The system's temporary folder may be purged of old files.
    with tempfile.TemporaryDirectory(prefix="metrics-", dir=config.data_path) as folder:
        # Must be set before prometheus_client is imported: enables its multiprocess mode.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        from refdesk.inbound.http_server import CANNOT_START, Workers, bind_all

        listeners, state_key = bind_all(config), secrets.token_bytes(32)

        def work() -> int:
            try:
                _run_event_loop(_serve_http(config, listeners, state_key))
            except RefdeskError as error:
                print_failure(error.detail.splitlines())
                return CANNOT_START
            return 0

        return Workers(work).run(config.server.workers)


def _run_event_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on uvloop if it is installed, else on asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


async def _serve_http(config: Config, listeners: list[socket.socket], state_key: bytes | None = None) -> None:
    from refdesk.app import open_desk
    from refdesk.inbound.http_server import serve_http, url_of

    with closing(_open_log(config, config.logging.level)) as log:
        url = url_of(listeners[0])
        addresses = {"endpoint": f"{url}/mcp"}
        if config.console.enabled:
            addresses["console"] = f"{url}/console/"
        if listeners[1:]:
            addresses["metrics"] = f"{url_of(listeners[1])}/metrics"
        ready = partial(log.events.info, "ready", **addresses, pid=os.getpid())
        async with open_desk(config, log=log) as desk:
            await serve_http(desk, config, listeners, ready, state_key)


async def _serve_stdio(config: Config) -> None:
    from refdesk.app import open_desk
    from refdesk.inbound.stdio import serve_stdio

    # Clients needn't read a server's standard error, so log only warnings unless a level is set.
    level = config.logging.level if config.sources.get("logging.level", "default") != "default" else "warning"
    with closing(_open_log(config, level)) as log:
        async with open_desk(config, log=log) as desk:
            await serve_stdio(desk, config.server)


def _open_log(config: Config, level: str) -> Log:
    from refdesk.telemetry.log import Log

    log = Log(level, config.logging.format, config.logging.file)
    log.capture_standard_logging()
    for warning in config.warnings:
        log.events.warning(warning)
    if config.sources["cache.type"] == REDIS_SOURCE:
        log.events.info("cache.redis", selected_by="REDIS_URL", url=str(config.cache.redis.url))
    return log
