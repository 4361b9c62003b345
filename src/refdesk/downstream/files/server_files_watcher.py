"""Watcher that reloads server files when they change.

An invalid file changes nothing. The problem is logged once, and so is its end.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import anyio
import anyio.to_thread

from refdesk.config import McpServerConfig
from refdesk.errors import ConfigError, RefdeskError
from refdesk.support.fs import FileStamp, read_stamp

POLL_SECONDS = 1.0
"""Poll interval. Each poll costs one system call per file."""

SETTLE_SECONDS = 0.2
"""How long files must be unchanged before they are read: editors write in several steps."""

MAX_SETTLE_CHECKS = 25
"""Checks for unchanged files. After that a constantly written file is read as it is."""

logger = logging.getLogger(__name__)

FileStamps: TypeAlias = tuple[FileStamp, ...]
"""Identifies a state of the files."""


class ServerFilesWatcher:
    """Servers defined by files, reloaded on change or on demand."""

    def __init__(
        self,
        paths: Sequence[Path],
        load: Callable[[], Mapping[str, McpServerConfig]],
        apply: Callable[[Mapping[str, McpServerConfig]], Awaitable[None]],
        known: Mapping[str, McpServerConfig] | None = None,
    ) -> None:
        """`known` is what has been applied before. Without it, `follow` applies the files at once."""
        self._paths = paths
        self._load = load
        self._apply = apply
        self._applied = known
        self._last_problem = ""
        self._lock = anyio.Lock()

    async def reload_servers(self) -> None:
        """Load the files and apply them. Raises an error if they are invalid.

        A lock covers loading and applying, or else an older load could be applied last.
        """
        async with self._lock:
            servers = await anyio.to_thread.run_sync(self._load, abandon_on_cancel=True)
            if self._last_problem:
                self._last_problem = ""
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
        before: FileStamps | None = None
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

    async def _read_stamps(self) -> FileStamps:
        return await anyio.to_thread.run_sync(lambda: tuple(map(read_stamp, self._paths)), abandon_on_cancel=True)

    async def _try_reload(self) -> None:
        try:
            await self.reload_servers()
        except ConfigError as error:
            first, *more = error.problems
            problem = f"{first} (and {len(more)} more)" if more else first
            if problem != self._last_problem:
                self._last_problem = problem
                fields = {"problem": problem, "effect": "the servers are unchanged"}
                logger.error("downstream.config_broken", extra={"fields": fields})
        except RefdeskError as error:
            logger.error("downstream.config_not_applied", extra={"fields": {"problem": error.detail}})
