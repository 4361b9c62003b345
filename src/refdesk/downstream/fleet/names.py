"""What servers, and the tools and prompts of servers, are called here.

Pure: a name follows from the settings, the server and the name that the server gave, never from what other servers do,
so that a rule about a name goes on meaning the same tool. Only where two would be called alike does one know of the
other. Every name is ASCII of a kind that the APIs of models take: what looks like another name is another name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from itertools import count
from typing import NamedTuple

from refdesk.config import DownstreamConfig

HASH_LENGTH = 8
"""Hexadecimal digits that tell two names apart which would be alike."""

_UNSUPPORTED_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]")
_UNDERSCORES = re.compile(r"__+")

IsReserved = Callable[[str], bool]


class Claim(NamedTuple):
    """A tool or prompt that wants a name."""

    server: str
    """The server's name in the settings."""
    id: str
    """What the server is called in names; of `server_ids`."""
    original: str
    """The name that the server gave."""
    plain: str
    """That name, or one that a rule gave in its place, cleaned."""

    @property
    def is_changed(self) -> bool:
        """Whether it would not be called what the server calls it."""
        return self.plain != self.original


def clean_name(name: str) -> str:
    """The name with an underscore for every character that the APIs of models do not take."""
    return _UNSUPPORTED_CHARACTERS.sub("_", name) or "_"


def append_hash(name: str, source: str, max_length: int) -> str:
    """The name, cut where it has to be, with a mark that follows from the source alone."""
    suffix = sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_LENGTH]
    return f"{name[: max_length - HASH_LENGTH - 1]}_{suffix}"


def assign_server_ids(servers: Iterable[str], max_length: int) -> dict[str, str]:
    """What each server is called in names, by its name in the settings.

    No id has two underscores in a row or one at its end, so that the first `__` of a name always ends the id. It takes
    at most half of a name, for the other half to be the tool's.
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
    """The names of the claims: all different, none reserved, none too long.

    Of those that would be alike, one whose own name needed no cleaning keeps it, and the others are marked by the name
    that their server gave them, whatever the order is in which they come.
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
    """The first name that nobody has; more than one is tried only where two marks are alike by chance or by design."""
    source = f"{claim.server}\0{claim.original}"
    tries = (append_hash(base, f"{source}\0{attempt}" if attempt else source, max_length) for attempt in count())
    return next(name for name in tries if not is_taken(name))
