"""A desk with the fixture on it, behind the product's own HTTP door; its URL is printed once it answers."""

from __future__ import annotations

import argparse
import sys
import tempfile
from typing import Any

import uvloop

from refdesk.app import open_desk
from refdesk.config import load
from refdesk.inbound.serve import bind, serve_http, url_of
from tests.conformance.fixture import register_fixture


def main() -> None:
    """Serve until told to stop by a signal."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="the port to listen on; 0, the default, takes a free one")
    parser.add_argument("--stateless", action="store_true", help="serve without sessions, from the plain lane")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="refdesk-conformance-") as folder:
        uvloop.run(_serve({"server.port": arguments.port, "server.stateless": arguments.stateless, "data_dir": folder}))


async def _serve(settings: dict[str, Any]) -> None:
    config = load(None, {}, {"server.host": "127.0.0.1"} | settings)
    listener = bind(config.server)

    def announce() -> None:
        sys.stdout.write(f"{url_of(listener)}/mcp\n")
        sys.stdout.flush()

    async with open_desk(config) as desk:
        register_fixture(desk.registry)
        await serve_http(desk, config, listener, announce)


if __name__ == "__main__":
    main()
