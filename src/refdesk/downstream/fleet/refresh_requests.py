"""Requests of other processes to refresh the lists of a server: a file that a running Refdesk polls."""

from __future__ import annotations

import logging
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from refdesk.config.state_file import edit_state, read_state
from refdesk.errors import ConfigError
from refdesk.support.fs import FileStamp, read_stamp

logger = logging.getLogger(__name__)

FILE_NAME = "refresh.json"


class _Requests(BaseModel):
    model_config = ConfigDict(extra="forbid")

    counts: dict[str, int] = Field(default_factory=dict)
    """Number of requests so far, by server."""


class RefreshRequests:
    """The file of requests. Every process that shares the folder takes each of them."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._stamp: FileStamp | None = None
        self._taken: dict[str, int] = {}

    def add(self, server: str) -> None:
        """Request a refresh. Blocks on disk access."""
        with edit_state(self._path, _Requests) as requests:
            requests.counts[server] = requests.counts.get(server, 0) + 1

    def take(self) -> list[str]:
        """Return the servers that were requested since the last time. It costs one system call if there are none."""
        if (stamp := read_stamp(self._path)) == self._stamp:
            return []
        self._stamp = stamp
        try:
            counts = read_state(self._path, _Requests).counts
        except ConfigError as error:
            logger.warning("downstream.refresh_unread", extra={"fields": {"why": error.detail}})
            return []
        before, self._taken = self._taken, counts
        return [server for server, count in counts.items() if before.get(server) != count]
