"""Switching a server of the desk's own file on and off; one of the configuration is changed there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from refdesk.config import Config, McpServerConfig
from refdesk.config.server_entries import key_within, read_entries
from refdesk.downstream.files.servers_file import ServersFile
from refdesk.errors import InvalidArguments, Problem

Reload: TypeAlias = Callable[[], Awaitable[None]]


def switch(file: ServersFile, config: Config, environ: Mapping[str, str], name: str, *, on: bool) -> None:
    """Switch a server on or off; raises InvalidArguments when it is not in the file, or cannot be used."""
    entries = file.entries()
    require_own(config, name, entries)
    if on and isinstance(entries.get(name), dict):
        # A server that cannot be used would keep all changes from a desk that runs, and the next one from starting.
        switched_on(name, entries[name], environ)
    file.enable(name, on=on)


def require_own(config: Config, name: str, entries: Mapping[str, Any]) -> None:
    """Refuse to change a server that is not in the desk's own file but in the configuration."""
    if name in config.mcpServers and name not in entries:
        source = config.sources.get("mcpServers", "the configuration")
        raise InvalidArguments([Problem("NAME", f"{name!r} is a server of {source}; change it there")])


def usable(name: str, entry: Any, environ: Mapping[str, str]) -> McpServerConfig:
    """The server that an entry is, here and now; raises InvalidArguments with what is wrong with it."""
    read = read_entries({name: entry}, environ, source="", folder=Path.cwd())
    if read.faults:
        raise InvalidArguments([Problem(key_within(fault, name) or "NAME", fault.text) for fault in read.faults])
    return read.servers[name]


def switched_on(name: str, entry: Mapping[str, Any], environ: Mapping[str, str]) -> McpServerConfig:
    """What a server would be; one that is switched off need not be complete."""
    return usable(name, {key: value for key, value in entry.items() if key not in ("enabled", "disabled")}, environ)


class OwnServers:
    """The servers of the desk's own file, for a desk that runs: what is changed counts once it is taken in."""

    def __init__(self, config: Config, environ: Mapping[str, str], take_in: Reload) -> None:
        """`take_in` has servers used as they are written down, without waiting for somebody to look at the files."""
        self._file = ServersFile(config.servers_path)
        self._config = config
        self._environ = environ
        self._take_in = take_in

    def own(self) -> frozenset[str]:
        """The names of those that can be changed here; waits for the disk."""
        return frozenset(self._file.entries()) - frozenset(self._config.mcpServers)

    def switch(self, name: str, *, on: bool) -> None:
        """Write down that a server is on or off; waits for the disk."""
        switch(self._file, self._config, self._environ, name, on=on)

    async def take_in(self) -> None:
        """Have what is written down count now."""
        await self._take_in()
