"""MCP clients that can be set up: their settings files, and the entry each one needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    name: str
    title: str
    files: Mapping[str, str]
    """End of the settings file's path for each scope, which identifies it among the client's files."""
    section: str
    key: Callable[[str], dict[str, Any]]
    """Returns the members that pass an API key through an environment variable, in the client's own syntax."""
    check: str
    """How to verify that it works."""
    next_steps: Mapping[str, str]
    """What the user still has to do, by scope."""
    url: str = "url"
    """Name of the member for the URL."""
    has_type: bool = False
    """Whether entries name their transport."""

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
        return {**kind, self.url: target.url, **(self.key(target.key_variable) if target.key_variable else {})}

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


def _build_header(variable: str) -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer {variable}"}}


CLIENTS = {
    client.name: client
    for client in (
        ClientSetup(
            "claude-code",
            "Claude Code",
            {"user": "/.claude.json", "project": "/.mcp.json"},
            "mcpServers",
            lambda name: _build_header(f"${{{name}}}"),
            "`claude mcp list` shows it as connected",
            {"project": "Claude Code asks each person once whether to trust it; start `claude` here to be asked"},
            has_type=True,
        ),
        ClientSetup(
            "cursor",
            "Cursor",
            {"user": "/.cursor/mcp.json", "project": "/.cursor/mcp.json"},
            "mcpServers",
            lambda name: _build_header(f"${{env:{name}}}"),
            "Cursor lists it with its tools in the settings, under MCP",
            {"project": "switch it on in Cursor's settings, under MCP"},
        ),
        ClientSetup(
            "vscode",
            "VS Code",
            {"user": "/Code/User/mcp.json", "project": "/.vscode/mcp.json"},
            "servers",
            lambda name: _build_header(f"${{env:{name}}}"),
            "the command `MCP: List Servers` in VS Code shows it",
            {"user": "VS Code asks whether to trust it when it is first used"},
            has_type=True,
        ),
        ClientSetup(
            "codex",
            "Codex",
            {"user": "/.codex/config.toml", "project": "/.codex/config.toml"},
            "mcp_servers",
            lambda name: {"bearer_token_env_var": name},
            "`codex mcp list` shows it",
            {"project": "Codex reads it only in trusted projects"},
        ),
        ClientSetup(
            "gemini",
            "Gemini CLI",
            {"user": "/.gemini/settings.json", "project": "/.gemini/settings.json"},
            "mcpServers",
            lambda name: _build_header(f"${{{name}}}"),
            "`gemini mcp list` shows it as connected",
            {"user": "Gemini CLI connects only in trusted folders"},
            url="httpUrl",
        ),
    )
}
"""Clients by the name that `refdesk install` takes."""
