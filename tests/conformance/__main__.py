"""A desk with the fixture on it, behind the product's own HTTP door; its URL is printed once it answers.

With `--through URL` it has nothing on it, and such a desk behind it: a gateway that is to be as good.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from typing import Any

import uvloop

from refdesk.app import Desk, open_desk
from refdesk.config.loading import load
from refdesk.inbound.http_server import bind, serve_http, url_of
from tests.conformance.fixture import register_fixture
from tests.waiting import PATIENCE_SECONDS


def main() -> None:
    """Serve until told to stop by a signal."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="the port to listen on; 0, the default, takes a free one")
    parser.add_argument("--stateless", action="store_true", help="serve without sessions")
    parser.add_argument("--through", metavar="URL", help="be a gateway to the server there")
    parser.add_argument("--revision", help="the revision that the gateway speaks to it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="refdesk-conformance-") as folder:
        own = {"server.port": arguments.port, "server.stateless": arguments.stateless, "data_dir": folder}
        uvloop.run(_serve(own | _gateway(arguments.through, arguments.revision)))


def _gateway(url: str | None, revision: str | None) -> dict[str, Any]:
    """What makes a desk a gateway whose names are those of the server behind it."""
    if url is None:
        return {}
    given = {"mcpServers": {"fixture": {"url": url}}, "downstream.prefix": "never", "toolsets": ["downstream"]}
    return given | ({"downstream.protocol_version": revision} if revision else {})


async def _serve(settings: dict[str, Any]) -> None:
    config = load(None, {}, {"server.host": "127.0.0.1"} | settings)
    listener = bind(config.server)

    def announce() -> None:
        sys.stdout.write(f"{url_of(listener)}/mcp\n")
        sys.stdout.flush()

    async with open_desk(config) as desk:
        if config.mcpServers:
            await _wait_until_connected(desk)
        else:
            register_fixture(desk.registry)
        await serve_http(desk, config, [listener], announce)


async def _wait_until_connected(desk: Desk) -> None:
    """Wait until the server behind the desk is there."""
    changed = asyncio.Event()
    desk.registry.listen(lambda event: changed.set())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while "test_simple_text" not in desk.registry.tools:
            await changed.wait()
            changed.clear()


if __name__ == "__main__":
    main()
