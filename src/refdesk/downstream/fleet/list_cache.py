"""Disk cache of the last known lists of each server, exposed while the servers are down at startup.

There is one file per server. It's valid only for the same server, reached in the same way, and is trusted no more than
the server itself.
"""

from __future__ import annotations

import logging
from hashlib import sha256
from pathlib import Path
from typing import Literal

import orjson

from refdesk.config.server_model import McpServerConfig
from refdesk.config.types import mask_url
from refdesk.downstream.fleet.names import append_hash, clean_name
from refdesk.downstream.jsonrpc import Message
from refdesk.support.fs import replace_file

logger = logging.getLogger(__name__)

FOLDER_NAME = "listings"
FORMAT = 1

MAX_BYTES = 8 * 1024 * 1024
"""Size of one server's file: some thousand tools. Larger lists aren't cached."""

MAX_FILE_NAME = 100
"""Characters of a file name without extension, which every file system supports."""


ListName = Literal["tools", "prompts", "resources", "templates"]
LIST_NAMES: tuple[ListName, ...] = ("tools", "prompts", "resources", "templates")


Lists = dict[ListName, tuple[Message, ...]]
"""The lists of a server, unmodified."""


class ListCache:
    """The cache folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER_NAME

    def read(self, server: str, settings: McpServerConfig) -> Lists | None:
        """Return the last known lists of a server, or None if there are none or the file is invalid."""
        path = self._path(server)
        try:
            if path.stat().st_size > MAX_BYTES:
                raise ValueError("it is too large")
            content = orjson.loads(path.read_bytes())
            return _parse_lists(content, server, fingerprint(settings))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._warn("downstream.listing_unread", server, error)
            return None

    def write(self, server: str, settings: McpServerConfig, lists: Lists) -> None:
        """Store the lists of a server. A failure is only logged."""
        content = {"format": FORMAT, "server": server, "fingerprint": fingerprint(settings)}
        try:
            encoded = orjson.dumps({**content, **lists})
            if len(encoded) > MAX_BYTES:
                raise ValueError("it would be too large")
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path(server), encoded, is_durable=False)
        except (OSError, ValueError, TypeError) as error:
            self._warn("downstream.listing_unwritten", server, error)

    def _path(self, server: str) -> Path:
        name = clean_name(server)
        if name != server or len(name) > MAX_FILE_NAME:
            name = append_hash(name, server, MAX_FILE_NAME)
        return self._folder / f"{name}.json"

    def _warn(self, event: str, server: str, error: Exception) -> None:
        why = error.strerror if isinstance(error, OSError) else str(error)
        logger.warning(event, extra={"fields": {"server": server, "why": (why or type(error).__name__)[:200]}})


def fingerprint(settings: McpServerConfig) -> str:
    """Return a hash of how the server is reached, without secrets."""
    identity = {
        "kind": settings.kind,
        "command": settings.command,
        "args": settings.args,
        "cwd": str(settings.cwd) if settings.cwd else None,
        "url": mask_url(settings.url.get_secret_value()) if settings.url else None,
        "env": sorted(settings.env),
        "headers": sorted(name.lower() for name in settings.headers),
    }
    return sha256(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _parse_lists(content: object, server: str, expected: str) -> Lists | None:
    """Return the lists in a file, or None if it belongs to another server."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError("it is not a cached list")
    if content.get("server") != server or content.get("fingerprint") != expected:
        return None
    lists: Lists = {}
    for name in LIST_NAMES:
        entries = content.get(name)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError(f"its {name} are no list of objects")
        lists[name] = tuple(entries)
    return lists
