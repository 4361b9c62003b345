"""The console as a whole: its pages, the methods that they call, and what they are told while somebody looks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from refdesk.calls import CONSOLE, Call, Caller
from refdesk.console.activity import Activity
from refdesk.console.administration import Administration
from refdesk.console.assets import Asset, Assets
from refdesk.console.documents import Holdings
from refdesk.console.feed import Feed, Watch
from refdesk.console.params import Nothing
from refdesk.console.rights import Rights
from refdesk.console.servers import Servers

Method = Callable[[Call], Awaitable[dict[str, Any]]]


class Console:
    """What the desk has of it; `register` makes its methods ones that can be called."""

    def __init__(
        self,
        about: Callable[[], Mapping[str, Any]],
        rights: Rights,
        holdings: Holdings,
        servers: Servers,
        administration: Administration,
        activity: Activity,
        feed: Feed,
    ) -> None:
        """`about` says what there is to know of the desk itself, whoever asks."""
        self._about = about
        self._rights = rights
        self._holdings = holdings
        self._servers = servers
        self._administration = administration
        self._activity = activity
        self._feed = feed
        self._assets = Assets()

    def register(self, add_method: Callable[[str, Method], None]) -> None:
        """Have the methods answered."""
        holdings, servers, administration = self._holdings, self._servers, self._administration
        methods: list[Method] = [
            self.me,
            self.events,
            self._activity.metrics,
            *(holdings.collections, holdings.documents, holdings.document, holdings.read),
            *(holdings.create_collection, holdings.delete_collection, holdings.delete_documents, holdings.retry),
            *(servers.servers, servers.server_log, servers.set_server, servers.approve),
            *(administration.keys, administration.make_key, administration.revoke_key, administration.tenants),
        ]
        for method in methods:
            add_method(f"{CONSOLE}{method.__name__}", method)

    async def me(self, call: Call) -> dict[str, Any]:
        """Who asks, what is open to them, and what this desk is."""
        Nothing.of(call)
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
        """Leave to be told of changes; they come by another way than answers."""
        Nothing.of(call)
        return {}

    def find(self, path: str) -> Asset | None:
        """A file by its path below `/console/`."""
        return self._assets.find(path)

    def watched_by(self, caller: Caller) -> AbstractContextManager[Watch]:
        """Tell a caller of changes."""
        return self._feed.watched_by(caller)

    def drain(self) -> None:
        """End every watch."""
        self._feed.drain()
