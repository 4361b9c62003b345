"""`refdesk servers import`: take over what other MCP clients are set up with, and say what became of each server."""

from __future__ import annotations

import json
import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from refdesk.cli.parser.arguments import Misuse
from refdesk.cli.terminal import print_table, say
from refdesk.config import Config
from refdesk.config.server_entries import Entries, key_within, read_entries
from refdesk.config.variables import map_texts
from refdesk.downstream.files.client_files import CLIENTS, NO_SERVERS, ClientFile, find_servers, known_files, project_of
from refdesk.downstream.files.servers_file import ServersFile, is_this_desk
from refdesk.errors import CannotOpen, ConfigError
from refdesk.validation import nearest_name

OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9._ -]+")
LONGEST_NAME = 64
"""What a name here must not hold, and how long it may be."""

WORKSPACE = re.compile(r"\$\{(?:workspaceFolder|workspaceRoot)(?::[^{}]*)?\}")

DEEPEST = 8


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one server of a file."""

    name: str
    client: str
    file: str
    outcome: str
    reason: str = ""


@dataclass(slots=True)
class _Import:
    """Servers as they come, and those that are to be kept."""

    config: Config
    there: Mapping[str, Any]
    is_replacing: bool
    taken: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def take(self, name: str, entry: Any, file: ClientFile) -> Outcome:
        """Decide about one server."""
        own_name = OTHER_CHARACTERS.sub("-", name)[:LONGEST_NAME].strip(" -") or name
        project = project_of(file.path, _home())
        folder = project or Path.cwd()
        read = read_entries({own_name: entry}, os.environ, source="", folder=folder)
        if reason := self._objection(own_name, read):
            return Outcome(own_name, file.client, str(file.path), "skipped", reason)
        written = _settled(read.written[own_name], folder, project)
        if reason := self._conflict(own_name, written):
            return Outcome(own_name, file.client, str(file.path), "skipped", reason)
        self.taken[own_name] = written
        notes = [f"{key_within(fault, own_name)} {fault.text}" for fault in read.warnings]
        notes += [f"named {name!r} there"] if own_name != name else []
        return Outcome(own_name, file.client, str(file.path), "imported", "; ".join(notes))

    def _objection(self, name: str, read: Entries) -> str:
        if read.faults:
            return "; ".join(f"{key_within(fault, name)}: {fault.text}".lstrip(": ") for fault in read.faults)
        return "this is the desk itself" if is_this_desk(read.servers[name], self.config) else ""

    def _conflict(self, name: str, written: Mapping[str, Any]) -> str:
        if name in self.config.mcpServers:
            return "the configuration has a server of this name"
        if name in self.taken:
            same = self.taken[name] == written
            return "the same as one that was imported" if same else "another of this name was imported"
        if name not in self.there:
            return ""
        if self.there[name] == written:
            return "it is there already"
        return "" if self.is_replacing else "there is another server of this name; --replace takes this one"


def import_servers(file: ServersFile, config: Config, arguments: Namespace) -> int:
    """Go through the files, keep what can be kept, and print what became of each server."""
    deciding = _Import(config, file.entries(), arguments.replace)
    outcomes = [
        outcome
        for source in _sources(arguments)
        for outcome in _read(source, deciding, arguments.only, is_named=bool(arguments.file))
    ]
    if not outcomes:
        raise CannotOpen(
            "no servers were found in the files of other clients; name a file, or see `refdesk servers add`"
        )
    if deciding.taken and not arguments.dry_run:
        file.add(deciding.taken, replace=arguments.replace)
    _print(outcomes, arguments)
    return 0


def _sources(arguments: Namespace) -> Iterator[ClientFile]:
    client = arguments.client
    if client is not None and client not in CLIENTS:
        nearest = nearest_name(client.lower(), CLIENTS)
        hint = f"did you mean {nearest}?" if nearest else f"there are {', '.join(CLIENTS)}"
        raise Misuse(f"--from: {client[:80]!r} is not known; {hint}")
    if arguments.file:
        yield ClientFile(client or "file", Path(arguments.file))
        return
    for file in known_files(_home(), Path.cwd(), sys.platform):
        if client in (None, file.client) and os.path.exists(file.path):
            yield file


def _home() -> Path:
    return Path(os.path.expanduser("~"))


def _read(file: ClientFile, deciding: _Import, only: Iterable[str], *, is_named: bool) -> Iterator[Outcome]:
    wanted = set(only)
    try:
        found = find_servers(file.path, Path.cwd())
    except ConfigError as error:
        if is_named:
            raise
        for problem in error.problems:
            say(problem)
        return
    if found is None:
        if is_named:
            raise ConfigError([f"{file.path}: {NO_SERVERS}"])
        return
    for name, entry in found.entries.items():
        if not wanted or name in wanted:
            yield deciding.take(name, entry, file)
    for folder, names in found.of_projects.items():
        reason = f"{file.client} uses it only in {folder}; import it there"
        yield from (Outcome(name, file.client, str(file.path), "skipped", reason) for name in names if not wanted)


def _settled(written: Mapping[str, Any], folder: Path, project: Path | None) -> dict[str, Any]:
    """The entry with places that no longer depend on where the client was started; variables stay as they are."""
    entry: dict[str, Any] = map_texts(written, lambda text: WORKSPACE.sub(lambda _: str(folder), text), DEEPEST)
    if isinstance(entry.get("envFile"), str):
        entry["envFile"] = str(folder / os.path.expanduser(entry["envFile"]))
    if project is not None and "command" in entry:
        entry["cwd"] = str(project / os.path.expanduser(entry.get("cwd", "")))
    return entry


def _print(outcomes: list[Outcome], arguments: Namespace) -> None:
    if arguments.json:
        print(json.dumps({"dry_run": arguments.dry_run, "servers": list(map(asdict, outcomes))}, indent=2))
        return
    rows = [(one.name, one.client, one.outcome, one.reason or "-") for one in outcomes]
    print_table(("NAME", "FROM", "OUTCOME", "WHY"), rows)
    imported = sum(one.outcome == "imported" for one in outcomes)
    would = "would be " if arguments.dry_run else ""
    print(f"{imported} of {len(outcomes)} servers {would}imported.")
