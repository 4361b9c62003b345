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

LOOK_SECONDS = 1.0
"""Between two looks, which cost a system call a file."""

SETTLE_SECONDS = 0.2
"""How long files must have been at rest: editors write in several steps."""

MOST_WAITS = 25
"""Times that files are waited for to come to rest; one that is written to all the time is then taken as it is."""

logger = logging.getLogger(__name__)

Stamps: TypeAlias = tuple[tuple[int, int, int] | None, ...]
"""What tells one state of the files from another."""


async def watch_servers(
    paths: Sequence[Path],
    load: Callable[[], Mapping[str, McpServerConfig]],
    apply: Callable[[Mapping[str, McpServerConfig]], Awaitable[None]],
    *,
    known: Mapping[str, McpServerConfig] | None = None,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> None:
    """Load and apply whenever the files have changed and come to rest; `known` is what has been applied before.

    Without it, what the files say is applied at once. Runs until it is cancelled.
    """
    watch = _Watch(paths, load, apply, known)
    if known is None:
        await watch.take_in()
    # The first look finds what has changed since the caller read the files.
    before: Stamps | None = None
    while True:
        seen = await watch.look()
        if seen != before:
            before = await _settled(seen, watch.look, sleep)
            await watch.take_in()
        await sleep(LOOK_SECONDS)


async def _settled(
    seen: Stamps, look: Callable[[], Awaitable[Stamps]], sleep: Callable[[float], Awaitable[None]]
) -> Stamps:
    """The first look that is the same as the one before it."""
    for _ in range(MOST_WAITS):
        await sleep(SETTLE_SECONDS)
        before, seen = seen, await look()
        if seen == before:
            break
    return seen


class _Watch:
    def __init__(
        self,
        paths: Sequence[Path],
        load: Callable[[], Mapping[str, McpServerConfig]],
        apply: Callable[[Mapping[str, McpServerConfig]], Awaitable[None]],
        known: Mapping[str, McpServerConfig] | None,
    ) -> None:
        self._paths = paths
        self._load = load
        self._apply = apply
        self._known = known
        self._complaint = ""

    async def look(self) -> Stamps:
        return await anyio.to_thread.run_sync(_stamps, self._paths, abandon_on_cancel=True)

    async def take_in(self) -> None:
        try:
            servers = await anyio.to_thread.run_sync(self._load, abandon_on_cancel=True)
        except ConfigError as error:
            self._complain(error)
            return
        if self._complaint:
            self._complaint = ""
            logger.warning("downstream.config_mended", extra={"fields": {"servers": len(servers)}})
        if servers != self._known:
            await self._use(dict(servers))

    async def _use(self, servers: Mapping[str, McpServerConfig]) -> None:
        """What could not be applied is tried again at the next change, whatever that is."""
        try:
            await self._apply(servers)
        except RefdeskError as error:
            self._known = None
            logger.error("downstream.config_not_applied", extra={"fields": {"problem": error.detail}})
        else:
            self._known = servers

    def _complain(self, error: ConfigError) -> None:
        """One line, however much is wrong, and only when it is something else than before."""
        first, *more = error.problems
        complaint = f"{first} (and {len(more)} more)" if more else first
        if complaint != self._complaint:
            self._complaint = complaint
            fields = {"problem": complaint, "effect": "the servers are as they were"}
            logger.error("downstream.config_broken", extra={"fields": fields})


def _stamps(paths: Sequence[Path]) -> Stamps:
    return tuple(map(_stamp, paths))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
