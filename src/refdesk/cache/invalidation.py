"""Per-tenant version counters for invalidation within this process."""

from __future__ import annotations

from collections import OrderedDict

from refdesk.calls import TenantId

MAX_TENANTS = 10_000
"""Tenants with a counter of their own. Evicted ones share the last evicted version, which can invalidate too much but
never too little."""


class TenantVersions:
    """A version number per tenant that changes with each invalidation."""

    def __init__(self, max_tenants: int = MAX_TENANTS) -> None:
        self._max_tenants = max_tenants
        self._counter = 0
        self._evicted_version = 0
        self._versions: OrderedDict[TenantId, int] = OrderedDict()

    def get(self, tenant: TenantId) -> int:
        """Return the tenant's current version."""
        return self._versions.get(tenant, self._evicted_version)

    def bump(self, tenant: TenantId) -> None:
        """Change the tenant's version."""
        self._counter += 1
        self._versions[tenant] = self._counter
        self._versions.move_to_end(tenant)
        if len(self._versions) > self._max_tenants:
            self._evicted_version = self._versions.popitem(last=False)[1]
