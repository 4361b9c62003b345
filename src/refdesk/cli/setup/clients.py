"""How each client is set up to use a desk: which file, where in it, and in which words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refdesk.cli.setup import json_text, toml_text
from refdesk.cli.setup.changes import Change, in_own_line_ends, read_text
from refdesk.cli.setup.json_text import CannotEdit
from refdesk.downstream.files.client_files import known_files
from refdesk.errors import CannotOpen


@dataclass(frozen=True, slots=True)
class Remote:
    """A desk that runs somewhere; the variable holds the key that it wants, if it wants one."""

    url: str
    key_variable: str | None = None


@dataclass(frozen=True, slots=True)
class Local:
    """A desk that the client starts itself."""

    command: Sequence[str]


Desk = Remote | Local


@dataclass(frozen=True, slots=True)
class Client:
    """A client that can be set up."""

    name: str
    title: str
    files: Mapping[str, str]
    """For each scope, how the file's path ends, by which it is known among all that the client has."""
    section: str
    entry: Callable[[Desk], dict[str, Any]]
    check: str
    """How to see that it works."""
    after: Mapping[str, str]
    """For a scope, what is left for the person to do."""

    def path(self, scope: str, home: Path, cwd: Path, platform: str) -> Path:
        """The file for a scope."""
        beneath = home if scope == "user" else cwd
        found = (file.path for file in known_files(home, cwd, platform) if file.client == self.name)
        ending = self.files[scope]
        return next(path for path in found if path.as_posix().endswith(ending) and path.is_relative_to(beneath))

    def installed(self, path: Path, name: str, desk: Desk, *, is_shared: bool) -> Change:
        """The file with the desk in it."""
        before = read_text(path)
        return Change(path, before, self._edited(path, before or "", name, self.entry(desk)), is_shared)

    def uninstalled(self, path: Path, name: str) -> Change | None:
        """The file without the desk; None when it is not in there."""
        before = read_text(path)
        if before is None or self.entry_in(path, before, name) is None:
            return None
        return Change(path, before, self._edited(path, before, name, None))

    def entry_in(self, path: Path, text: str, name: str) -> Any:
        """What the file says of a server of this name; None when nothing. Raises CannotOpen."""
        try:
            read = toml_text.table if path.suffix == ".toml" else json_text.member
            return read(text, (self.section, name))
        except CannotEdit as wrong:
            raise CannotOpen(f"{path} cannot be read: {wrong}.") from None

    def _edited(self, path: Path, text: str, name: str, entry: Mapping[str, Any] | None) -> str:
        edit = self._with if path.suffix != ".toml" else self._with_in_toml
        try:
            return in_own_line_ends(text, lambda plain: edit(plain, (self.section, name), entry))
        except CannotEdit as wrong:
            raise CannotOpen(f"{path} is left as it is: {wrong}. {self._by_hand(path, name, entry)}") from None

    @staticmethod
    def _with(text: str, place: Sequence[str], entry: Mapping[str, Any] | None) -> str:
        return json_text.without_member(text, place) if entry is None else json_text.with_member(text, place, entry)

    @staticmethod
    def _with_in_toml(text: str, place: Sequence[str], entry: Mapping[str, Any] | None) -> str:
        return toml_text.without_table(text, place) if entry is None else toml_text.with_table(text, place, entry)

    def _by_hand(self, path: Path, name: str, entry: Mapping[str, Any] | None) -> str:
        """What is left to the person, as the file would have it."""
        if entry is None:
            return f"Take {name!r} out of {self.section} by hand."
        written = self._with_in_toml if path.suffix == ".toml" else self._with
        return "\n".join(["Put this into it by hand:", *written("", (self.section, name), entry).splitlines()])


def _claude_code(desk: Desk) -> dict[str, Any]:
    match desk:
        case Remote():
            return {"type": "http", "url": desk.url, **_headers(desk, "${{{}}}")}
        case Local():
            return {"type": "stdio", **_command(desk)}


def _cursor(desk: Desk) -> dict[str, Any]:
    match desk:
        case Remote():
            return {"url": desk.url, **_headers(desk, "${{env:{}}}")}
        case Local():
            return _command(desk)


def _vscode(desk: Desk) -> dict[str, Any]:
    match desk:
        case Remote():
            return {"type": "http", "url": desk.url, **_headers(desk, "${{env:{}}}")}
        case Local():
            return {"type": "stdio", **_command(desk)}


def _codex(desk: Desk) -> dict[str, Any]:
    match desk:
        case Remote():
            return {"url": desk.url, **({"bearer_token_env_var": desk.key_variable} if desk.key_variable else {})}
        case Local():
            return _command(desk)


def _gemini(desk: Desk) -> dict[str, Any]:
    match desk:
        case Remote():
            return {"httpUrl": desk.url, **_headers(desk, "${{{}}}")}
        case Local():
            return _command(desk)


def _headers(desk: Remote, variable: str) -> dict[str, Any]:
    """The key as a header, by the name of the variable that holds it, in the client's own way of writing one."""
    if desk.key_variable is None:
        return {}
    return {"headers": {"Authorization": f"Bearer {variable.format(desk.key_variable)}"}}


def _command(desk: Local) -> dict[str, Any]:
    program, *words = desk.command
    return {"command": program, "args": words}


CLIENTS = {
    client.name: client
    for client in (
        Client(
            "claude-code",
            "Claude Code",
            {"user": "/.claude.json", "project": "/.mcp.json"},
            "mcpServers",
            _claude_code,
            "`claude mcp list` shows it as connected",
            {"project": "Claude Code asks each person once whether to trust it; start `claude` here to be asked"},
        ),
        Client(
            "cursor",
            "Cursor",
            {"user": "/.cursor/mcp.json", "project": "/.cursor/mcp.json"},
            "mcpServers",
            _cursor,
            "Cursor lists it with its tools in the settings, under MCP",
            {"project": "switch it on in Cursor's settings, under MCP"},
        ),
        Client(
            "vscode",
            "VS Code",
            {"user": "/Code/User/mcp.json", "project": "/.vscode/mcp.json"},
            "servers",
            _vscode,
            "the command `MCP: List Servers` in VS Code shows it",
            {"user": "VS Code asks whether to trust it when it is first used"},
        ),
        Client(
            "codex",
            "Codex",
            {"user": "/.codex/config.toml", "project": "/.codex/config.toml"},
            "mcp_servers",
            _codex,
            "`codex mcp list` shows it",
            {"project": "Codex reads it only in a project that you have told it to trust"},
        ),
        Client(
            "gemini",
            "Gemini CLI",
            {"user": "/.gemini/settings.json", "project": "/.gemini/settings.json"},
            "mcpServers",
            _gemini,
            "`gemini mcp list` shows it as connected",
            {"user": "Gemini CLI connects only in folders that you have told it to trust"},
        ),
    )
}
"""All of them; `refdesk install` takes their names."""
