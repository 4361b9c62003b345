"""Tools, prompts and resources of downstream servers as registry entries.

Calls and results are forwarded unchanged. Only what routing needs is validated. A server's annotations are claims, and
treated as such.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

from refdesk.calls import Call, Caller
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.exposure import Offer
from refdesk.downstream.fleet.fleet import Fleet
from refdesk.errors import InvalidArguments, InvalidCall, Problem, UnknownPrompt, UnknownTool
from refdesk.tools.forwarding import MARGIN_SECONDS, Forwarder
from refdesk.tools.interfaces import Completion
from refdesk.tools.long_results import LongResults
from refdesk.tools.registry import Annotations

TOOLSET = "downstream"

COMPLETIONS_DECLARED = "2025-03-26"
"""First revision in which servers declare that they support completion."""

STALE_META = "refdesk/stale"
"""Metadata key of definitions whose server is currently unavailable."""

NO_COMPLETION: Mapping[str, Any] = {"completion": {"values": [], "total": 0, "hasMore": False}}

Reach = Callable[[Caller, str, str, Collection[str]], bool]
"""Whether a caller may use something: server, name, and the server's tenants."""


class _Proxied:
    """Base of proxied tools and prompts."""

    toolset: ClassVar[str] = TOOLSET
    unknown: ClassVar[type[InvalidCall]] = UnknownTool

    def __init__(
        self, offer: Offer, offers: Callable[[], Mapping[str, Offer]], forwarder: Forwarder, reach: Reach
    ) -> None:
        """`offers` returns all current offers of its kind."""
        self.name = offer.exposed
        self._offer = offer
        self._offers = offers
        self._forwarder = forwarder
        self._reach = reach
        self._listing: dict[str, Any] = {**offer.definition, "name": offer.exposed}
        if offer.is_stale:
            meta = offer.definition.get("_meta")
            self._listing["_meta"] = {**(meta if isinstance(meta, dict) else {}), STALE_META: True}

    @property
    def offer(self) -> Offer:
        """The current offer: a connection may be replaced without a change of the lists."""
        return self._offers().get(self.name, self._offer)

    def seconds_for(self, call: Call) -> float:
        """Return the server's current call timeout plus a margin."""
        return self.offer.connection.call_seconds + MARGIN_SECONDS

    def is_open_to(self, caller: Caller) -> bool:
        """Return whether the caller may use it."""
        offer = self.offer
        return self._reach(caller, offer.connection.name, offer.original, offer.connection.settings.tenants)

    async def _forward(self, method: str, call: Call) -> dict[str, Any]:
        offer = self._offers().get(self.name)
        if offer is None:
            # Removed or held a moment ago; the lists are about to change.
            raise self.unknown(f"{self.name!r} is no longer there; the list says what is")
        return await self._forwarder(call, offer.connection, method, {**call.params, "name": offer.original})


class ProxiedTool(_Proxied):
    """A tool of a downstream server."""

    is_live: ClassVar[bool] = False

    def __init__(
        self,
        offer: Offer,
        offers: Callable[[], Mapping[str, Offer]],
        forwarder: Forwarder,
        reach: Reach,
        results: LongResults,
        max_tokens: int,
        *,
        is_listed: bool = True,
    ) -> None:
        """`max_tokens` limits its results, unless its server's settings do."""
        super().__init__(offer, offers, forwarder, reach)
        self.is_listed = is_listed
        self._results = results
        self._max_tokens = max_tokens
        self._has_schema = offer.definition.get("outputSchema") is not None
        hints = offer.definition.get("annotations") or {}
        self.title: str = offer.definition.get("title") or str(hints.get("title") or self.name)
        self.description: str = offer.definition.get("description") or ""
        self.input_schema: Mapping[str, Any] = offer.definition["inputSchema"]
        # Missing hints mean the worst case, as the protocol specifies.
        self.annotations = Annotations(
            read_only=hints.get("readOnlyHint") is True,
            destructive=hints.get("destructiveHint") is not False,
            idempotent=hints.get("idempotentHint") is True,
            open_world=hints.get("openWorldHint") is not False,
        )

    def listing(self, call: Call) -> dict[str, Any]:
        """Return the server's definition."""
        return self._listing

    async def __call__(self, arguments: object, call: Call) -> dict[str, Any]:
        """Return the server's result, truncated to the budget."""
        if not isinstance(arguments, dict):
            raise _build_not_an_object()
        result = await self._forward("tools/call", call)
        own_bound = self.offer.connection.settings.max_result_tokens
        bound = self._max_tokens if own_bound is None else own_bound
        return self._results.fit(result, bound, call.caller, has_schema=self._has_schema) if bound else result


