"""What other servers offer, as the catalogue sees it: raw calls go out, raw results come back.

Nothing is validated but what routing needs; the server knows its own arguments. Its annotations are claims, and count
as such.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

from refdesk.calls import Call, Caller
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.exposure import Offer
from refdesk.downstream.fleet.fleet import Fleet
from refdesk.errors import InvalidArguments, InvalidCall, Problem, UnknownPrompt, UnknownTool
from refdesk.tools.forwarding import MARGIN_SECONDS, Passing
from refdesk.tools.interfaces import Completion
from refdesk.tools.long_results import LongResults
from refdesk.tools.registry import Annotations

TOOLSET = "downstream"

COMPLETIONS_DECLARED = "2025-03-26"
"""The revision since which servers declare that they complete arguments."""

STALE_META = "refdesk/stale"
"""Marks, in the `_meta` of a definition, that it is what its server said last, and that the server is not there now."""

NO_COMPLETION: Mapping[str, Any] = {"completion": {"values": [], "total": 0, "hasMore": False}}

Reach = Callable[[Caller, str, str, Collection[str]], bool]
"""Whether a caller may reach something: of which server, by which name, and the tenants that the server is for."""


class _Proxied:
    """What proxied tools and prompts have in common."""

    toolset: ClassVar[str] = TOOLSET
    is_plain: ClassVar[bool] = True
    """Always: a client that is told something meanwhile gets its answer as a stream, whatever was expected."""
    unknown: ClassVar[type[InvalidCall]] = UnknownTool

    def __init__(self, offer: Offer, offers: Callable[[], Mapping[str, Offer]], passing: Passing, reach: Reach) -> None:
        """`offers` are all of its kind, as they are when it is called."""
        self.name = offer.exposed
        self._offer = offer
        self._offers = offers
        self._passing = passing
        self._reach = reach
        self._listing: dict[str, Any] = {**offer.definition, "name": offer.exposed}
        if offer.is_stale:
            meta = offer.definition.get("_meta")
            self._listing["_meta"] = {**(meta if isinstance(meta, dict) else {}), STALE_META: True}

    @property
    def offer(self) -> Offer:
        """As it is now: a connection may be made anew without the lists being any other."""
        return self._offers().get(self.name, self._offer)

    def seconds_for(self, call: Call) -> float:
        """What its server has for a call, which can change, and a little."""
        return self.offer.connection.call_seconds + MARGIN_SECONDS

    def is_open_to(self, caller: Caller) -> bool:
        """Whether its server, and it, are for this caller."""
        offer = self.offer
        return self._reach(caller, offer.connection.name, offer.original, offer.connection.settings.tenants)

    async def _pass_on(self, method: str, call: Call) -> dict[str, Any]:
        offer = self._offers().get(self.name)
        if offer is None:
            # Taken away or held a moment ago, and the lists are about to say so.
            raise self.unknown(f"{self.name!r} is no longer there; the list says what is")
        return await self._passing(call, offer.connection, method, {**call.params, "name": offer.original})


class ProxiedTool(_Proxied):
    """A tool of another server."""

    is_live: ClassVar[bool] = False

    def __init__(
        self,
        offer: Offer,
        offers: Callable[[], Mapping[str, Offer]],
        passing: Passing,
        reach: Reach,
        results: LongResults,
        max_tokens: int,
        *,
        is_listed: bool = True,
    ) -> None:
        """`max_tokens` bounds its results, where its server's settings do not."""
        super().__init__(offer, offers, passing, reach)
        self.is_listed = is_listed
        self._results = results
        self._max_tokens = max_tokens
        self._has_schema = offer.definition.get("outputSchema") is not None
        hints = offer.definition.get("annotations") or {}
        self.title: str = offer.definition.get("title") or str(hints.get("title") or self.name)
        self.description: str = offer.definition.get("description") or ""
        self.input_schema: Mapping[str, Any] = offer.definition["inputSchema"]
        # What is not claimed is to be feared, as the protocol has it.
        self.annotations = Annotations(
            read_only=hints.get("readOnlyHint") is True,
            destructive=hints.get("destructiveHint") is not False,
            idempotent=hints.get("idempotentHint") is True,
            open_world=hints.get("openWorldHint") is not False,
        )

    def listing(self, call: Call) -> dict[str, Any]:
        """Its definition, as the server gave it."""
        return self._listing

    async def __call__(self, arguments: object, call: Call) -> dict[str, Any]:
        """The server's own answer, cut where it is beyond the budget."""
        if not isinstance(arguments, dict):
            raise _not_an_object()
        result = await self._pass_on("tools/call", call)
        own_bound = self.offer.connection.settings.max_result_tokens
        bound = self._max_tokens if own_bound is None else own_bound
        return self._results.fit(result, bound, call.caller, has_schema=self._has_schema) if bound else result


