"""What the console has to know of permissions; `policy.permissions` decides."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from refdesk.calls import Caller

Reach = Callable[[Caller, str, str, Collection[str]], bool]
"""Whether something of a server, by its name there, is open to a caller; with the tenants that the server is for."""

ReachSome = Callable[[Caller, str, Collection[str]], bool]
"""Whether anything of a server can be."""


class Rights(Protocol):
    """Who may do what."""

    def toolsets(self, caller: Caller) -> frozenset[str]:
        """The toolsets that are open to a caller."""
        ...

    def may(self, caller: Caller, method: str) -> bool:
        """Whether a method of the console is open to a caller."""
        ...
