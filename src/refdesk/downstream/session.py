"""A server that has been greeted, and requests in the words of the revision it speaks.

Raw objects in, raw objects out. What it costs to wait for an answer, and what becomes of a server that gives none, is
the business of the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from refdesk.downstream.envelopes import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    MODERN_VERSIONS,
    NEWEST_HANDSHAKE,
    NEWEST_MODERN,
    RESERVED,
    Mirrored,
    Unmirrorable,
    headers_of,
    mirrored_arguments,
    with_envelope,
    without_envelope,
)
from refdesk.downstream.jsonrpc import Peer, Voice
from refdesk.downstream.transports.base import Message, Transport
from refdesk.errors import ServerRefused, ServerTalksNonsense

logger = logging.getLogger(__name__)

MAX_PAGES = 1000
MAX_ENTRIES = 10_000
MAX_LIST_BYTES = 16_777_216
"""What is taken of one list: more than any server has to offer, and little enough to hold for all of them."""

MAX_VERSION_CHARACTERS = 32
"""Of the name of a revision, which is sent back in a header; those that there are have ten."""

PROBE_SECONDS = 5.0
"""What `server/discover` has to be answered in when it is only tried: some servers with a handshake say nothing at all
to what comes before it."""

_IDENTIFIED_BY = {"tools": "name", "prompts": "name", "resources": "uri", "resourceTemplates": "uriTemplate"}


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a server said of itself."""

    version: str
    capabilities: Mapping[str, Any]
    info: Mapping[str, Any] = field(default_factory=dict)
    instructions: str | None = None

    @property
    def is_modern(self) -> bool:
        """Whether it speaks a revision without a handshake."""
        return self.version in MODERN_VERSIONS

    def has(self, capability: str) -> bool:
        """Whether it declared a capability, or a part of one: `tools`, `tools.listChanged`."""
        found: Any = self.capabilities
        for part in capability.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found is not None and found is not False


@dataclass(frozen=True, slots=True)
class Terms:
    """What a server is told of its client, and what the client makes of the server."""

    capabilities: Mapping[str, Any] = field(default_factory=lambda: CLIENT_CAPABILITIES)
    check: Callable[[Greeting], None] | None = None
    """Raises a RefdeskError for a server that will not do, before the handshake is completed."""
    outside: Voice | None = None
    """Who is asked what belongs to no call."""


TERMS = Terms()
"""Those of a desk, which passes on what it is asked."""


