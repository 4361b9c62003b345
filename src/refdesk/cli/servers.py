"""`refdesk servers`: manage downstream MCP servers. A server on the same data picks changes up within seconds."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from refdesk.cli.arguments import Misuse
from refdesk.cli.load_config import load_settings
from refdesk.cli.running_desk import probe_desk
from refdesk.cli.terminal import print_json, print_message, print_result, print_table, sanitize
from refdesk.config.models import Config
from refdesk.config.placeholders import SERVER_VARIABLE, is_secret_name, map_strings
from refdesk.config.server_entries import ServerEntries, get_server_key, read_entries
from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.files.client_files import (
    CLIENTS,
    NO_SERVERS,
    ClientFile,
    find_project_folder,
    find_servers,
    list_client_files,
)
from refdesk.downstream.files.server_log import read_last_lines
from refdesk.downstream.files.servers_file import ServersFile, is_this_desk, require_own, switch, usable
from refdesk.downstream.fleet.refresh_requests import RefreshRequests
from refdesk.errors import CannotOpen, ConfigError, InvalidArguments, Problem
from refdesk.validation import nearest_name

INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9._ -]+")
MAX_NAME_LENGTH = 64
"""Characters not allowed in a server name, and its maximum length."""

WORKSPACE = re.compile(r"\$\{(?:workspaceFolder|workspaceRoot)(?::[^{}]*)?\}")

MAX_DEPTH = 8


def servers(arguments: SimpleNamespace) -> int:
    """Run `refdesk servers list`."""
    config = load_settings(arguments)
    stored = ServersFile(config.servers_path).read(os.environ)
    source = config.sources.get("mcpServers", "configuration")
    facts = [_describe(name, server, source) for name, server in config.mcpServers.items()]
    facts += [
        _describe(name, one, "servers.json") for name, one in stored.servers.items() if name not in config.mcpServers
    ]
    desk = probe_desk(config.own_url)
    live = desk.server_states if desk is not None and desk.is_refdesk else None
    for entry in facts:
        entry["live"] = live.get(entry["name"]) if live is not None else None
    problems = [str(fault) for fault in stored.faults]
    problems += [f"{entry['name']}: {entry['problem']}; the server is disabled" for entry in facts if entry["problem"]]
    if arguments.json:
        print_json({"running": live is not None, "servers": facts, "problems": problems})
        return 1 if problems else 0
    if live is None:
        print_message(f"no server runs at {config.own_url}; showing the configuration")
    print_table(("NAME", "TRANSPORT", "STATE", "SOURCE", "WHERE"), [_format_row(entry) for entry in facts])
    for problem in problems:
        print_message(problem)
    return 1 if problems else 0


def _describe(name: str, server: McpServerConfig, source: str) -> dict[str, Any]:
    return {
        "name": name,
        "transport": server.kind,
        "where": server.where,
        "enabled": server.enabled,
        "session": server.session,
        "source": source,
        "problem": server.problem,
    }


def _format_row(entry: Mapping[str, Any]) -> Sequence[str]:
    live = entry["live"]
    state = "enabled" if entry["enabled"] else "unusable" if entry["problem"] else "disabled"
    if isinstance(live, Mapping) and isinstance(live.get("state"), str):
        message = live.get("message")
        state = f"{live['state']}({message})" if message else live["state"]
    return entry["name"], entry["transport"], state, entry["source"], entry["where"]


def add(arguments: SimpleNamespace) -> None:
    """Run `refdesk servers add`."""
    config = load_settings(arguments)
    file = ServersFile(config.servers_path)
    name, entry = arguments.name, _build_entry(arguments)
    if name in config.mcpServers:
        rule = f"the configuration already has a server named {name!r}; change it there, or choose another name"
        raise InvalidArguments([Problem("NAME", rule)])
    server = usable(name, entry, os.environ)
    if is_this_desk(server, config):
        raise InvalidArguments([Problem("NAME", "this is Refdesk itself")])
    file.add({name: entry}, replace=arguments.replace)
    for key, value in {**entry.get("env", {}), **entry.get("headers", {})}.items():
        if is_secret_name(key) and not SERVER_VARIABLE.search(value):
            variable = re.sub(r"\W", "_", key).upper()
            print_message(f"the value of {key} is stored in {file.path}; use '${{{variable}}}' to keep it out")
    print_result({"added": name, **_describe(name, server, "servers.json")}, f"Added server {name!r}.", arguments.json)


def _build_entry(arguments: SimpleNamespace) -> dict[str, Any]:
    """Build the server's entry for the servers file from the options."""
    if bool(arguments.command) == bool(arguments.url):
        raise Misuse("URL: give either a URL, or -- and a command")
    entry: dict[str, Any] = {"url": arguments.url}
    if arguments.command:
        program, *words = arguments.command
        entry = {"command": program, "args": words}
    tool, _, argument = (arguments.docs or "").partition(":")
    options = {
        "type": arguments.type,
        "env": _parse_pairs("--env", arguments.env),
        "headers": _parse_pairs("--header", arguments.header),
        "cwd": arguments.cwd and os.path.abspath(os.path.expanduser(arguments.cwd)),
        "docs": arguments.docs and {"tool": tool, **({"argument": argument} if argument else {})},
        "session": "short" if arguments.short else None,
    }
    return entry | {key: value for key, value in options.items() if value}


