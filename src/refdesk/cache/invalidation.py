"""How often each tenant's documents have changed, as far as this process knows."""

from __future__ import annotations

from collections import OrderedDict

from refdesk.calls import TenantId

MAX_TENANTS = 10_000
"""Tenants whose changes are told apart. Of the others it is only known that there may have been a change, which makes
answers anew that need not be, and never keeps one that must."""


class Changes:
    """A number for each tenant, another one after each change."""

    def __init__(self, most: int = MAX_TENANTS) -> None:
        self._most = most
        self._last = 0
        self._forgotten = 0
        self._numbers: OrderedDict[TenantId, int] = OrderedDict()

    def number(self, tenant: TenantId) -> int:
        """Another number than before each change of the tenant."""
        return self._numbers.get(tenant, self._forgotten)

    def add(self, tenant: TenantId) -> None:
        """Something of the tenant has changed."""
        self._last += 1
        self._numbers[tenant] = self._last
        self._numbers.move_to_end(tenant)
        if len(self._numbers) > self._most:
            self._forgotten = self._numbers.popitem(last=False)[1]
