"""Checks of downstream MCP servers.

If Refdesk runs, its reported states are used: a second copy of a server could interfere with the first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from refdesk.cli.checks.finding import CheckContext, Finding, fail, ok, warn
from refdesk.cli.server_trial import probe_server
from refdesk.config import McpServerConfig
from refdesk.downstream.files.servers_file import load_servers
from refdesk.errors import ConfigError, RefdeskError

MAX_CONCURRENT = 4
"""Servers started at the same time. Each is a process, and a machine has few cores."""

CLOSING_SECONDS = 2.0
"""Part of the check's time reserved for stopping the server."""


async def check_servers(context: CheckContext) -> Sequence[Finding]:
    """Check each server."""
    try:
        found = load_servers(context.config, context.environ)
    except ConfigError as error:
        return [fail(problem, "`refdesk servers` lists them; fix or remove it") for problem in error.problems]
    if not found.servers:
        return [ok("no servers; `refdesk servers add` adds one")]
    # The findings already include what would be logged.
    logging.getLogger("refdesk").addHandler(logging.NullHandler())
    live, slots = _get_live_states(context), asyncio.Semaphore(MAX_CONCURRENT)

    async def check(name: str, server: McpServerConfig) -> Finding:
        async with slots:
            return await _check_server(name, server, live.get(name), context)

    findings = await asyncio.gather(*(check(name, server) for name, server in found.servers.items()))
    return [*findings, *(warn(one, "remove or rename it") for one in found.warnings)]


def _get_live_states(context: CheckContext) -> Mapping[str, Any]:
    part = context.desk.checks.get("downstream") if context.desk else None
    states = part.get("servers") if isinstance(part, dict) else None
    return states if isinstance(states, dict) else {}


async def _check_server(name: str, server: McpServerConfig, live: Any, context: CheckContext) -> Finding:
    if not server.enabled:
        return ok(f"{name}: disabled")
    log = f"`refdesk servers logs {name}` shows its output"
    if isinstance(live, dict):
        state, why = live.get("state"), f": {live['message']}" if live.get("message") else ""
        text = f"{name}: {state}{why}, reported by the running server"
        return fail(text, log) if state == "Error" else ok(text)
    if server.command is not None and _find_program(server, context) is None:
        return fail(f"{name}: program {server.command!r} not found", "install it, or use its full path")
    try:
        async with asyncio.timeout(max(context.timeout - CLOSING_SECONDS, 1)):
            facts = await probe_server(name, server, context.config.downstream.protocol_version)
    except RefdeskError as error:
        return fail(f"{name}: {error.detail}", f"`refdesk servers test {name}` tries again")
    except TimeoutError:
        return fail(f"{name}: timed out", f"`refdesk servers test {name}` waits longer")
    return ok(f"{name}: {facts['tools']} tools, connected in {facts['connect_seconds']:.1f} s")


def _find_program(server: McpServerConfig, context: CheckContext) -> str | None:
    """Return the path of the server's program, looked up as when starting it."""
    path = server.env["PATH"].get_secret_value() if "PATH" in server.env else context.environ.get("PATH")
    folder = str(server.cwd) if server.cwd else os.getcwd()
    command = os.path.expanduser(server.command or "")
    return shutil.which(os.path.join(folder, command) if os.sep in command else command, path=path)
