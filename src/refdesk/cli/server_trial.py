"""`refdesk servers test`: connect to one server as Refdesk would, and describe it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from refdesk.cli.load_config import load_settings
from refdesk.cli.servers import require_server
from refdesk.cli.terminal import print_json, print_message, sanitize
from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.files.servers_file import ServersFile, switched_on
from refdesk.downstream.session import ListName
from refdesk.errors import RefdeskError, ServerAway

MAX_LISTED_TOOLS = 10
"""Number of tools listed by name. All of them are counted."""

LISTS: tuple[ListName, ...] = ("tools", "prompts", "resources")


async def try_server(arguments: SimpleNamespace) -> int:
    """Print a description of the server, or why it can't be used, and return the exit code."""
    config, name = load_settings(arguments), arguments.name
    server = require_server(config, name)
    if not server.enabled and name not in config.mcpServers:
        server = switched_on(name, ServersFile(config.servers_path).entries()[name], os.environ)
    # The printed result already includes what would be logged.
    logging.getLogger("refdesk").addHandler(logging.NullHandler())
    try:
        facts = await probe_server(name, server, config.downstream.protocol_version)
    except RefdeskError as error:
        if arguments.json:
            print_json({"name": name, "ok": False, "problem": error.detail})
        else:
            print_message(error.detail)
        return 1
    if arguments.json:
        print_json({"name": name, "ok": True, **facts})
    else:
        _print(name, facts)
    return 0


async def probe_server(name: str, server: McpServerConfig, version: str | None) -> dict[str, Any]:
    """Describe a server over a single connection attempt; raise RefdeskError if it fails."""
    settings = server.model_copy(update={"session": "pooled", "connect_tries": 1})
    started, connected = time.monotonic(), asyncio.Event()

    def signal_settled(connection: Connection) -> None:
        if connection.status.state in ("Running", "Error"):
            connected.set()

    connection = Connection(
        name, settings, protocol_version=version, on_notification=lambda *_: None, on_status=signal_settled
    )
    running = asyncio.create_task(connection.run())
    try:
        async with asyncio.timeout(server.connect_timeout_seconds + 1):
            await connected.wait()
        seconds = time.monotonic() - started
        if connection.status.state != "Running":
            raise ServerAway(connection.status.message or f"Cannot connect to server {name!r}")
        return {"connect_seconds": round(seconds, 3), **await _describe_server(connection)}
    except TimeoutError:
        raise ServerAway(f"Server {name!r} did not answer in time") from None
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def _describe_server(connection: Connection) -> dict[str, Any]:
    greeting = connection.server_profile
    if greeting is None:
        raise ServerAway(f"Server {connection.name!r} did not complete the handshake")
    lists = {name: await connection.list_all(name) if greeting.has(name) else [] for name in LISTS}
    return {
        "server": {key: greeting.info.get(key) for key in ("name", "title", "version") if greeting.info.get(key)},
        "protocol_version": greeting.version,
        "transport": connection.settings.kind,
        "capabilities": sorted(greeting.capabilities),
        **{name: len(entries) for name, entries in lists.items()},
        "first_tools": [str(tool.get("name")) for tool in lists["tools"][:MAX_LISTED_TOOLS]],
    }


def _print(name: str, facts: Mapping[str, Any]) -> None:
    who = " ".join(str(facts["server"].get(key, "")) for key in ("name", "version")).strip() or "unnamed server"
    print(sanitize(f"{name}: {who}, connected in {facts['connect_seconds']:.3f} s over {facts['transport']}"))
    print(sanitize(f"  revision {facts['protocol_version']}, {', '.join(facts['capabilities']) or 'no capabilities'}"))
    print(f"  {facts['tools']} tools, {facts['prompts']} prompts, {facts['resources']} resources")
    more = facts["tools"] - len(facts["first_tools"])
    if facts["first_tools"]:
        print(sanitize(f"  {', '.join(facts['first_tools'])}{f' and {more} more' if more > 0 else ''}"))
