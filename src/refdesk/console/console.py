"""The console: static files, API methods and the event feed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from refdesk.calls import CONSOLE, Call, Caller
from refdesk.console.activity import Activity
from refdesk.console.administration import Administration
from refdesk.console.assets import Assets, StaticFile
from refdesk.console.document_methods import ConsoleDocuments
from refdesk.console.feed import Feed, FeedSubscription
from refdesk.console.params import NoParams
from refdesk.console.rights import Rights
from refdesk.console.server_methods import Servers

Method = Callable[[Call], Awaitable[dict[str, Any]]]


class Console:
    """Facade of the web console. `register` adds its methods to the dispatcher."""

    def __init__(
        self,
        about: Callable[[], Mapping[str, Any]],
        rights: Rights,
        documents: ConsoleDocuments,
        servers: Servers,
        administration: Administration,
        activity: Activity,
        feed: Feed,
    ) -> None:
        """`about` returns information about the server that every caller may see."""
        self._about = about
        self._rights = rights
        self._documents = documents
        self._servers = servers
        self._administration = administration
        self._activity = activity
        self._feed = feed
        self._assets = Assets()

    def register(self, add_method: Callable[[str, Method], None]) -> None:
        """Register the console's methods. A method's name on the wire is its Python name."""
        documents, servers, administration = self._documents, self._servers, self._administration
        methods: list[Method] = [
            self.me,
            self.events,
            self._activity.metrics,
            *(documents.collections, documents.documents, documents.document, documents.read),
            *(documents.create_collection, documents.delete_collection, documents.delete_documents, documents.retry),
            *(servers.servers, servers.server_log, servers.set_server, servers.approve),
            *(administration.keys, administration.make_key, administration.revoke_key, administration.tenants),
        ]
        for method in methods:
            add_method(f"{CONSOLE}{method.__name__}", method)

    async def me(self, call: Call) -> dict[str, Any]:
        """Return the caller's identity and permissions, and information about the server."""
        NoParams.of(call)
        caller, rights = call.caller, self._rights
        return {
            "user": caller.user,
            "tenant": caller.tenant,
            "roles": sorted(caller.roles),
            "toolsets": sorted(rights.toolsets(caller)),
            "authenticated": caller.authenticated,
            "may_write": rights.may(caller, f"{CONSOLE}create_collection"),
            "may_administer": rights.may(caller, f"{CONSOLE}keys"),
            **self._about(),
        }

    async def events(self, call: Call) -> dict[str, Any]:
        """Authorize an event subscription. The events themselves are sent over a separate stream."""
        NoParams.of(call)
        return {}

    def find(self, path: str) -> StaticFile | None:
        """Return a static file by its path below `/console/`."""
        return self._assets.find(path)

    def open_feed_subscription(self, caller: Caller) -> AbstractContextManager[FeedSubscription]:
        """Subscribe a caller to change events."""
        return self._feed.open_feed_subscription(caller)

    def drain(self) -> None:
        """End all subscriptions."""
        self._feed.drain()