def _parse_pairs(option: str, values: Iterable[str]) -> dict[str, str]:
    """Parse `NAME=VALUE`, or `NAME: VALUE` for headers. Errors don't repeat the value, as it may be a secret."""
    pairs = {}
    for number, pair in enumerate(values, 1):
        signs = [pair.find(sign) for sign in "=:" if sign in pair] if option == "--header" else [pair.find("=")]
        end = min(signs, default=-1)
        if end < 1:
            raise Misuse(f"{option}: number {number} is not NAME=VALUE")
        pairs[pair[:end].strip()] = pair[end + 1 :].strip()
    return pairs


def change(arguments: SimpleNamespace) -> None:
    """Run `refdesk servers remove`, `enable` or `disable`."""
    config, name, action = load_settings(arguments), arguments.name, arguments.action
    file = ServersFile(config.servers_path)
    if action == "remove":
        require_own(config, name, file.entries())
        file.remove(name)
    else:
        switch(file, config, os.environ, name, on=action == "enable")
    print_result({f"{action}d": name}, f"{action.capitalize()}d server {sanitize(name)!r}.", arguments.json)


def refresh(arguments: SimpleNamespace) -> None:
    """Run `refdesk servers refresh`."""
    config, name = load_settings(arguments), arguments.name
    require_server(config, name)
    RefreshRequests(config.data_path / "downstream").add(name)
    desk = probe_desk(config.own_url)
    if desk is None or not desk.is_refdesk:
        print_message(f"no server runs at {config.own_url}; the lists are refreshed when it starts")
    print_result({"refreshed": name}, f"Requested the lists of server {sanitize(name)!r} again.", arguments.json)


def logs(arguments: SimpleNamespace) -> None:
    """Run `refdesk servers logs`."""
    config, name = load_settings(arguments), arguments.name
    server = require_server(config, name)
    lines = read_last_lines(config.data_path / "downstream", name, arguments.lines)
    if arguments.json:
        print_json({"name": name, "lines": lines})
    elif lines:
        print("\n".join(map(sanitize, lines)))
    else:
        has_output = server.kind == "stdio"
        why = "has not written anything yet" if has_output else f"uses {server.kind}, so it has no standard error"
        print_message(f"{name!r} {why}")


def require_server(config: Config, name: str) -> McpServerConfig:
    """Return a usable server by name; raise InvalidArguments with a suggestion or with its faults."""
    stored = ServersFile(config.servers_path).read(os.environ) if name not in config.mcpServers else ServerEntries()
    server = config.mcpServers.get(name) or stored.servers.get(name)
    if server is not None and server.problem is None:
        return server
    if server is not None:
        raise InvalidArguments([Problem("NAME", f"{name!r} cannot be started: {server.problem}")])
    if faults := stored.broken.get(name):
        raise InvalidArguments([Problem("NAME", "; ".join(map(str, faults)))])
    nearest = nearest_name(name, [*config.mcpServers, *stored.servers])
    hint = f"did you mean {nearest!r}?" if nearest else "`refdesk servers` lists them"
    raise InvalidArguments([Problem("NAME", f"no server named {sanitize(name)[:80]!r}; {hint}")])


# Import


