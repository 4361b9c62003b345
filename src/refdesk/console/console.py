"""The console: its API methods and the event feed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from anyio import to_thread

from refdesk.calls import CONSOLE, Call
from refdesk.console.document_methods import ConsoleDocuments
from refdesk.console.feed import Feed
from refdesk.console.params import NameParams, NewKeyParams, NoParams, translate_argument_names
from refdesk.console.server_methods import Rights, Servers
from refdesk.engines.base import EngineAdmin

Method = Callable[[Call], Awaitable[dict[str, Any]]]


class KeyStore(Protocol):
    """API key storage. All methods block on disk I/O."""

    def listed(self) -> Sequence[dict[str, Any]]:
        """List the keys' properties, without the keys themselves."""

    def make(self, *args: Any, **properties: Any) -> tuple[str, dict[str, Any]]:
        """Create a key with the properties of `NewKeyParams`; return it with its properties."""

    def revoke(self, name: str) -> str:
        """Revoke a key and return its name."""


@dataclass(frozen=True, slots=True)
class Console:
    """The web console. `register` adds its methods to the dispatcher."""

    about: Callable[[], Mapping[str, Any]]
    """Returns information about the server that every caller may see."""
    rights: Rights
    documents: ConsoleDocuments
    servers: Servers
    key_store: KeyStore
    engine: EngineAdmin
    feed: Feed

    def register(self, add_method: Callable[[str, Method], None]) -> None:
        """Register the console's methods. A method's name on the wire is its Python name."""
        documents, servers = self.documents, self.servers
        methods: list[Method] = [
            self.me,
            self.events,
            self.feed.metrics,
            *(documents.collections, documents.documents, documents.document, documents.read),
            *(documents.create_collection, documents.delete_collection, documents.delete_documents, documents.retry),
            *(servers.servers, servers.server_log, servers.set_server, servers.refresh_server, servers.approve),
            *(self.keys, self.make_key, self.revoke_key, self.tenants),
        ]
        for method in methods:
            add_method(f"{CONSOLE}{method.__name__}", method)

    async def me(self, call: Call) -> dict[str, Any]:
        """Return the caller's identity and permissions, and information about the server."""
        NoParams.of(call)
        caller, rights = call.caller, self.rights
        return {
            "user": caller.user,
            "tenant": caller.tenant,
            "roles": sorted(caller.roles),
            "toolsets": sorted(rights.toolsets(caller)),
            "authenticated": caller.authenticated,
            "may_write": rights.may(caller, f"{CONSOLE}create_collection"),
            "may_administer": rights.may(caller, f"{CONSOLE}keys"),
            **self.about(),
        }

    async def events(self, call: Call) -> dict[str, Any]:
        """Authorize an event subscription. The events themselves are sent over a separate stream."""
        NoParams.of(call)
        return {}

    # Keys and tenants. Permissions restrict these methods to administrators.

    async def keys(self, call: Call) -> dict[str, Any]:
        """List the keys' properties, without the keys themselves."""
        NoParams.of(call)
        return {"keys": await to_thread.run_sync(self.key_store.listed)}

    async def make_key(self, call: Call) -> dict[str, Any]:
        """Create a key. It is returned only this once."""
        params = NewKeyParams.of(call)
        with translate_argument_names():
            key, entry = await to_thread.run_sync(partial(self.key_store.make, **params.model_dump()))
        return {"key": key, "entry": entry}

    async def revoke_key(self, call: Call) -> dict[str, Any]:
        params = NameParams.of(call)
        with translate_argument_names():
            return {"revoked": await to_thread.run_sync(self.key_store.revoke, params.name)}

    async def tenants(self, call: Call) -> dict[str, Any]:
        """List the tenants that have documents or keys, with their counts."""
        NoParams.of(call)
        keys = Counter(key["tenant"] for key in await to_thread.run_sync(self.key_store.listed))
        counted = {
            str(tenant.id): {"documents": tenant.documents, "collections": tenant.collections, "bytes": tenant.bytes}
            for tenant in await self.engine.tenants()
        }
        nothing = {"documents": 0, "collections": 0, "bytes": 0}
        ids = sorted({*counted, *keys})
        return {"tenants": [{"id": id, **counted.get(id, nothing), "keys": keys[id]} for id in ids]}
