"""Server files of other MCP clients: their locations and layouts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refdesk.downstream.files import jsonc
from refdesk.errors import ConfigError
from refdesk.support.fs import read_plain_text

MAX_BYTES = 33_554_432
"""Claude Code keeps its history in the same file, which can be many megabytes. Anything larger is no settings file."""

LAYOUTS = (
    ("mcpServers",),
    ("context_servers",),
    ("mcp_servers",),
    ("mcp", "servers"),
    ("mcp", "mcpServers"),
    ("servers",),
    ("mcp",),
)
"""Paths of the server section in a file. Zed has `context_servers`, Codex `mcp_servers`, VS Code `servers` and, in its
settings, `mcp.servers`. opencode has the servers right in `mcp`. All others do as Claude Desktop does."""


PROJECT_FOLDERS = (".vscode", ".cursor", ".roo", ".zed", ".gemini", ".codex")
PROJECT_FILES = (".mcp.json", "opencode.json")
"""Names of files that belong to the project they are in."""


@dataclass(frozen=True, slots=True)
class ClientServers:
    """The server entries of a file, as written."""

    section: str
    entries: Mapping[str, Any]
    project_servers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of servers that Claude Code uses only in other project folders, by folder."""


@dataclass(frozen=True, slots=True)
class ClientFile:
    """Location of a client's server file."""

    client: str
    path: Path


NO_SERVERS = "no servers in it; they are expected under mcpServers"


def find_servers(path: Path, cwd: Path) -> ClientServers | None:
    """Return the server entries in a file of any client, or None if it has none.

    Raises ConfigError if the file is unreadable.
    """
    document = _parse_file(path)
    if not isinstance(document, dict):
        raise ConfigError([f"{path}: expected an object with mcpServers"])
    if duplicates := list(jsonc.find_duplicate_keys(_select_layout_keys(document))):
        raise ConfigError(
            [f"{path}: {key if len(key) <= 100 else f'{key[:100]}…'}: given twice" for key in duplicates[:10]]
        )
    here, elsewhere = _split_projects(document, cwd)
    for layout in LAYOUTS:
        section = _find_section(document, layout)
        if section is not None:
            name = ".".join(layout)
            if not isinstance(section, dict):
                raise ConfigError([f"{path}: {name}: expected servers by their names"])
            return ClientServers(name, {**section, **here}, elsewhere)
    return ClientServers("projects", here, elsewhere) if here or elsewhere else None


def find_project_folder(path: Path, home: Path) -> Path | None:
    """Return the project folder that a file belongs to, in which its servers run, or None for a user-level file."""
    folder = path.absolute().parent
    if folder.name in PROJECT_FOLDERS:
        folder = folder.parent
    elif path.name not in PROJECT_FILES:
        return None
    return None if folder == home or folder.is_relative_to(home / ".config") else folder


def _parse_file(path: Path) -> Any:
    try:
        text = read_plain_text(path, MAX_BYTES)
        return tomllib.loads(text) if path.suffix == ".toml" else jsonc.parse(text) if text.strip() else {}
    except FileNotFoundError:
        raise ConfigError([f"{path}: no such file"]) from None
    except RecursionError:
        raise ConfigError([f"{path}: nested too deeply"]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: not valid TOML: {error}"]) from None
    except ValueError as error:
        raise ConfigError([f"{path}: {error}"]) from None


def _select_layout_keys(document: dict[str, Any]) -> Any:
    """Return the keys that may contain servers. The client's other settings don't matter."""
    names = {layout[0] for layout in LAYOUTS}
    relevant = jsonc.DuplicateKeyObject({name: document[name] for name in names & document.keys()})
    relevant.duplicates = tuple(name for name in getattr(document, "duplicates", ()) if name in names)
    return relevant


def _find_section(document: Any, layout: tuple[str, ...]) -> Any:
    for step in layout:
        document = document.get(step) if isinstance(document, dict) else None
    # These names are ambiguous.
    looks_like_servers = isinstance(document, dict) and all(isinstance(entry, dict) for entry in document.values())
    return None if layout[-1] in ("servers", "mcp") and not looks_like_servers else document


def _split_projects(document: dict[str, Any], cwd: Path) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """Return the servers of the project in this folder, and the server names of all other projects."""
    projects = document.get("projects")
    here: dict[str, Any] = {}
    elsewhere: dict[str, tuple[str, ...]] = {}
    for folder, project in projects.items() if isinstance(projects, dict) else ():
        servers = project.get("mcpServers") if isinstance(project, dict) else None
        if isinstance(servers, dict) and servers:
            if Path(folder) == cwd:
                here = servers
            else:
                elsewhere[folder] = tuple(servers)
    return here, elsewhere


def list_client_files(home: Path, cwd: Path, platform: str) -> list[ClientFile]:
    """Return the locations of all clients' server files on this system, project files first. They may not exist."""
    mac, windows = home / "Library" / "Application Support", home / "AppData" / "Roaming"
    settings = {"darwin": mac, "win32": windows}.get(platform, home / ".config")
    code = settings / "Code" / "User"
    extensions = code / "globalStorage"
    paths_by_client = {
        "claude-desktop": (settings / "Claude" / "claude_desktop_config.json",),
        "claude-code": (cwd / ".mcp.json", home / ".claude.json"),
        "cursor": (cwd / ".cursor" / "mcp.json", home / ".cursor" / "mcp.json"),
        "vscode": (cwd / ".vscode" / "mcp.json", code / "mcp.json", code / "settings.json"),
        "windsurf": (home / ".codeium" / "windsurf" / "mcp_config.json",),
        "cline": (extensions / "saoudrizwan.claude-dev" / "settings" / "cline_mcp_settings.json",),
        "roo": (
            cwd / ".roo" / "mcp.json",
            extensions / "rooveterinaryinc.roo-cline" / "settings" / "mcp_settings.json",
        ),
        "zed": (cwd / ".zed" / "settings.json", home / ".config" / "zed" / "settings.json"),
        "codex": (cwd / ".codex" / "config.toml", home / ".codex" / "config.toml"),
        "gemini": (cwd / ".gemini" / "settings.json", home / ".gemini" / "settings.json"),
        "opencode": (cwd / "opencode.json", home / ".config" / "opencode" / "opencode.json"),
        "lmstudio": (home / ".lmstudio" / "mcp.json",),
    }
    return [ClientFile(client, path) for client, paths in paths_by_client.items() for path in paths]


CLIENTS = tuple(dict.fromkeys(file.client for file in list_client_files(Path(), Path(), "linux")))