def import_servers(arguments: SimpleNamespace) -> None:
    """Run `refdesk servers import`: import the servers of all files, and print a result for each."""
    config = load_settings(arguments)
    file = ServersFile(config.servers_path)
    importer = _Importer(config, file.entries(), arguments.replace)
    results: list[dict[str, str]] = []
    for source in _iter_files(arguments):
        try:
            found = find_servers(source.path, Path.cwd())
            if found is None and arguments.file:
                raise ConfigError([f"{source.path}: {NO_SERVERS}"])
        except ConfigError as error:
            if arguments.file:
                raise
            for problem in error.problems:
                print_message(problem)
            continue
        if found is None:
            continue
        for name, entry in found.entries.items():
            if not arguments.only or name in arguments.only:
                results.append(importer.add(name, entry, source))
        for folder, names in found.project_servers.items():
            reason = f"{source.client} uses it only in {folder}; import it there"
            results += [_build_result(name, source, "skipped", reason) for name in names if not arguments.only]
    if not results:
        raise CannotOpen("no servers found in the files of other clients; name a file, or use `refdesk servers add`")
    if importer.accepted and not arguments.dry_run:
        file.add(importer.accepted, replace=arguments.replace)
    if arguments.json:
        print(json.dumps({"dry_run": arguments.dry_run, "servers": results}, indent=2))
        return
    rows = [(one["name"], one["client"], one["outcome"], one["reason"] or "-") for one in results]
    print_table(("NAME", "FROM", "OUTCOME", "WHY"), rows)
    imported = sum(one["outcome"] == "imported" for one in results)
    would = "would be " if arguments.dry_run else ""
    print(f"{imported} of {len(results)} servers {would}imported.")


def _iter_files(arguments: SimpleNamespace) -> Iterator[ClientFile]:
    client = arguments.client
    if client is not None and client not in CLIENTS:
        nearest = nearest_name(client.lower(), CLIENTS)
        hint = f"did you mean {nearest}?" if nearest else f"known clients: {', '.join(CLIENTS)}"
        raise Misuse(f"--from: unknown client {client[:80]!r}; {hint}")
    if arguments.file:
        yield ClientFile(client or "file", Path(arguments.file))
        return
    for file in list_client_files(_get_home(), Path.cwd(), sys.platform):
        if client in (None, file.client) and os.path.exists(file.path):
            yield file


def _get_home() -> Path:
    return Path(os.path.expanduser("~"))


def _build_result(name: str, file: ClientFile, outcome: str, reason: str) -> dict[str, str]:
    return {"name": name, "client": file.client, "file": str(file.path), "outcome": outcome, "reason": reason}


@dataclass(slots=True)
class _Importer:
    """Decides for each server whether to import it, and collects the accepted ones."""

    config: Config
    existing: Mapping[str, Any]
    replace: bool
    accepted: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def add(self, name: str, entry: Any, file: ClientFile) -> dict[str, str]:
        """Accept or skip one server, and return the result."""
        own_name = INVALID_CHARACTERS.sub("-", name)[:MAX_NAME_LENGTH].strip(" -") or name
        project = find_project_folder(file.path, _get_home())
        folder = project or Path.cwd()
        read = read_entries({own_name: entry}, os.environ, source="", folder=folder)
        if read.faults:
            faults = (f"{get_server_key(fault, own_name)}: {fault.text}".lstrip(": ") for fault in read.faults)
            return _build_result(own_name, file, "skipped", "; ".join(faults))
        if is_this_desk(read.servers[own_name], self.config):
            return _build_result(own_name, file, "skipped", "this is Refdesk itself")
        written = _resolve_paths(read.written[own_name], folder, project)
        if reason := self._find_conflict(own_name, written):
            return _build_result(own_name, file, "skipped", reason)
        self.accepted[own_name] = written
        notes = [f"{get_server_key(fault, own_name)} {fault.text}" for fault in read.warnings]
        notes += [f"named {name!r} there"] if own_name != name else []
        return _build_result(own_name, file, "imported", "; ".join(notes))

    def _find_conflict(self, name: str, written: Mapping[str, Any]) -> str:
        if name in self.config.mcpServers:
            return "the configuration has a server with this name"
        if name in self.accepted:
            same = self.accepted[name] == written
            return "identical to an imported server" if same else "another server with this name was imported"
        if name not in self.existing:
            return ""
        if self.existing[name] == written:
            return "already present"
        return "" if self.replace else "another server has this name; --replace replaces it"


def _resolve_paths(written: Mapping[str, Any], folder: Path, project: Path | None) -> dict[str, Any]:
    """Make the entry's paths independent of the client's working folder. Variables stay unexpanded."""
    entry: dict[str, Any] = map_strings(written, lambda text: WORKSPACE.sub(lambda _: str(folder), text), MAX_DEPTH)
    if isinstance(entry.get("envFile"), str):
        entry["envFile"] = str(folder / os.path.expanduser(entry["envFile"]))
    if project is not None and "command" in entry:
        entry["cwd"] = str(project / os.path.expanduser(entry.get("cwd", "")))
    return entry