class ProxiedPrompt(_Proxied):
    """A prompt of a downstream server."""

    unknown: ClassVar[type[InvalidCall]] = UnknownPrompt

    def listing(self) -> dict[str, Any]:
        """Return the server's definition."""
        return self._listing

    async def get(self, arguments: object, call: Call) -> dict[str, Any]:
        """Return the server's messages."""
        if not isinstance(arguments, dict):
            raise _build_not_an_object()
        return await self._forward("prompts/get", call)

    async def complete(self, name: str, value: str, call: Call) -> Completion:
        """Return the server's completion."""
        offer = self.offer
        params = {**call.params, "ref": {**call.params["ref"], "name": offer.original}}
        return await _request_completion(self._forwarder, call, offer.connection, params)


class ProxiedResources:
    """The resources of all downstream servers, under their own URIs."""

    def __init__(self, fleet: Fleet, forwarder: Forwarder, reach: Reach, own_schemes: Collection[str] = ()) -> None:
        """`own_schemes` are Refdesk's own URI schemes, which are never forwarded."""
        self._fleet = fleet
        self._forwarder = forwarder
        self._reach = reach
        self._own_schemes = frozenset(own_schemes)

    def listing(self, caller: Caller) -> Iterable[Mapping[str, Any]]:
        """Return the resources that a caller may read."""
        return self._list_open(self._fleet.resources, caller)

    def templates(self, caller: Caller) -> Iterable[Mapping[str, Any]]:
        """Return the templates that a caller may use."""
        return self._list_open(self._fleet.templates, caller)

    async def read(self, uri: str, call: Call) -> dict[str, Any] | None:
        """Return the result of the owning server, or of the first server that has the resource."""
        if self._is_own(uri):
            return None
        server = self._fleet.find_resource_owner(uri, lambda server: self._is_reachable(call.caller, server, uri))
        if server is None:
            return await self._scan(uri, call)
        return await self._forwarder(call, server, "resources/read", dict(call.params))

    async def complete(self, template: str, call: Call) -> dict[str, Any] | None:
        """Return the completion of the server that has the template."""
        offer = self._fleet.templates.get(template)
        offer = None if offer is None or self._is_own(template) else self._find_open(offer, call.caller)
        if offer is None:
            return None
        return await _request_completion(self._forwarder, call, offer.connection, dict(call.params))

    def seconds(self, uri: str) -> float | None:
        """Return the owning server's call timeout plus a margin."""
        server = self._fleet.find_resource_owner(uri) if not self._is_own(uri) else None
        return server.call_seconds + MARGIN_SECONDS if server is not None else None

    async def _scan(self, uri: str, call: Call) -> dict[str, Any] | None:
        found = await self._fleet.scan(
            uri,
            lambda server: self._forwarder(call, server, "resources/read", dict(call.params)),
            is_open=lambda server: self._is_reachable(call.caller, server, uri),
        )
        return found[1] if found is not None else None

    def _list_open(self, offers: Mapping[str, Offer], caller: Caller) -> Iterable[Mapping[str, Any]]:
        theirs = (self._find_open(offer, caller) for uri, offer in offers.items() if not self._is_own(uri))
        return (offer.definition for offer in theirs if offer is not None)

    def _find_open(self, offer: Offer, caller: Caller) -> Offer | None:
        """Return the first offer of a URI that the caller may use."""
        uri = offer.original
        offers = self._fleet.duplicate_uris.get(uri, (offer,))
        return next((candidate for candidate in offers if self._is_reachable(caller, candidate.connection, uri)), None)

    def _is_reachable(self, caller: Caller, server: Connection, uri: str) -> bool:
        return self._reach(caller, server.name, uri, server.settings.tenants)

    def _is_own(self, uri: str) -> bool:
        return uri.partition(":")[0].lower() in self._own_schemes


async def _request_completion(
    forwarder: Forwarder, call: Call, server: Connection, params: dict[str, Any]
) -> dict[str, Any]:
    """Request a completion, unless the server declares that it has none."""
    greeting = server.server_profile
    if greeting is not None and greeting.version >= COMPLETIONS_DECLARED and not greeting.has("completions"):
        return dict(NO_COMPLETION)
    return await forwarder(call, server, "completion/complete", params)


def _build_not_an_object() -> InvalidArguments:
    return InvalidArguments([Problem("arguments", "must be an object")])
