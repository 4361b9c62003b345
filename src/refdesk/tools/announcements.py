"""Publishes list and resource changes when a tenant's documents change."""

from __future__ import annotations

from collections import OrderedDict

from refdesk.calls import ListChanged, ResourceUpdated, TenantId
from refdesk.engines.base import SHARED, PassageSearch
from refdesk.tools.r2r_resources import CONTEXT
from refdesk.tools.registry import Registry

MAX_TENANTS = 10_000
"""Tenants whose collections are remembered; after eviction, the next change publishes new lists."""


class ChangePublisher:
    """Engine listener: `engine.listen(ChangePublisher(engine, registry).changed)`."""

    def __init__(self, engine: PassageSearch, registry: Registry) -> None:
        self._engine = engine
        self._registry = registry
        self._collection_ids: OrderedDict[TenantId, tuple[str, ...]] = OrderedDict()

    def changed(self, tenant: TenantId) -> None:
        """Publish changed lists if the tenant's collections differ, and the project's new state."""
        ids = tuple(entry.id for entry in self._engine.cached_collections(tenant))
        # Other tenants are not told; changes of shared collections are announced to all.
        audience = None if tenant == SHARED else tenant
        if self._collection_ids.get(tenant) != ids:
            self._remember(tenant, ids)
            # Collections are resources, and values of `doc_type` in a tool's schema.
            self._registry.publish(ListChanged("resources", audience))
            self._registry.publish(ListChanged("tools", audience))
        self._registry.publish(ResourceUpdated(CONTEXT, audience))

    def _remember(self, tenant: TenantId, ids: tuple[str, ...]) -> None:
        self._collection_ids[tenant] = ids
        self._collection_ids.move_to_end(tenant)
        if len(self._collection_ids) > MAX_TENANTS:
            self._collection_ids.popitem(last=False)
