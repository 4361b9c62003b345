"""HTTP server: socket, signals and graceful shutdown."""

from __future__ import annotations

import contextlib
import errno
import gc
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn

from refdesk.config import Config, ServerConfig
from refdesk.errors import ConfigError
from refdesk.inbound.desk_interface import Services
from refdesk.inbound.http import HttpApp
from refdesk.inbound.uvicorn_protocol import Clock, create_protocol

BACKLOG = 2048


def bind(settings: ServerConfig) -> socket.socket:
    """Open the listening socket. Raises ConfigError if the address isn't available."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        where = f"{settings.host}:{settings.port}"
        detail = f"server.host: cannot listen on {where}: {error.strerror or error}"
        if error.errno == errno.EADDRINUSE:
            detail = f"server.port: {where} is in use by another program; stop it or choose another with --port"
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
    listener: socket.socket,
    when_ready: Callable[[], None],
    state_key: bytes | None = None,
) -> None:
    """Serve until a signal arrives. `state_key` is described in `McpDispatcher`."""
    async with open_http(services, config, listener.getsockname()[1], state_key) as app:
        await HttpServer(app, config.server, when_ready).serve(sockets=[listener])


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
        handlers = {which: signal.signal(which, self.handle_exit) for which in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for which, handler in handlers.items():
                signal.signal(which, handler)
