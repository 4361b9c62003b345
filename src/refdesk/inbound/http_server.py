"""HTTP server: socket, worker processes, signals and graceful shutdown."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from types import FrameType

import uvicorn

from refdesk.config.models import Config, ServerConfig
from refdesk.errors import ConfigError
from refdesk.inbound.desk_interface import Services
from refdesk.inbound.http_app import HttpApp
from refdesk.inbound.uvicorn_protocol import Clock, create_protocol

BACKLOG = 2048

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

CANNOT_START = 2
"""Exit code of a worker that failed in a way that a restart can't fix."""

RESTART_SECONDS = 1.0
"""Pause before a dead worker is restarted, so that one that always fails doesn't use up the CPU."""


def bind_all(config: Config) -> list[socket.socket]:
    """Open the listening socket, and the one for metrics if it's configured."""
    listeners = [bind(config.server)]
    metrics = config.monitoring.prometheus
    if metrics.enabled and metrics.port is not None:
        try:
            listeners.append(_listen(config.server.host, metrics.port, "monitoring.prometheus.port", "choose another"))
        except ConfigError:
            listeners[0].close()
            raise
    return listeners


def bind(settings: ServerConfig) -> socket.socket:
    """Open the listening socket. Raises ConfigError if the address isn't available."""
    return _listen(settings.host, settings.port, "server.port", "choose another with --port")


def _listen(host: str, port: int, setting: str, advice: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        where = f"{host}:{port}"
        detail = f"server.host: cannot listen on {where}: {error.strerror or error}"
        if error.errno == errno.EADDRINUSE:
            detail = f"{setting}: {where} is in use by another program; stop it or {advice}"
        raise ConfigError([detail]) from error
    listener.set_inheritable(True)
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@contextlib.asynccontextmanager
async def open_http(
    services: Services, config: Config, port: int, state_key: bytes | None = None
) -> AsyncIterator[HttpApp]:
    """Open the application, and end its sessions at the end."""
    app = HttpApp(services, config, port, state_key)
    try:
        yield app
    finally:
        app.close()


async def serve_http(
    services: Services,
    config: Config,
    listeners: list[socket.socket],
    when_ready: Callable[[], None],
    state_key: bytes | None = None,
) -> None:
    """Serve until a signal arrives. `state_key` is described in `McpDispatcher`."""
    async with open_http(services, config, listeners[0].getsockname()[1], state_key) as app:
        await HttpServer(app, config.server, when_ready).serve(sockets=listeners)


class HttpServer(uvicorn.Server):
    """uvicorn with our protocol and a graceful shutdown that exits with code 0."""

    def __init__(
        self, app: HttpApp, settings: ServerConfig, when_ready: Callable[[], None], *, clock: Clock | None = None
    ) -> None:
        self._app = app
        self._when_ready = when_ready
        super().__init__(
            uvicorn.Config(
                app,
                http=create_protocol(settings, clock),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                # Nothing depends on the client's address, so none is read from a header either.
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=round(settings.idle_timeout_seconds),
                timeout_graceful_shutdown=round(settings.shutdown_grace_seconds),
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Call `when_ready` once the server accepts connections."""
        await super().startup(sockets)
        # Objects created at startup stay. Collecting over them again would be wasted time.
        gc.collect()
        gc.freeze()
        self._when_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain the application first. Its long-lived streams would use up the whole grace period."""
        self._app.drain()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture signals as uvicorn does, without raising them again at the end: a requested stop is no failure."""
        handlers = {which: signal.signal(which, self.handle_exit) for which in STOP_SIGNALS}
        try:
            yield
        finally:
            for which, handler in handlers.items():
                signal.signal(which, handler)


class Workers:
    """Processes on one listening socket: forked before any event loop or thread exists, restarted when they die."""

    def __init__(self, work: Callable[[], int]) -> None:
        self._work = work
        self._children: set[int] = set()
        self._stopping = False
        # Only the parent holds the write end: when it dies, for whatever reason, the children read end of file.
        self._parent_pipe, self._parent_pipe_writer = os.pipe()

    def run(self, count: int) -> int:
        """Run `work` in `count` processes until a stop signal, and return the exit code.

        A child that dies is restarted. One that can't start stops the others.
        """
        for which in STOP_SIGNALS:
            signal.signal(which, self._stop)
        for _ in range(count):
            self._start()
        worst = 0
        while self._children:
            child, status = os.wait()
            self._children.discard(child)
            code = os.waitstatus_to_exitcode(status)
            if code == CANNOT_START and not self._stopping:
                self._stop(signal.SIGTERM, None)
            if self._stopping:
                # It was stopped before its own handler was installed.
                worst = max(worst, 0 if code == -signal.SIGTERM else abs(code))
                continue
            time.sleep(RESTART_SECONDS)
            self._start()
        return worst

    def _start(self) -> None:
        """Fork one child, unless stopped meanwhile."""
        if self._stopping:
            return
        sys.stdout.flush()
        sys.stderr.flush()
        # Blocked until parent and child have set up their handlers. A signal in between would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        child = os.fork()
        if child:
            self._children.add(child)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            return
        for which in STOP_SIGNALS:
            signal.signal(which, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        os.close(self._parent_pipe_writer)
        threading.Thread(target=self._exit_with_parent, daemon=True).start()
        code = 1
        try:
            code = self._work()
        except BaseException:  # noqa: BLE001 - the process ends here, and says why
            traceback.print_exc()
        finally:
            # Not `sys.exit`: the child must not run the parent's exit handlers.
            sys.stderr.flush()
            os._exit(code)

    def _exit_with_parent(self) -> None:
        os.read(self._parent_pipe, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def _stop(self, which: int, frame: FrameType | None) -> None:
        """Send SIGTERM to every child."""
        self._stopping = True
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
