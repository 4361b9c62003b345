"""`refdesk servers test`: connect to one server, as the desk would, and say what it is and what it offers."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from refdesk.cli.terminal import printable, say
from refdesk.config import Config, McpServerConfig
from refdesk.downstream.connection.connection import Connection
from refdesk.errors import RefdeskError, ServerAway

SHOWN_TOOLS = 10
"""How many tools are named; all are counted."""

LISTS = {"tools": "tools/list", "prompts": "prompts/list", "resources": "resources/list"}


class _Deaf:
    """Hears what belongs to no call, and needs none of it."""

    def noticed(self, connection: Connection, method: str, params: Mapping[str, Any]) -> None:
        """Nothing to do."""


def try_server(name: str, server: McpServerConfig, config: Config, as_json: bool) -> int:
    """Print what the server says of itself, or why it cannot be used."""
    # Whatever is logged on the way is in what is printed.
    logging.getLogger("refdesk").addHandler(logging.NullHandler())
    try:
        facts = asyncio.run(ask_server(name, server, config.downstream.protocol_version))
    except RefdeskError as error:
        if as_json:
            print(json.dumps({"name": name, "ok": False, "problem": error.detail}, indent=2, ensure_ascii=False))
        else:
            say(error.detail)
        return 1
    if as_json:
        print(json.dumps({"name": name, "ok": True, **facts}, indent=2, ensure_ascii=False))
    else:
        _print(name, facts)
    return 0


async def ask_server(name: str, server: McpServerConfig, version: str | None) -> dict[str, Any]:
    """What a server says of itself, over one connection that is tried once; raises RefdeskError when it cannot."""
    once = server.model_copy(update={"session": "pooled", "connect_tries": 1})
    started, connected = time.monotonic(), asyncio.Event()
    connection = Connection(
        name, once, protocol_version=version, heard=_Deaf(), changed=lambda one: _note(one, connected)
    )
    running = asyncio.create_task(connection.run())
    try:
        async with asyncio.timeout(server.connect_timeout_seconds + 1):
            await connected.wait()
        seconds = time.monotonic() - started
        if connection.status.state != "Running":
            raise ServerAway(connection.status.message or f"The server {name!r} cannot be connected to")
        return {"connect_seconds": round(seconds, 3), **await _offers(connection)}
    except TimeoutError:
        raise ServerAway(f"The server {name!r} did not answer in time") from None
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def _note(connection: Connection, connected: asyncio.Event) -> None:
    if connection.status.state in ("Running", "Error"):
        connected.set()


async def _offers(connection: Connection) -> dict[str, Any]:
    greeting = connection.greeting
    if greeting is None:
        raise ServerAway(f"The server {connection.name!r} did not introduce itself")
    lists = {
        member: await connection.list_all(method, member) if greeting.has(member) else []
        for member, method in LISTS.items()
    }
    return {
        "server": {key: greeting.info.get(key) for key in ("name", "title", "version") if greeting.info.get(key)},
        "protocol_version": greeting.version,
        "transport": connection.settings.kind,
        "capabilities": sorted(greeting.capabilities),
        **{member: len(entries) for member, entries in lists.items()},
        "first_tools": [str(tool.get("name")) for tool in lists["tools"][:SHOWN_TOOLS]],
    }


def _print(name: str, facts: Mapping[str, Any]) -> None:
    who = (
        " ".join(str(facts["server"].get(key, "")) for key in ("name", "version")).strip() or "a server without a name"
    )
    print(printable(f"{name}: {who}, connected in {facts['connect_seconds']:.3f} s over {facts['transport']}"))
    print(printable(f"  revision {facts['protocol_version']}, {', '.join(facts['capabilities']) or 'no capabilities'}"))
    print(f"  {facts['tools']} tools, {facts['prompts']} prompts, {facts['resources']} resources")
    more = facts["tools"] - len(facts["first_tools"])
    if facts["first_tools"]:
        print(printable(f"  {', '.join(facts['first_tools'])}{f' and {more} more' if more > 0 else ''}"))
