"""The MCP servers behind the desk. Where a desk runs, it is asked: a second copy of a server could be in its way."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from refdesk.cli.checks.finding import Finding, Situation, fail, ok, warn
from refdesk.cli.server_trial import ask_server
from refdesk.config import McpServerConfig
from refdesk.downstream.files.servers_file import combined
from refdesk.errors import ConfigError, RefdeskError

AT_A_TIME = 4
"""Servers that are started together: each is a process, and a machine has few cores."""

CLOSING_SECONDS = 2.0
"""What is left of a check's time for the server to end."""


async def servers(situation: Situation) -> Sequence[Finding]:
    """Each of them."""
    try:
        found = combined(situation.config, situation.environ)
    except ConfigError as error:
        return [fail(problem, "`refdesk servers` lists them; correct it, or remove it") for problem in error.problems]
    if not found.servers:
        return [ok("there are none; `refdesk servers add` puts one behind the desk")]
    # What is logged on the way is in what is told.
    logging.getLogger("refdesk").addHandler(logging.NullHandler())
    live, turns = _live(situation), asyncio.Semaphore(AT_A_TIME)

    async def look(name: str, server: McpServerConfig) -> Finding:
        async with turns:
            return await _looked_at(name, server, live.get(name), situation)

    looked = await asyncio.gather(*(look(name, server) for name, server in found.servers.items()))
    return [*looked, *(warn(one, "take it out, or rename it") for one in found.warnings)]


def _live(situation: Situation) -> Mapping[str, Any]:
    part = situation.desk.checks.get("downstream") if situation.desk else None
    told = part.get("servers") if isinstance(part, dict) else None
    return told if isinstance(told, dict) else {}


async def _looked_at(name: str, server: McpServerConfig, live: Any, situation: Situation) -> Finding:
    if not server.enabled:
        return ok(f"{name}: switched off")
    log = f"`refdesk servers logs {name}` shows what it wrote"
    if isinstance(live, dict):
        state, why = live.get("state"), f": {live['message']}" if live.get("message") else ""
        told = f"{name}: {state}{why}, by the running desk"
        return fail(told, log) if state == "Error" else ok(told)
    if server.command is not None and _program(server, situation) is None:
        return fail(f"{name}: there is no program {server.command!r}", "install it, or name it by its full path")
    try:
        async with asyncio.timeout(max(situation.seconds - CLOSING_SECONDS, 1)):
            facts = await ask_server(name, server, situation.config.downstream.protocol_version)
    except RefdeskError as error:
        return fail(f"{name}: {error.detail}", f"`refdesk servers test {name}` tries it again")
    except TimeoutError:
        return fail(f"{name}: did not answer in time", f"`refdesk servers test {name}` gives it longer")
    return ok(f"{name}: {facts['tools']} tools, connected in {facts['connect_seconds']:.1f} s")


def _program(server: McpServerConfig, situation: Situation) -> str | None:
    """Where its program is, as it will be looked for."""
    path = server.env["PATH"].get_secret_value() if "PATH" in server.env else situation.environ.get("PATH")
    folder = str(server.cwd) if server.cwd else os.getcwd()
    command = os.path.expanduser(server.command or "")
    return shutil.which(os.path.join(folder, command) if os.sep in command else command, path=path)