class Session:
    """A greeted server: raw requests in the words of its revision."""

    def __init__(self, peer: Peer, greeting: Greeting, mirrored: dict[str, Mirrored] | None = None) -> None:
        self.greeting = greeting
        self.peer = peer
        self._is_modern = greeting.is_modern
        self.mirrored: dict[str, Mirrored] = {} if mirrored is None else mirrored
        """By tool, the arguments that headers repeat, as the last list of tools says."""
        self.capabilities: Mapping[str, Any] = CLIENT_CAPABILITIES
        """What a server without a handshake is told of its client, where a request is for no other."""
        self.level: str | None = None
        """From which level on a server without a handshake is to log, which it is told with each request."""

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        voice: Voice | None = None,
        token: str | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> Message:
        """The result of a request, as the server gave it: one without a handshake may say in `resultType` that it
        needs input first.

        `token` is sent as the credential of this request. `capabilities` are those of the client behind it, for a
        server that is told them with each request; all that we pass on when not given.
        """
        headers = None
        if self._is_modern:
            capabilities = self.capabilities if capabilities is None else capabilities
            params = with_envelope(self.greeting.version, params, capabilities, self.level)
            mirrored = self.mirrored.get(params.get("name", "")) if method == "tools/call" and self.mirrored else None
            headers = headers_of(self.greeting.version, method, params, mirrored)
        elif params is not None and "_meta" in params:
            params = without_envelope(params)
        if token is not None:
            headers = {**(headers or {}), "authorization": f"Bearer {token}"}
        return await self.peer.request(method, params, voice=voice, headers=headers)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification; a revision without a handshake has none that a client could send."""
        if self._is_modern:
            logger.debug("downstream.not_told", extra={"fields": {"server": self.peer.name, "method": method}})
        else:
            await self.peer.notify(method, params)

    async def list_all(self, method: str, member: str) -> list[Message]:
        """All entries of a list, page by page; a list without end is taken as far as it is bearable."""
        entries: list[Message] = []
        size = 0
        cursors: set[str] = set()
        params: Mapping[str, Any] | None = None
        self._trace("downstream.list_asked", method=method)
        for _ in range(MAX_PAGES):
            page = await self.request(method, params)
            usable = self._usable(member, page.get(member))
            entries += usable
            size += sum(map(_size, usable))
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or not cursor:
                break
            if cursor in cursors or len(entries) > MAX_ENTRIES or size > MAX_LIST_BYTES:
                self._warn("downstream.endless_list", method=method, entries=len(entries))
                break
            cursors.add(cursor)
            params = {"cursor": cursor}
        else:
            self._warn("downstream.endless_list", method=method, entries=len(entries))
        self._trace("downstream.listed", method=method, entries=len(entries))
        return self._learn(entries[:MAX_ENTRIES]) if member == "tools" and self._is_modern else entries[:MAX_ENTRIES]

    def _usable(self, member: str, given: Any) -> list[Message]:
        """The entries of a page that somebody could use; the others are counted and left out."""
        if not isinstance(given, list):
            raise ServerTalksNonsense(f"The server {self.peer.name!r} gave a list without {member!r}")
        key = _IDENTIFIED_BY.get(member, "name")
        usable = [entry for entry in given if isinstance(entry, dict) and isinstance(entry.get(key), str)]
        if len(usable) < len(given):
            self._warn("downstream.entries_dropped", member=member, dropped=len(given) - len(usable))
        return usable

    def _learn(self, tools: list[Message]) -> list[Message]:
        """Note which arguments headers repeat; tools are left out whose arguments no header could."""
        learned: dict[str, Mirrored] = {}
        usable: list[Message] = []
        for tool in tools:
            try:
                mirrored = mirrored_arguments(tool.get("inputSchema"))
            except Unmirrorable as error:
                self._warn("downstream.tool_unusable", tool=tool["name"][:100], why=str(error)[:200])
                continue
            usable.append(tool)
            if mirrored:
                learned[tool["name"]] = mirrored
        self.mirrored.clear()
        self.mirrored.update(learned)
        return usable

    def _trace(self, event: str, **fields: Any) -> None:
        logger.debug(event, extra={"fields": {"server": self.peer.name, **fields}})

    def _warn(self, event: str, **fields: Any) -> None:
        logger.warning(event, extra={"fields": {"server": self.peer.name, **fields}})


async def greet(
    peer: Peer,
    transport: Transport,
    wanted: str | None,
    mirrored: dict[str, Mirrored] | None = None,
    terms: Terms = TERMS,
    *,
    probe_seconds: float = PROBE_SECONDS,
) -> Session:
    """A session in the revision that is wanted, or in one that the server speaks; then a warning is logged.

    `mirrored` is what an earlier session with the same server learned of its tools. `probe_seconds` is the time limit
    of the probe for a revision without a handshake.
    """
    if wanted in MODERN_VERSIONS:
        greeting = await _probe(peer, terms, probe_seconds) or await _shake_hands(peer, NEWEST_HANDSHAKE, terms)
    else:
        greeting = await _shake_hands(peer, wanted or NEWEST_HANDSHAKE, terms)
    if wanted is not None and greeting.version != wanted:
        fields = {"server": peer.name, "wanted": wanted, "spoken": greeting.version}
        logger.warning("downstream.version_mismatch", extra={"fields": fields})
    if terms.check is not None:
        terms.check(greeting)
    transport.speaks(greeting.version)
    if not greeting.is_modern:
        await peer.notify("notifications/initialized")
    session = Session(peer, greeting, mirrored)
    session.capabilities = terms.capabilities
    return session


async def _shake_hands(peer: Peer, version: str, terms: Terms) -> Greeting:
    """Agree on a revision; a server that will not, for it has none with a handshake, is asked what it speaks."""
    try:
        greeting = await _initialize(peer, version, terms)
    except ServerRefused:
        discovered = await _discover(peer, terms)
        if discovered is None:
            raise
        return discovered
    return await _discover(peer, terms) or greeting if greeting.is_modern else greeting


async def _probe(peer: Peer, terms: Terms, seconds: float) -> Greeting | None:
    try:
        async with asyncio.timeout(seconds):
            return await _discover(peer, terms)
    except TimeoutError:
        return None


async def _initialize(peer: Peer, version: str, terms: Terms) -> Greeting:
    params = {"protocolVersion": version, "capabilities": terms.capabilities, "clientInfo": CLIENT_INFO}
    answer = await peer.request("initialize", params)
    spoken = answer.get("protocolVersion")
    if not isinstance(spoken, str) or not 0 < len(spoken) <= MAX_VERSION_CHARACTERS or not spoken.isprintable():
        raise ServerTalksNonsense(f"The server {peer.name!r} did not say which revision of MCP it speaks")
    return _greeting(peer, spoken, answer, answer.get("serverInfo"))


async def _discover(peer: Peer, terms: Terms) -> Greeting | None:
    """What a server without a handshake says of itself; nothing when it has one."""
    params = with_envelope(NEWEST_MODERN, None, terms.capabilities)
    headers = headers_of(NEWEST_MODERN, "server/discover", params, None)
    try:
        answer = await peer.request("server/discover", params, headers=headers)
    except ServerRefused:
        return None
    supported = answer.get("supportedVersions")
    spoken = [version for version in MODERN_VERSIONS if isinstance(supported, list) and version in supported]
    if not spoken:
        return None
    meta = answer.get("_meta")
    info = meta.get(f"{RESERVED}serverInfo") if isinstance(meta, dict) else None
    return _greeting(peer, spoken[-1], answer, info)


def _size(entry: Message) -> int:
    """Bytes of an entry; one that cannot be written, for it is nested too deep, is more than is taken."""
    try:
        return len(orjson.dumps(entry))
    except orjson.JSONEncodeError:
        return MAX_LIST_BYTES + 1


def _greeting(peer: Peer, version: str, answer: Message, info: Any) -> Greeting:
    capabilities, instructions = answer.get("capabilities"), answer.get("instructions")
    if not isinstance(capabilities, dict):
        raise ServerTalksNonsense(f"The server {peer.name!r} did not say what it can do")
    return Greeting(
        version,
        capabilities,
        info if isinstance(info, dict) else {},
        instructions if isinstance(instructions, str) else None,
    )
