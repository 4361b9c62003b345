"""Permission interfaces of the console, implemented by `policy.permissions`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from refdesk.calls import Caller

CanReach = Callable[[Caller, str, str, Collection[str]], bool]
"""Whether a caller may use an item of a server, given the item's name and the server's tenants."""

CanReachServer = Callable[[Caller, str, Collection[str]], bool]
"""Whether a caller may use any item of a server."""


class Rights(Protocol):
    """Permission checks."""

    def toolsets(self, caller: Caller) -> frozenset[str]:
        """Return the toolsets open to a caller."""
        ...

    def may(self, caller: Caller, method: str) -> bool:
        """Whether a caller may call a console method."""
        ...
