"""`refdesk servers import`: import the servers of other MCP clients and report a result for each."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from refdesk.cli.arguments import Misuse
from refdesk.cli.load_config import load_settings
from refdesk.cli.terminal import print_message, print_table
from refdesk.config import Config
from refdesk.config.server_entries import get_server_key, read_entries
from refdesk.config.variables import map_strings
from refdesk.downstream.files.client_files import (
    CLIENTS,
    NO_SERVERS,
    ClientFile,
    find_project_folder,
    find_servers,
    list_client_files,
)
from refdesk.downstream.files.servers_file import ServersFile, is_this_desk
from refdesk.errors import CannotOpen, ConfigError
from refdesk.validation import nearest_name

INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9._ -]+")
MAX_NAME_LENGTH = 64
"""Characters not allowed in a server name, and its maximum length."""

WORKSPACE = re.compile(r"\$\{(?:workspaceFolder|workspaceRoot)(?::[^{}]*)?\}")

MAX_DEPTH = 8


def import_servers(arguments: SimpleNamespace) -> int:
    """Import the servers of all files, and print a result for each."""
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
        return 0
    rows = [(one["name"], one["client"], one["outcome"], one["reason"] or "-") for one in results]
    print_table(("NAME", "FROM", "OUTCOME", "WHY"), rows)
    imported = sum(one["outcome"] == "imported" for one in results)
    would = "would be " if arguments.dry_run else ""
    print(f"{imported} of {len(results)} servers {would}imported.")
    return 0


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
