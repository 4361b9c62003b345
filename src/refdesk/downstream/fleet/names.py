"""Names of downstream tools and prompts. No I/O.

A name depends only on the settings, the server and the server's own name for the tool, so that a rule about a name
keeps meaning the same tool. Only on a collision do other servers matter. Names are ASCII of the kind that model APIs
accept, so that no two look alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from itertools import count
from typing import NamedTuple

from refdesk.config.models import DownstreamConfig

HASH_LENGTH = 8
"""Hexadecimal digits of the suffix that distinguishes colliding names."""

_UNSUPPORTED_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]")
_UNDERSCORES = re.compile(r"__+")

IsReserved = Callable[[str], bool]


class Claim(NamedTuple):
    """A tool or prompt to be named."""

    server: str
    """The server's name in the settings."""
    id: str
    """The server's id in names, from `assign_server_ids`."""
    original: str
    """The server's own name for it."""
    plain: str
    """The cleaned name, after renaming rules."""

    @property
    def is_changed(self) -> bool:
        """Whether the name differs from the server's own."""
        return self.plain != self.original


def clean_name(name: str) -> str:
    """Replace every character that model APIs don't accept by an underscore."""
    return _UNSUPPORTED_CHARACTERS.sub("_", name) or "_"


def append_hash(name: str, source: str, max_length: int) -> str:
    """Append a hash of the source to the name, and cut the name to the maximum length."""
    suffix = sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_LENGTH]
    return f"{name[: max_length - HASH_LENGTH - 1]}_{suffix}"


def assign_server_ids(servers: Iterable[str], max_length: int) -> dict[str, str]:
    """Return the id of each server, by its name in the settings.

    No id contains `__` or ends with an underscore, so that the first `__` of a name always ends the id. An id takes at
    most half of a name, leaving the rest for the tool.
    """
    servers = tuple(servers)
    plain = {server: _UNDERSCORES.sub("_", clean_name(server)).strip("_") or "server" for server in servers}
    max_id_length = max(max_length // 2 - 1, HASH_LENGTH + 2)
    claimed = Counter(plain.values())
    ids: dict[str, str] = {}
    for server, id in plain.items():
        is_clear = len(id) <= max_id_length and (id == server or claimed[id] == 1)
        ids[server] = id if is_clear else append_hash(id, server, max_id_length)
    return ids


def assign_names(claims: Sequence[Claim], settings: DownstreamConfig, reserved: IsReserved) -> list[str]:
    """Return the names of the claims: unique, not reserved, and within the length limit.

    On a collision, a claim whose name needed no cleaning keeps it. The others get a hash of their own names,
    independent of their order.
    """
    names = [f"{claim.id}{settings.separator}{claim.plain}" for claim in claims]
    if settings.prefix == "never":
        plain = Counter(claim.plain for claim in claims)
        is_clear = {name for name, count in plain.items() if count == 1 and not reserved(name)}
        names = [claim.plain if claim.plain in is_clear else name for claim, name in zip(claims, names, strict=True)]
    wanted, taken = Counter(names), set[str]()
    for index in sorted(range(len(claims)), key=lambda index: claims[index].is_changed):
        claim, name = claims[index], names[index]
        is_alike = claim.is_changed and wanted[name] > 1
        if is_alike or name in taken or len(name) > settings.max_name_length or reserved(name):
            name = _find_free_name(name, claim, settings.max_name_length, lambda name: name in taken or reserved(name))
        names[index] = name
        taken.add(name)
    return names


def _find_free_name(base: str, claim: Claim, max_length: int, is_taken: Callable[[str], bool]) -> str:
    """Return the first free name with a hash. More than one is tried only if hashes collide."""
    source = f"{claim.server}\0{claim.original}"
    tries = (append_hash(base, f"{source}\0{attempt}" if attempt else source, max_length) for attempt in count())
    return next(name for name in tries if not is_taken(name))
