"""MCP clients that can be set up: their settings files, and the entry each one needs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from refdesk.cli.settings_files import (
    EditError,
    FileChange,
    edit_keeping_line_endings,
    get_member,
    get_table,
    read_text,
    remove_member,
    remove_table,
    set_member,
    set_table,
)
from refdesk.downstream.files.client_files import list_client_files
from refdesk.errors import CannotOpen

DEFAULT_NAME = "refdesk"
"""Name of Refdesk among a client's servers, unless another is given."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A Refdesk server at a URL. `key_variable` names the environment variable that holds the API key, if any."""

    url: str
    key_variable: str | None = None


@dataclass(frozen=True, slots=True)
class Local:
    """A Refdesk process that the client starts itself."""

    command: Sequence[str]


DeskTarget = Remote | Local


@dataclass(frozen=True, slots=True)
class ClientSetup:
    """An MCP client that can be set up."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    title: str
    files: Mapping[str, str]
    """End of the settings file's path for each scope, which identifies it among the client's files."""
    section: str
    check: str
    """How to verify that it works."""
    next_steps: Mapping[str, str]
    """What the user still has to do, by scope."""
    url: str = "url"
    """Name of the member for the URL."""
    has_type: bool = False
    """Whether entries name their transport."""
    reference: str = "${NAME}"
    """Reference to the environment variable NAME in a header, in the client's own syntax."""
    key_member: str = ""
    """Name of the member for the name of the API key's environment variable, if it isn't referred to in a header."""

    def find_path(self, scope: str, home: Path, cwd: Path, platform: str) -> Path:
        """Return the settings file for a scope."""
        beneath = home if scope == "user" else cwd
        found = (file.path for file in list_client_files(home, cwd, platform) if file.client == self.name)
        ending = self.files[scope]
        return next(path for path in found if path.as_posix().endswith(ending) and path.is_relative_to(beneath))

    def plan_install(self, path: Path, name: str, target: DeskTarget, *, is_shared: bool) -> FileChange:
        """Return the change that adds Refdesk to the file."""
        before = read_text(path)
        return FileChange(path, before, self._edit(path, before or "", name, self.entry(target)), is_shared)

    def entry(self, target: DeskTarget) -> dict[str, Any]:
        """Return the entry for a target."""
        kind = {"type": "http" if isinstance(target, Remote) else "stdio"} if self.has_type else {}
        if isinstance(target, Local):
            program, *words = target.command
            return {**kind, "command": program, "args": words}
        key: dict[str, Any] = {}
        if target.key_variable and self.key_member:
            key = {self.key_member: target.key_variable}
        elif target.key_variable:
            reference = self.reference.replace("NAME", target.key_variable)
            key = {"headers": {"Authorization": f"Bearer {reference}"}}
        return {**kind, self.url: target.url, **key}

    def plan_uninstall(self, path: Path, name: str) -> FileChange | None:
        """Return the change that removes Refdesk from the file, or None if it isn't there."""
        before = read_text(path)
        if before is None or self.read_entry(path, before, name) is None:
            return None
        return FileChange(path, before, self._edit(path, before, name, None))

    def read_entry(self, path: Path, text: str, name: str) -> Any:
        """Return the entry of a server in the file, or None; raise CannotOpen if the file is invalid."""
        try:
            read = get_table if path.suffix == ".toml" else get_member
            return read(text, (self.section, name))
        except EditError as error:
            raise CannotOpen(f"{path} cannot be read: {error}.") from None

    def _edit(self, path: Path, text: str, name: str, entry: Mapping[str, Any] | None) -> str:
        """Return the text with the entry of a server, or without it if the entry is None."""
        keys = (self.section, name)

        def edit(plain: str) -> str:
            if path.suffix == ".toml":
                return remove_table(plain, keys) if entry is None else set_table(plain, keys, entry)
            return remove_member(plain, keys) if entry is None else set_member(plain, keys, entry)

        try:
            return edit_keeping_line_endings(text, edit)
        except EditError as error:
            by_hand = (
                f"Remove {name!r} from {self.section} by hand." if entry is None else f"Add this by hand:\n{edit('')}"
            )
            raise CannotOpen(f"{path} was not changed: {error}. {by_hand.rstrip()}") from None


CLIENTS = TypeAdapter(Mapping[str, ClientSetup]).validate_python(
    tomllib.loads(resources.files(__package__).joinpath("clients.toml").read_text("utf-8"))
)
"""Clients by the name that `refdesk install` takes."""
