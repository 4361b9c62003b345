"""Server definitions: Refdesk's own file, the configuration, and other clients' files.

A server in the configuration overrides one of the same name in Refdesk's own file, which `refdesk servers` manages.
Files that change are reloaded. An invalid one changes nothing. The problem is logged once, and so is its end. A server
that only lacks a variable is disabled, and the others of its file are used.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from refdesk.config.loading import load_servers_again
from refdesk.config.messages import Fault
from refdesk.config.models import Config
from refdesk.config.server_entries import NAME, NAME_RULE, ServerEntries, get_server_key, read_entries
from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.files.client_files import NO_SERVERS, ClientServers, find_servers
from refdesk.errors import ConfigError, InvalidArguments, Problem, RefdeskError, StorageError
from refdesk.support.fs import FileStamp, lock_file, read_stamp, replace_file
from refdesk.validation import nearest_name

logger = logging.getLogger(__name__)

SECTION = "mcpServers"

LOOPBACK = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::")

POLL_SECONDS = 1.0
"""Poll interval. Each poll costs one system call per file."""

SETTLE_SECONDS = 0.2
"""How long files must be unchanged before they are read: editors write in several steps."""

MAX_SETTLE_CHECKS = 25
"""Checks for unchanged files. After that a constantly written file is read as it is."""


class ServersFile:
    """Refdesk's own servers file: replaced atomically under a lock, and readable by its owner only.

    It has the layout of other clients' files and may be edited by hand. Comments are lost with the next change.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, environ: Mapping[str, str]) -> ServerEntries:
        """Return the servers, or none without a file. Raises ConfigError if the file as a whole is unreadable."""
        found = self._find_servers()
        source, section = str(self.path), found.section
        return read_entries(found.entries, environ, source=source, folder=Path.cwd(), key=section, keep_unresolved=True)

    def entries(self) -> dict[str, Any]:
        """Return the entries as written, valid or not."""
        return dict(self._find_servers().entries)

    def add(self, entries: Mapping[str, Mapping[str, Any]], *, replace: bool = False) -> None:
        """Add servers. An existing name is an error, unless `replace` is set."""
        with self._edit() as stored:
            for name, entry in entries.items():
                if not NAME.fullmatch(name):
                    raise InvalidArguments([Problem("NAME", f"{name[:80]!r} is not a valid name: {NAME_RULE}")])
                if name in stored and not replace:
                    rule = f"there is a server named {name!r} already; remove it first, or give --replace"
                    raise InvalidArguments([Problem("NAME", rule)])
                stored[name] = dict(entry)

    def remove(self, name: str) -> None:
        """Remove a server."""
        with self._edit() as stored:
            del stored[self._require_known(name, stored)]

    def enable(self, name: str, *, on: bool = True) -> None:
        """Enable or disable a server."""
        with self._edit() as stored:
            entry = stored[self._require_known(name, stored)]
            if not isinstance(entry, dict):
                raise ConfigError([f"{self.path}: {SECTION}.{name}: expected an object"])
            entry.pop("disabled", None)
            entry["enabled"] = on

    def _find_servers(self) -> ClientServers:
        """Return the entries, or none without a file.

        An inaccessible folder is an error, and no reason to stop all servers.
        """
        try:
            self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return ClientServers(SECTION, {})
        except OSError as error:
            raise ConfigError([f"{self.path}: cannot be read: {error.strerror}"]) from None
        found = find_servers(self.path, Path.cwd())
        if found is None:
            raise ConfigError([f"{self.path}: {NO_SERVERS}"])
        return found

    def _require_known(self, name: str, entries: Iterable[str]) -> str:
        if name in entries:
            return name
        nearest = nearest_name(name, list(entries))
        hint = f"did you mean {nearest!r}?" if nearest else "`refdesk servers` lists them"
        raise InvalidArguments([Problem("NAME", f"there is no server named {name[:80]!r} in {self.path}; {hint}")])

    @contextmanager
    def _edit(self) -> Iterator[dict[str, Any]]:
        """Lock the file, yield its entries and write them back."""
        try:
            with lock_file(self.path):
                entries = self.entries()
                yield entries
                text = json.dumps({SECTION: entries}, indent=2, ensure_ascii=False)
                replace_file(self.path, f"{text}\n".encode())
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}") from error


def load_servers(config: Config, environ: Mapping[str, str]) -> ServerEntries:
    """Load the servers of the configuration and of Refdesk's own file. Raises ConfigError if any is invalid."""
    file = ServersFile(config.servers_path)
    config_file = _find_config_file(config)
    configured = config.mcpServers if config_file is None else load_servers_again(config_file, environ)
    stored = file.read(environ)
    if stored.faults:
        raise ConfigError(list(map(str, stored.faults)))
    found = ServerEntries(warnings=stored.warnings)
    for name in [name for name in stored.servers if name in configured]:
        text = "the configuration has a server of this name, which wins"
        found.warnings.append(Fault(str(file.path), f"{SECTION}.{name}", text))
    for name, server in {**configured, **stored.servers, **configured}.items():
        if is_this_desk(server, config):
            found.warnings.append(Fault("", f"{SECTION}.{name}", "this is the desk itself, so it is left out"))
        else:
            found.servers[name] = server
    return found


