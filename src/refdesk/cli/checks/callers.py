"""Checks of access: the port, API keys, and configured clients."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit

from refdesk.cli.checks.finding import CheckContext, Finding, fail, ok, warn
from refdesk.config import McpServerConfig
from refdesk.config.server_entries import read_entries
from refdesk.downstream.files.client_files import ClientFile, find_project_folder, find_servers, list_client_files
from refdesk.downstream.files.servers_file import is_this_desk
from refdesk.errors import ConfigError
from refdesk.policy.keys import FILE_NAME, KeyFile
from refdesk.version import __version__

GROUP_OR_OTHER_ACCESS = stat.S_IRWXG | stat.S_IRWXO

DEFAULT_NAME = "refdesk"
"""Server name that `refdesk install` uses by default."""

PORT_FIX = "choose another with --port or server.port, or stop that program"


def check_port(context: CheckContext) -> Sequence[Finding]:
    """Check whether Refdesk runs at the configured address, or could."""
    server, desk, url = context.config.server, context.desk, context.config.own_url
    if desk is not None and desk.is_refdesk:
        if desk.version != __version__:
            text = f"Refdesk {desk.version} runs at {url}, but this is {__version__}"
            return [warn(text, "restart the server to run this version")]
        return [ok(f"Refdesk {desk.version} runs at {url}"), *_check_components(desk.checks)]
    if desk is not None:
        return [fail(f"another program answers at {server.host}:{server.port}", PORT_FIX)]
    if server.port == 0:
        return [ok("the server will use any free port")]
    return [_check_address(server.host, server.port)]


def _check_components(checks: dict[str, object]) -> Iterator[Finding]:
    """Yield a warning for each component that the running server reports as unhealthy."""
    for name, part in checks.items():
        if isinstance(part, dict) and part.get("state") not in ("ok", "closed", None) and name != "downstream":
            detail = f": {part['detail']}" if part.get("detail") else ""
            yield warn(f"the running server reports {name} as {part['state']}{detail}", "see its log")


def _check_address(host: str, port: int) -> Finding:
    """Check that the address can be bound, releasing it at once."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(address)
    except OSError as error:
        return fail(f"cannot listen on {host}:{port}: {error.strerror or error}", PORT_FIX)
    return ok(f"{host}:{port} is free; `refdesk serve` starts the server there")


def check_keys(context: CheckContext) -> Sequence[Finding]:
    """Check the API keys and whether anonymous access is intended."""
    return list(_iter_key_findings(context))


def _iter_key_findings(context: CheckContext) -> Iterator[Finding]:
    config = context.config
    file = KeyFile(config.data_path / FILE_NAME)
    try:
        stored = file.read()
    except ConfigError as error:
        yield from (fail(problem, "fix the file, or restore a backup") for problem in error.problems)
        return
    count = len(stored) + len(config.auth.keys)
    if stored and file.path.stat().st_mode & GROUP_OR_OTHER_ACCESS:
        yield warn(f"other users on this machine can read {file.path}", f"chmod 600 {file.path}")
    if expired := [key.name for key in stored if key.is_over(datetime.now(UTC))]:
        yield warn(f"expired: {', '.join(expired)}", "run `refdesk keys revoke NAME`, then `refdesk keys make NAME`")
    if config.auth.required:
        tokens = f", or an access token of {config.auth.oauth.issuer}" if config.auth.oauth.issuer else ""
        yield ok(f"a key is required; {_format_there_are(count)}{tokens}")
    elif not config.server.is_loopback:
        yield warn(
            "other machines can call without a key", "set MCP_AUTH_REQUIRED=true and run `refdesk keys make NAME`"
        )
    elif count:
        yield warn(
            f"{_format_there_are(count)} {'key' if count == 1 else 'keys'}, but none is required",
            "set auth.required (MCP_AUTH_REQUIRED=true)",
        )
    else:
        yield ok("no key is required, and only this machine can call")


def _format_there_are(count: int) -> str:
    return f"there {'is' if count == 1 else 'are'} {count}"


def check_clients(context: CheckContext) -> Sequence[Finding]:
    """Check the clients whose settings name this server."""
    found = [finding for file in _list_client_files(context) for finding in _check_client(file, context)]
    return found or [ok("no client is configured; `refdesk install claude-code` configures one")]


def _list_client_files(context: CheckContext) -> Iterator[ClientFile]:
    files = list_client_files(context.home, context.cwd, sys.platform)
    yield from {file.path: file for file in files if os.path.exists(file.path)}.values()


def _check_client(file: ClientFile, context: CheckContext) -> Iterator[Finding]:
    try:
        found = find_servers(file.path, context.cwd)
    except ConfigError as error:
        yield from (warn(problem, f"fix it; {file.client} cannot read it either") for problem in error.problems)
        return
    for name, entry in (found.entries if found else {}).items():
        read = read_entries({name: entry}, context.environ, source="", folder=context.cwd)
        server = read.servers.get(name)
        if server is not None and (is_this_desk(server, context.config) or name == DEFAULT_NAME):
            yield _check_connection(file, name, server, context)
        elif server is None and name == DEFAULT_NAME:
            yield from (
                warn(f"{file.client} ({file.path}): {fault}", _suggest_reinstall(file, context))
                for fault in read.faults
            )


def _suggest_reinstall(file: ClientFile, context: CheckContext) -> str:
    """Return the command that rewrites a client's entry."""
    scope = "" if find_project_folder(file.path, context.home) is None else " --scope project"
    return f"run `refdesk install {file.client}{scope}`"


def _check_connection(file: ClientFile, name: str, server: McpServerConfig, context: CheckContext) -> Finding:
    """Check that a client's entry leads to this server."""
    who = f"{file.client} ({file.path})"
    fix = _suggest_reinstall(file, context)
    if server.command is not None:
        if shutil.which(server.command) is None:
            return fail(f"{who} starts {server.command}, which does not exist", fix)
        return ok(f"{who} starts Refdesk itself")
    if is_this_desk(server, context.config):
        return ok(f"{who} calls {server.where}")
    if urlsplit(server.where).hostname in ("127.0.0.1", "localhost", "::1"):
        return warn(f"{who} calls {name!r} at {server.where}, but Refdesk is at {context.config.own_url}", fix)
    return ok(f"{who} calls another Refdesk at {server.where}")