class ProxiedPrompt(_Proxied):
    """A prompt of another server."""

    unknown: ClassVar[type[InvalidCall]] = UnknownPrompt

    def listing(self) -> dict[str, Any]:
        """Its definition, as the server gave it."""
        return self._listing

    async def get(self, arguments: object, call: Call) -> dict[str, Any]:
        """The server's own messages."""
        if not isinstance(arguments, dict):
            raise _not_an_object()
        return await self._pass_on("prompts/get", call)

    async def complete(self, name: str, value: str, call: Call) -> Completion:
        """The server's own completion."""
        offer = self.offer
        params = {**call.params, "ref": {**call.params["ref"], "name": offer.original}}
        return await _completed(self._passing, call, offer.connection, params)


class ProxiedResources:
    """The resources of all other servers, under the URIs that these give them."""

    def __init__(self, fleet: Fleet, passing: Passing, reach: Reach, own_schemes: Collection[str] = ()) -> None:
        """`own_schemes` are those of this desk's resources, which no other server is asked for."""
        self._fleet = fleet
        self._passing = passing
        self._reach = reach
        self._own_schemes = frozenset(own_schemes)

    def listing(self, caller: Caller) -> Iterable[Mapping[str, Any]]:
        """The resources that are open to a caller."""
        return self._open(self._fleet.resources, caller)

    def templates(self, caller: Caller) -> Iterable[Mapping[str, Any]]:
        """The templates that are open to a caller."""
        return self._open(self._fleet.templates, caller)

    async def read(self, uri: str, call: Call) -> dict[str, Any] | None:
        """The result of the server that has it; when none is known to, of the first that turns out to."""
        if self._is_own(uri):
            return None
        server = self._fleet.owner_of(uri, lambda server: self._may(call.caller, server, uri))
        if server is None:
            return await self._scan(uri, call)
        return await self._passing(call, server, "resources/read", dict(call.params))

    async def complete(self, template: str, call: Call) -> dict[str, Any] | None:
        """The completion of the server that has the template."""
        offer = self._fleet.templates.get(template)
        offer = None if offer is None or self._is_own(template) else self._first_open(offer, call.caller)
        if offer is None:
            return None
        return await _completed(self._passing, call, offer.connection, dict(call.params))

    def seconds(self, uri: str) -> float | None:
        """What its server has for a call, and a little."""
        server = self._fleet.owner_of(uri) if not self._is_own(uri) else None
        return server.call_seconds + MARGIN_SECONDS if server is not None else None

    async def _scan(self, uri: str, call: Call) -> dict[str, Any] | None:
        found = await self._fleet.scan(
            uri,
            lambda server: self._passing(call, server, "resources/read", dict(call.params)),
            is_open=lambda server: self._may(call.caller, server, uri),
        )
        return found[1] if found is not None else None

    def _open(self, offers: Mapping[str, Offer], caller: Caller) -> Iterable[Mapping[str, Any]]:
        theirs = (self._first_open(offer, caller) for uri, offer in offers.items() if not self._is_own(uri))
        return (offer.definition for offer in theirs if offer is not None)

    def _first_open(self, offer: Offer, caller: Caller) -> Offer | None:
        """Of what several servers have under one URI, the first that is there for the caller."""
        uri = offer.original
        offers = self._fleet.alike.get(uri, (offer,))
        return next((each for each in offers if self._may(caller, each.connection, uri)), None)

    def _may(self, caller: Caller, server: Connection, uri: str) -> bool:
        return self._reach(caller, server.name, uri, server.settings.tenants)

    def _is_own(self, uri: str) -> bool:
        return uri.partition(":")[0].lower() in self._own_schemes


async def _completed(passing: Passing, call: Call, server: Connection, params: dict[str, Any]) -> dict[str, Any]:
    """A completion; a server that has none to offer has said so, unless it is too old to say."""
    greeting = server.greeting
    if greeting is not None and greeting.version >= COMPLETIONS_DECLARED and not greeting.has("completions"):
        return dict(NO_COMPLETION)
    return await passing(call, server, "completion/complete", params)


def _not_an_object() -> InvalidArguments:
    return InvalidArguments([Problem("arguments", "must be an object")])
