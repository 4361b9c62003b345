"""A collector on loopback: takes what is posted to it, keeps it, and can be told to be slow or broken."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from threading import Event, Thread

from tests.waiting import PATIENCE_SECONDS


@dataclass(frozen=True)
class Posted:
    """A request that came in."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """What has come in, in order; `status` is what the next is answered, once `open` is set."""

    url: str = ""
    status: int = 200
    posted: Queue[Posted] = field(default_factory=Queue)
    open: Event = field(default_factory=Event)

    def next(self) -> Posted:
        """Wait for the next request and return it."""
        return self.posted.get(timeout=PATIENCE_SECONDS)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that listens on a free port."""
    receiver = Receiver()
    receiver.open.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.posted.put(Posted(self.path, dict(self.headers), body))
            receiver.open.wait()
            self.send_response(receiver.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a test's output is its own."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A sender that has given up and gone away is what some tests are about."""

    with Server(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            receiver.open.set()
            server.shutdown()
            thread.join()
