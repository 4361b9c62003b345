"""Tells clients what has changed since they last looked, whenever the engine says that a tenant's documents did."""

from __future__ import annotations

from collections import OrderedDict

from refdesk.calls import ListChanged, ResourceUpdated, TenantId
from refdesk.engines.base import SHARED, Engine
from refdesk.tools.r2r_resources import CONTEXT
from refdesk.tools.registry import Registry

MAX_TENANTS = 10_000
"""Whose collections are kept in mind; to one that is forgotten, the next change looks like a new list."""


class Announcements:
    """To be called with a tenant after each change: `engine.listen(Announcements(engine, registry).changed)`."""

    def __init__(self, engine: Engine, registry: Registry) -> None:
        self._engine = engine
        self._registry = registry
        self._known: OrderedDict[TenantId, tuple[str, ...]] = OrderedDict()

    def changed(self, tenant: TenantId) -> None:
        """Announce the tenant's change: new lists where its collections are others, and the project's new state."""
        ids = tuple(entry.id for entry in self._engine.sets(tenant))
        # What others do, and when, is nobody's business; what all share is everybody's.
        whose = None if tenant == SHARED else tenant
        if self._known.get(tenant) != ids:
            self._remember(tenant, ids)
            # The collections are resources, and what `doc_type` can be in a tool's schema.
            self._registry.publish(ListChanged("resources", whose))
            self._registry.publish(ListChanged("tools", whose))
        self._registry.publish(ResourceUpdated(CONTEXT, whose))

    def _remember(self, tenant: TenantId, ids: tuple[str, ...]) -> None:
        self._known[tenant] = ids
        self._known.move_to_end(tenant)
        if len(self._known) > MAX_TENANTS:
            self._known.popitem(last=False)
