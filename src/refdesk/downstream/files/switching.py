"""Enabling and disabling servers of Refdesk's own file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from refdesk.config import Config, McpServerConfig
from refdesk.config.server_entries import get_server_key, read_entries
from refdesk.downstream.files.servers_file import ServersFile
from refdesk.errors import InvalidArguments, Problem

Reload: TypeAlias = Callable[[], Awaitable[None]]


def switch(file: ServersFile, config: Config, environ: Mapping[str, str], name: str, *, on: bool) -> None:
    """Enable or disable a server. Raises InvalidArguments if it's not in the file or is invalid."""
    entries = file.entries()
    require_own(config, name, entries)
    if on and isinstance(entries.get(name), dict):
        # An invalid server would block all reloads of a running instance, and the next start.
        switched_on(name, entries[name], environ)
    file.enable(name, on=on)


def require_own(config: Config, name: str, entries: Mapping[str, Any]) -> None:
    """Raise if a server is defined in the configuration and not in Refdesk's own file."""
    if name in config.mcpServers and name not in entries:
        source = config.sources.get("mcpServers", "the configuration")
        raise InvalidArguments([Problem("NAME", f"{name!r} is a server of {source}; change it there")])


def usable(name: str, entry: Any, environ: Mapping[str, str]) -> McpServerConfig:
    """Parse a server entry. Raises InvalidArguments with its problems."""
    read = read_entries({name: entry}, environ, source="", folder=Path.cwd())
    if read.faults:
        raise InvalidArguments([Problem(get_server_key(fault, name) or "NAME", fault.text) for fault in read.faults])
    return read.servers[name]


def switched_on(name: str, entry: Mapping[str, Any], environ: Mapping[str, str]) -> McpServerConfig:
    """Parse a server entry as if it were enabled: disabled entries need not be complete."""
    return usable(name, {key: value for key, value in entry.items() if key not in ("enabled", "disabled")}, environ)


class OwnServers:
    """The servers of Refdesk's own file, for a running instance. Changes take effect on reload."""

    def __init__(self, config: Config, environ: Mapping[str, str], reload_servers: Reload) -> None:
        """`reload_servers` reloads the files without waiting for the next poll."""
        self._file = ServersFile(config.servers_path)
        self._config = config
        self._environ = environ
        self._take_in = reload_servers

    def own(self) -> frozenset[str]:
        """Return the names of the servers that can be changed here. Blocks on disk access."""
        return frozenset(self._file.entries()) - frozenset(self._config.mcpServers)

    def switch(self, name: str, *, on: bool) -> None:
        """Enable or disable a server in the file. Blocks on disk access."""
        switch(self._file, self._config, self._environ, name, on=on)

    async def reload_servers(self) -> None:
        """Apply the file now."""
        await self._take_in()
