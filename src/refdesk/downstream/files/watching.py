"""Following the files that say which servers there are, while the desk runs.

A file that cannot be used changes nothing; that is said once, and once more when it is well again.
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

POLL_SECONDS = 1.0
"""Between two looks, which cost a system call a file."""

SETTLE_SECONDS = 0.2
"""How long files must have been at rest: editors write in several steps."""

MAX_SETTLE_CHECKS = 25
"""Times that files are waited for to come to rest; one that is written to all the time is then taken as it is."""

logger = logging.getLogger(__name__)

FileStamps: TypeAlias = tuple[tuple[int, int, int] | None, ...]
"""What tells one state of the files from another."""


class FollowedServers:
    """The servers that files name: used as they are written down, whoever says that it is time to look."""

    def __init__(
        self,
        paths: Sequence[Path],
        load: Callable[[], Mapping[str, McpServerConfig]],
        apply: Callable[[Mapping[str, McpServerConfig]], Awaitable[None]],
        known: Mapping[str, McpServerConfig] | None = None,
    ) -> None:
        """`known` is what has been applied before; without it, `follow` applies at once what the files say."""
        self._paths = paths
        self._load = load
        self._apply = apply
        self._applied = known
        self._last_problem = ""
        self._lock = anyio.Lock()

    async def take_in(self) -> None:
        """Use what the files say now; raises what stands in the way.

        One at a time, from the look to the use: else an earlier look could be used last, and stay.
        """
        async with self._lock:
            servers = await anyio.to_thread.run_sync(self._load, abandon_on_cancel=True)
            if self._last_problem:
                self._last_problem = ""
                logger.warning("downstream.config_mended", extra={"fields": {"servers": len(servers)}})
            if servers != self._applied:
                # What could not be applied is tried again at the next change, whatever that is.
                self._applied = None
                await self._apply(dict(servers))
                self._applied = servers

    async def follow(self, sleep: Callable[[float], Awaitable[None]] = anyio.sleep) -> None:
        """Take in whatever changes, once the files have come to rest; runs until it is cancelled."""
        if self._applied is None:
            await self._try_reload()
        # The first look finds what has changed since the caller read the files.
        before: FileStamps | None = None
        while True:
            seen = await self._read_stamps()
            if seen != before:
                before = await _wait_until_stable(seen, self._read_stamps, sleep)
                await self._try_reload()
            await sleep(POLL_SECONDS)

    async def _read_stamps(self) -> FileStamps:
        return await anyio.to_thread.run_sync(_get_stamps, self._paths, abandon_on_cancel=True)

    async def _try_reload(self) -> None:
        try:
            await self.take_in()
        except ConfigError as error:
            self._log_config_error(error)
        except RefdeskError as error:
            logger.error("downstream.config_not_applied", extra={"fields": {"problem": error.detail}})

    def _log_config_error(self, error: ConfigError) -> None:
        """One line, however much is wrong, and only when it is something else than before."""
        first, *more = error.problems
        problem = f"{first} (and {len(more)} more)" if more else first
        if problem != self._last_problem:
            self._last_problem = problem
            fields = {"problem": problem, "effect": "the servers are as they were"}
            logger.error("downstream.config_broken", extra={"fields": fields})


async def _wait_until_stable(
    seen: FileStamps, look: Callable[[], Awaitable[FileStamps]], sleep: Callable[[float], Awaitable[None]]
) -> FileStamps:
    """The first look that is the same as the one before it."""
    for _ in range(MAX_SETTLE_CHECKS):
        await sleep(SETTLE_SECONDS)
        before, seen = seen, await look()
        if seen == before:
            break
    return seen


def _get_stamps(paths: Sequence[Path]) -> FileStamps:
    return tuple(map(_get_stamp, paths))


def _get_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
