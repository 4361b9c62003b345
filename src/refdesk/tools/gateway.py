"""The servers behind the desk, as part of what the desk offers.

The fleet says what there is; this keeps the registry the same, and has servers do what the clients want of them
outside of any call: to tell of changes, to log, to say what they are for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol, get_args
from weakref import WeakKeyDictionary, WeakSet

from refdesk.calls import Answer, Call, Caller, Handler, ListChanged, LogLevel, ResourceUpdated, TenantId
from refdesk.config import DownstreamConfig
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.exposure import Offer
from refdesk.downstream.fleet.fleet import Fleet
from refdesk.downstream.fleet.sanitize import visible
from refdesk.errors import DependencyError, Refused, ServerRefused
from refdesk.tools.forwarding import Passing
from refdesk.tools.interfaces import OfferedTool, Offering
from refdesk.tools.long_results import LongResults
from refdesk.tools.proxied import TOOLSET, ProxiedPrompt, ProxiedResources, ProxiedTool, Reach
from refdesk.tools.registry import Registry
from refdesk.tools.server_resources import ServerResources
from refdesk.validation import shortened

logger = logging.getLogger(__name__)

INSTRUCTIONS_CHARACTERS, ALL_INSTRUCTIONS_CHARACTERS = 600, 4000
"""Of what one server, and all together, tell every client: it is read on every turn, and nobody here wrote it."""

HEARING_SECONDS = 5.0
"""How long a server that is there may take to say what it has before clients may keep a list without it."""

_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
"""From the least to the most severe."""

_LISTS = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list"})


Subscriber = tuple[str, str, str]
"""Somebody who wants to know of changes: of which server, and the tenant and user that it is."""


class Search(Protocol):
    """Who finds tools that are not listed."""

    def index(self, tools: Iterable[ProxiedTool]) -> None:
        """These are the tools now."""
        ...


@asynccontextmanager
async def open_gateway(
    fleet: Fleet,
    registry: Registry,
    settings: DownstreamConfig,
    *,
    reach: Reach,
    own_schemes: Collection[str] = (),
    search: Search | None = None,
) -> AsyncIterator[Gateway]:
    """What the fleet has is offered from now on; calls that nobody came back for end with it.

    `reach` says what is open to whom, and `own_schemes` which URIs are never another server's. With `search`, tools
    are not listed but found.
    """
    gateway = Gateway(fleet, registry, settings, reach, own_schemes, search)
    try:
        yield gateway
    finally:
        await gateway.close()


class Gateway:
    """Keeps the registry as the fleet is; a policy, too, that stands before the permissions."""

    def __init__(
        self,
        fleet: Fleet,
        registry: Registry,
        settings: DownstreamConfig,
        reach: Reach,
        own_schemes: Collection[str] = (),
        search: Search | None = None,
    ) -> None:
        self._fleet = fleet
        self._registry = registry
        self._max_tokens = settings.max_result_tokens
        self._reach = reach
        self._own_schemes = frozenset(own_schemes)
        self._search = search
        self._passing = Passing()
        self._results = LongResults()
        self._revision = fleet.revision
        self._tools: Mapping[str, Offer] = {}
        self._prompts: Mapping[str, Offer] = {}
        self._resources: Mapping[str, Offer] = {}
        self._templates: Mapping[str, Offer] = {}
        self._prompt_names: dict[str, str] = {}
        self._subscribers: dict[str, Counter[Subscriber]] = {}
        self._level: LogLevel | None = None
        self._levelled: WeakSet[Connection] = WeakSet()
        self._heard_out: WeakSet[Connection] = WeakSet()
        self._heard_out_at: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        registry.elsewhere = ProxiedResources(fleet, self._passing, reach, own_schemes)
        registry.add_resources(self._results)
        registry.add_resources(ServerResources(fleet, reach))
        fleet.listen(self._changed)
        fleet.heard(self._heard)
        for kind in ("tools", "prompts", "resources"):
            self._changed(kind)

    async def close(self) -> None:
        """Give up what is under way."""
        await self._passing.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # As a policy.

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        """Lists are no older than they may be. What is called by another name (`server:tool`, or the name that a server
        itself gives a prompt) goes on under the one that is listed, which is all that other policies know."""
        method = call.method
        if method == "tools/call":
            if call.target not in self._registry.tools:
                call = _renamed(call, self._tool_of(call.target))
        elif method == "prompts/get":
            if call.target not in self._registry.prompts:
                call = _renamed(call, self._registry.prompts.get(self._prompt_names.get(call.target, "")))
        elif method in _LISTS:
            return await self._listed(call, proceed)
        return await proceed(call)

    # What clients want besides calls.

    async def subscribe(self, uri: str, caller: Caller) -> None:
        """Have a server tell of changes to a resource, once for however many want to know; of one that is not there for
        the caller, nobody tells."""
        server = self._owner_of(uri, caller)
        if server is None or (server.greeting is not None and not server.greeting.has("resources.subscribe")):
            return
        subscribers = self._subscribers.setdefault(uri, Counter())
        is_first = not any(_of(server.name, subscribers))
        subscribers[server.name, caller.tenant, caller.user] += 1
        if is_first:
            try:
                await server.request("resources/subscribe", {"uri": uri})
            except BaseException:
                self._forget(uri, caller)
                raise

    def unsubscribe(self, uri: str, caller: Caller) -> None:
        """One less who wants to know."""
        server = self._fleet.servers.get(self._forget(uri, caller) or "")
        if server is not None:
            self._spawn(_ask(server, "resources/unsubscribe", {"uri": uri}))

    def set_level(self, level: LogLevel) -> None:
        """Have servers log from this level on. The least that any client has asked for counts, as all share a server's
        session; what one does not want is left out on its way to it."""
        if self._level is None or _LEVELS.index(level) < _LEVELS.index(self._level):
            self._level = level
            self._levelled.clear()
            self._tell_level()

    def instructions(self, caller: Caller) -> str:
        """What the servers say of their use that have something for a caller."""
        said = [
            f"{name}: {shortened(visible(server.greeting.instructions)[0].strip(), INSTRUCTIONS_CHARACTERS)}"
            for name, server in self._fleet.servers.items()
            if server.greeting is not None and server.greeting.instructions and self._has_some_for(caller, server)
        ]
        if not said:
            return ""
        return shortened(
            "\n".join(("What the connected servers say of themselves:", *said)), ALL_INSTRUCTIONS_CHARACTERS
        )

    async def _listed(self, call: Call, proceed: Handler) -> Answer:
        await self._fleet.freshen()
        if self._fleet.revision != self._revision:
            self._catch_up()
        answer = await proceed(call)
        # What there is more of in a moment is not for the client to keep.
        return answer if all(map(self._is_heard_out, self._fleet.servers.values())) else _not_to_be_kept(answer)

    def _is_heard_out(self, server: Connection) -> bool:
        """Whether a server has said what it has, or is not about to; some have no tools at all."""
        state = server.status.state
        if state != "Running" or server in self._heard_out:
            return state != "Starting"
        now = time.monotonic()
        return now >= self._heard_out_at.setdefault(server, now + HEARING_SECONDS)

    # What the fleet tells.

    def _changed(self, kind: str) -> None:
        if kind == "tools":
            self._offer_tools()
        elif kind == "prompts":
            self._offer_prompts()
        else:
            self._offer_resources()
        self._tell_level()

    def _catch_up(self) -> None:
        """Do what the fleet is about to have done: somebody is looking now."""
        self._revision = self._fleet.revision
        if not _are_same(self._tools, self._fleet.tools):
            self._offer_tools()
        if not _are_same(self._prompts, self._fleet.prompts):
            self._offer_prompts()
        if not (
            _are_same(self._resources, self._fleet.resources) and _are_same(self._templates, self._fleet.templates)
        ):
            self._offer_resources()

    def _offer_tools(self) -> None:
        offers = self._tools = self._fleet.tools
        tools = [self._tool(offer) for offer in offers.values()]
        self._registry.replace_others_tools(tools)
        self._heard_out.update(offer.connection for offer in offers.values())
        if self._search is not None:
            self._search.index(tools)

    def _tool(self, offer: Offer) -> ProxiedTool:
        return ProxiedTool(
            offer, lambda: self._fleet.tools, self._passing, self._reach, self._results, self._max_tokens,
            is_listed=self._search is None,
        )  # fmt: skip

    def _offer_prompts(self) -> None:
        offers = self._prompts = self._fleet.prompts
        self._prompt_names = {offer.original: name for name, offer in reversed(list(offers.items()))}
        self._registry.replace_others_prompts(
            [ProxiedPrompt(offer, lambda: self._fleet.prompts, self._passing, self._reach) for offer in offers.values()]
        )

    def _offer_resources(self) -> None:
        self._resources, self._templates = self._fleet.resources, self._fleet.templates
        self._registry.publish(ListChanged("resources"))

    def _heard(self, server: str, method: str, params: Mapping[str, Any]) -> None:
        uri = params.get("uri")
        connection = self._fleet.servers.get(server)
        if method != "notifications/resources/updated" or not isinstance(uri, str) or connection is None:
            return
        if not any(_of(server, self._subscribers.get(uri, ()))):
            return  # nobody asked it for that

        def is_open(caller: Caller) -> bool:
            return self._may_follow(caller, connection, uri)

        for tenant in connection.settings.tenants or (None,):
            self._registry.publish(ResourceUpdated(uri, None if tenant is None else TenantId(tenant), is_open))

    def _tell_level(self) -> None:
        """To servers that do not know it yet."""
        for server in self._fleet.servers.values() if self._level is not None else ():
            if server not in self._levelled and server.greeting is not None and server.greeting.has("logging"):
                self._levelled.add(server)
                self._spawn(_ask(server, "logging/setLevel", {"level": self._level}))

    # Who may know what.

    def _owner_of(self, uri: str, caller: Caller) -> Connection | None:
        """The server of a resource that is none of our own, for this caller."""
        if uri.partition(":")[0].lower() in self._own_schemes:
            return None
        return self._fleet.owner_of(uri, lambda server: self._may_follow(caller, server, uri))

    def _may_follow(self, caller: Caller, server: Connection, uri: str) -> bool:
        return _has_toolset(caller) and self._reach(caller, server.name, uri, server.settings.tenants)

    def _has_some_for(self, caller: Caller, server: Connection) -> bool:
        """Whether all of a server, or a tool of it, is open to a caller."""
        if not _has_toolset(caller):
            return False
        tools = (offer.original for offer in self._fleet.tools.values() if offer.connection is server)
        return any(self._reach(caller, server.name, name, server.settings.tenants) for name in ("", *tools))

    # The rest.

    def _tool_of(self, name: str) -> OfferedTool | None:
        offer = self._fleet.find_tool(name)
        tool = self._registry.tools.get(offer.exposed) if offer is not None else None
        # One of our own may have that name.
        return tool if isinstance(tool, ProxiedTool) else None

    def _forget(self, uri: str, caller: Caller) -> str | None:
        """Count one subscriber less; the server, if that was its last. Who was not counted is none."""
        subscribers: Counter[Subscriber] = self._subscribers.get(uri, Counter())
        found = next((each for each in subscribers if each[1:] == (caller.tenant, caller.user)), None)
        if found is None:
            return None
        subscribers[found] -= 1
        if not subscribers[found]:
            del subscribers[found]
        if not subscribers:
            del self._subscribers[uri]
        return None if any(_of(found[0], subscribers)) else found[0]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _not_to_be_kept(answer: Answer) -> Answer:
    return Answer({**answer.result, "ttlMs": 0})


def _has_toolset(caller: Caller) -> bool:
    return caller.toolsets is None or TOOLSET in caller.toolsets


def _of(server: str, subscribers: Iterable[Subscriber]) -> Iterable[Subscriber]:
    return (each for each in subscribers if each[0] == server)


def _renamed(call: Call, offering: Offering | None) -> Call:
    """The call for what was meant, unless that is not there for the caller: another name would give it away."""
    if offering is None or not offering.is_open_to(call.caller):
        return call
    return replace(call, params={**call.params, "name": offering.name})


def _are_same(before: Mapping[str, Offer], now: Mapping[str, Offer]) -> bool:
    return before is now or (
        before.keys() == now.keys()
        and all(
            (before[name].definition, before[name].is_stale) == (offer.definition, offer.is_stale)
            for name, offer in now.items()
        )
    )


async def _ask(server: Connection, method: str, params: Mapping[str, Any]) -> None:
    """For what clients can do without: that a server did not is written down, and no more."""
    try:
        await server.request(method, params)
    except (ServerRefused, DependencyError, Refused) as error:
        fields = {"server": server.name, "method": method, "why": error.detail[:200]}
        logger.warning("gateway.not_done", extra={"fields": fields})
