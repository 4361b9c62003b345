"""The ways in: the port, keys, and the clients that are set up."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit

from refdesk.cli.checks.finding import Finding, Situation, fail, ok, warn
from refdesk.config import McpServerConfig
from refdesk.config.server_entries import read_entries
from refdesk.downstream.files.client_files import ClientFile, find_servers, known_files, project_of
from refdesk.downstream.files.servers_file import is_this_desk
from refdesk.errors import ConfigError
from refdesk.policy.keys import FILE_NAME, KeyFile
from refdesk.version import __version__

OTHERS_MAY = stat.S_IRWXG | stat.S_IRWXO

OWN_NAME = "refdesk"
"""What `refdesk install` calls the desk unless told otherwise."""

OTHER_PORT = "choose another with --port or server.port, or stop what is there"


def port(situation: Situation) -> Sequence[Finding]:
    """Whether a desk runs at the address, or one could."""
    server, desk, url = situation.config.server, situation.desk, situation.config.own_url
    if desk is not None and desk.is_refdesk:
        if desk.version != __version__:
            text = f"Refdesk {desk.version} runs at {url}, and this is {__version__}"
            return [warn(text, "start the server anew to have it run this version")]
        return [ok(f"Refdesk {desk.version} runs at {url}"), *_complaints(desk.checks)]
    if desk is not None:
        return [fail(f"another program answers at {server.host}:{server.port}", OTHER_PORT)]
    if server.port == 0:
        return [ok("any free port is taken")]
    return [_bound(server.host, server.port)]


def _complaints(checks: dict[str, object]) -> Iterator[Finding]:
    """Parts of the running desk that are not well, by its own word."""
    for name, part in checks.items():
        if isinstance(part, dict) and part.get("state") not in ("ok", "closed", None) and name != "downstream":
            detail = f": {part['detail']}" if part.get("detail") else ""
            yield warn(f"the running desk says that {name} is {part['state']}{detail}", "its log says more")


def _bound(host: str, port: int) -> Finding:
    """Whether the address can be listened on; it is let go of at once."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(address)
    except OSError as error:
        return fail(f"{host}:{port} cannot be listened on: {error.strerror or error}", OTHER_PORT)
    return ok(f"{host}:{port} is free; `refdesk serve` starts a desk there")


def keys(situation: Situation) -> Sequence[Finding]:
    """Who may call, and whether that is what somebody would want."""
    return list(_keys(situation))


def _keys(situation: Situation) -> Iterator[Finding]:
    config = situation.config
    file = KeyFile(config.data_path / FILE_NAME)
    try:
        stored = file.read()
    except ConfigError as error:
        yield from (fail(problem, "mend the file, or put back a copy of it") for problem in error.problems)
        return
    count = len(stored) + len(config.auth.keys)
    if stored and file.path.stat().st_mode & OTHERS_MAY:
        yield warn(f"others on this machine may read {file.path}", f"chmod 600 {file.path}")
    if over := [key.name for key in stored if key.is_over(datetime.now(UTC))]:
        yield warn(f"expired: {', '.join(over)}", "`refdesk keys revoke NAME` takes a key out, `make` makes another")
    if config.auth.required:
        tokens = f", or an access token of {config.auth.oauth.issuer}" if config.auth.oauth.issuer else ""
        yield ok(f"a key is required, and {_there_are(count)}{tokens}")
    elif not config.server.is_loopback:
        yield warn("other machines may call without a key", "set MCP_AUTH_REQUIRED=true and `refdesk keys make NAME`")
    elif count:
        yield warn(
            f"{_there_are(count)} {'key' if count == 1 else 'keys'}, but none is required",
            "set auth.required (MCP_AUTH_REQUIRED=true)",
        )
    else:
        yield ok("no key is asked for, and only this machine can call")


def _there_are(count: int) -> str:
    return f"there {'is' if count == 1 else 'are'} {count}"


def clients(situation: Situation) -> Sequence[Finding]:
    """The clients whose files name this desk."""
    found = [finding for file in _files(situation) for finding in _client(file, situation)]
    return found or [ok("no client is set up yet; `refdesk install claude-code` sets one up")]


def _files(situation: Situation) -> Iterator[ClientFile]:
    files = known_files(situation.home, situation.cwd, sys.platform)
    yield from {file.path: file for file in files if os.path.exists(file.path)}.values()


def _client(file: ClientFile, situation: Situation) -> Iterator[Finding]:
    try:
        found = find_servers(file.path, situation.cwd)
    except ConfigError as error:
        yield from (warn(problem, f"mend it; {file.client} cannot read it either") for problem in error.problems)
        return
    for name, entry in (found.entries if found else {}).items():
        read = read_entries({name: entry}, situation.environ, source="", folder=situation.cwd)
        server = read.servers.get(name)
        if server is not None and (is_this_desk(server, situation.config) or name == OWN_NAME):
            yield _connection(file, name, server, situation)
        elif server is None and name == OWN_NAME:
            yield from (warn(f"{file.client} ({file.path}): {fault}", _again(file, situation)) for fault in read.faults)


def _again(file: ClientFile, situation: Situation) -> str:
    """The command that writes what a client's file says of the desk anew."""
    scope = "" if project_of(file.path, situation.home) is None else " --scope project"
    return f"`refdesk install {file.client}{scope}` sets it right"


def _connection(file: ClientFile, name: str, server: McpServerConfig, situation: Situation) -> Finding:
    """Whether what a client is told of the desk leads to one."""
    who = f"{file.client} ({file.path})"
    again = _again(file, situation)
    if server.command is not None:
        if shutil.which(server.command) is None:
            return fail(f"{who} starts {server.command}, which is not there", again)
        return ok(f"{who} starts the desk itself")
    if is_this_desk(server, situation.config):
        return ok(f"{who} calls {server.where}")
    if urlsplit(server.where).hostname in ("127.0.0.1", "localhost", "::1"):
        return warn(f"{who} calls {name!r} at {server.where}, and this desk is at {situation.config.own_url}", again)
    return ok(f"{who} calls a desk elsewhere, {server.where}")
