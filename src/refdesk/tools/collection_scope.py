"""Resolves the collections of a call: named ones, the project's, or all that the caller can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from refdesk.calls import Call, TenantId
from refdesk.engines.base import CollectionInfo, Engine
from refdesk.errors import ToolFailure
from refdesk.tools.projects import Projects
from refdesk.validation import nearest_name, shorten

ALL = "all"
DEFAULT_COLLECTION = "default"
"""Destination of documents without a project or a named collection."""


def drop_null_option(schema: dict[str, Any]) -> None:
    """Remove `null` and the default from the schema of an optional argument with several types."""
    schema["anyOf"] = [option for option in schema["anyOf"] if option != {"type": "null"}]
    schema.pop("default", None)


CollectionName = Annotated[str, Field(min_length=1, max_length=200)]
CollectionId = Annotated[CollectionName | None, Field(description="Id or name.")]
CollectionIds = Annotated[
    CollectionName | Annotated[list[CollectionName], Field(min_length=1, max_length=50)] | None,
    Field(description='Id(s) or name(s); "all"; default: current project.', json_schema_extra=drop_null_option),
]


class CollectionNotFound(ToolFailure):
    """No such collection; the same error as for another tenant's."""


class CollectionClosed(ToolFailure):
    """A built-in collection, which is read-only."""


@dataclass(frozen=True, slots=True)
class CollectionScope:
    """The collections of a call."""

    collections: tuple[str, ...] = ()
    """Ids; empty for all."""
    is_default: bool = False
    """Whether they come from the caller's project, not from the call."""

    @property
    def label(self) -> str:
        """The ids as one string, for results and the search history."""
        return ", ".join(self.collections) or ALL


class ScopeResolver:
    """Resolves collection names to collections."""

    def __init__(self, engine: Engine, projects: Projects) -> None:
        self._engine = engine
        self._projects = projects

    async def resolve_search(self, call: Call, name: str | Sequence[str] | None) -> CollectionScope:
        """Return the collections to search; a project without documents falls back to all."""
        if name is not None:
            names = [name] if isinstance(name, str) else name
            if ALL in names:
                return CollectionScope()
            infos = [await self.find(call.caller.tenant, name) for name in names]
            return CollectionScope(tuple(dict.fromkeys(info.id for info in infos)))
        project = await self._projects.get_current(call)
        info = await self._projects.find_collection(call.caller.tenant, project) if project else None
        return CollectionScope((info.id,), is_default=True) if info and info.documents else CollectionScope()

    async def resolve_destination(self, call: Call, name: str | None) -> CollectionInfo:
        """Return the collection to ingest into, creating it if allowed."""
        tenant = call.caller.tenant
        if name is None:
            project = await self._projects.get_current(call, ask=True)
            info = await self._projects.ensure_collection(tenant, project) if project else None
            return info or await self._engine.create_collection(tenant, DEFAULT_COLLECTION)
        try:
            found = await self.find(tenant, name)
        except CollectionNotFound:
            if name == ALL or not self._projects.creates_collections:
                raise
            return await self._engine.create_collection(tenant, name)
        if found.shared:
            raise CollectionClosed(f"{found.id!r} is built in and read-only. Name another collection.")
        return found

    async def find(self, tenant: TenantId, name: str) -> CollectionInfo:
        """Find a collection by id or name."""
        # In memory first, as every search comes through here; it misses only what another process has just created.
        found = _find_by_name(self._engine.cached_collections(tenant), name)
        if found is None:
            collections = await self._engine.collections(tenant)
            found = _find_by_name(collections, name)
            if found is None:
                raise CollectionNotFound(_format_not_found(name, collections))
        return found


def _find_by_name(infos: Sequence[CollectionInfo], name: str) -> CollectionInfo | None:
    by_id = next((info for info in infos if info.id == name), None)
    return by_id or next((info for info in infos if info.name.casefold() == name.casefold()), None)


def _format_not_found(name: str, infos: Sequence[CollectionInfo]) -> str:
    nearest = nearest_name(name.casefold(), [info.id for info in infos])
    hint = f"Did you mean {nearest!r}?" if nearest else "r2r_list_collections lists them."
    return f"There is no collection {shorten(name)!r}. {hint}"