def list_server_files(config: Config) -> tuple[Path, ...]:
    """Return the files that define servers."""
    config_file = _find_config_file(config)
    return (config.servers_path,) if config_file is None else (config_file, config.servers_path)


def _find_config_file(config: Config) -> Path | None:
    """Return the configuration file, unless a program passes its own servers."""
    return config.config_file if config.sources.get(SECTION) != "command line" else None


def is_this_desk(server: McpServerConfig, config: Config) -> bool:
    """Whether a server is this Refdesk instance itself, by its URL or command."""
    if server.url is not None:
        return _is_own_url(server.url.get_secret_value(), config)
    if any(_is_own_url(word, config) for word in server.args if "://" in word):
        return True
    words = [PurePath(word).name for word in (server.command or "", *server.args)]
    if "refdesk" not in words or "serve" not in words[words.index("refdesk") :]:
        return False
    data = _get_option("--data", server.args) or _get_env_value(server, "REFDESK_DATA")
    if data is not None:
        return _is_same_path(data, config.data_path)
    file = _get_option("--config", server.args) or _get_env_value(server, "REFDESK_CONFIG")
    return file is None or (config.config_file is not None and _is_same_path(file, config.config_file))


def _is_same_path(path: str, other: Path) -> bool:
    return os.path.abspath(os.path.expanduser(path)) == str(other.absolute())


def _is_own_url(url: str, config: Config) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "wss": 443}.get(parts.scheme, 80)
    except ValueError:
        return False
    hosts = {config.server.host, *(LOOPBACK if config.server.host in LOOPBACK else ())}
    return parts.hostname in hosts and port == config.server.port


def _get_option(option: str, args: tuple[str, ...]) -> str | None:
    for word, following in zip(args, (*args[1:], None), strict=True):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def _get_env_value(server: McpServerConfig, variable: str) -> str | None:
    value = server.env.get(variable)
    return value.get_secret_value() if value is not None else None


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

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        reload_servers: Callable[[], Coroutine[Any, Any, None]],
        find_problem: Callable[[], str] = str,
    ) -> None:
        """`reload_servers` reloads the files without waiting for the next poll.

        `find_problem` returns why the files can't be loaded at the moment, or an empty string.
        """
        self._file = ServersFile(config.servers_path)
        self._config = config
        self._environ = environ
        self.reload_servers = reload_servers
        self.find_problem = find_problem

    def own(self) -> frozenset[str]:
        """Return the names of the servers that can be changed here. Blocks on disk access."""
        return frozenset(self._file.entries()) - frozenset(self._config.mcpServers)

    def switch(self, name: str, *, on: bool) -> None:
        """Enable or disable a server in the file. Blocks on disk access."""
        switch(self._file, self._config, self._environ, name, on=on)


@dataclass(eq=False, repr=False)
class ServerFilesWatcher:
    """Servers defined by files, reloaded on change or on demand."""

    _paths: Sequence[Path]
    _load: Callable[[], Mapping[str, McpServerConfig]]
    _apply: Callable[[Mapping[str, McpServerConfig]], Awaitable[None]]
    _applied: Mapping[str, McpServerConfig] | None = None
    """What has been applied. Without it, `follow` applies the files at once."""
    problem: str = field(default="", init=False)
    """Why the files can't be loaded, so that the servers are unchanged."""
    _lock: anyio.Lock = field(default_factory=anyio.Lock, init=False)

    async def reload_servers(self) -> None:
        """Load the files and apply them. Raises an error if they are invalid.

        A lock covers loading and applying, or else an older load could be applied last.
        """
        async with self._lock:
            servers = await anyio.to_thread.run_sync(self._load, abandon_on_cancel=True)
            if self.problem:
                self.problem = ""
                logger.warning("downstream.config_mended", extra={"fields": {"servers": len(servers)}})
            if servers != self._applied:
                # If applying fails, the next change applies again, whatever it is.
                self._applied = None
                await self._apply(dict(servers))
                self._applied = servers

    async def follow(self, sleep: Callable[[float], Awaitable[None]] = anyio.sleep) -> None:
        """Reload the files whenever they change, until cancelled."""
        if self._applied is None:
            await self._try_reload()
        # The first poll always reloads: the files may have changed since the caller read them.
        before: tuple[FileStamp, ...] | None = None
        while True:
            seen = await self._read_stamps()
            if seen != before:
                for _ in range(MAX_SETTLE_CHECKS):
                    await sleep(SETTLE_SECONDS)
                    before, seen = seen, await self._read_stamps()
                    if seen == before:
                        break
                before = seen
                await self._try_reload()
            await sleep(POLL_SECONDS)

    async def _read_stamps(self) -> tuple[FileStamp, ...]:
        return await anyio.to_thread.run_sync(lambda: tuple(map(read_stamp, self._paths)), abandon_on_cancel=True)

    async def _try_reload(self) -> None:
        try:
            await self.reload_servers()
        except ConfigError as error:
            first, *more = error.problems
            problem = f"{first} (and {len(more)} more)" if more else first
            if problem != self.problem:
                self.problem = problem
                fields = {"problem": problem, "effect": "the servers are unchanged"}
                logger.error("downstream.config_broken", extra={"fields": fields})
        except RefdeskError as error:
            logger.error("downstream.config_not_applied", extra={"fields": {"problem": error.detail}})
