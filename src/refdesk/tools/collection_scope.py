"""Which collections a call is about: the ones it names, its project's, or all that the caller can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from refdesk.calls import Call, TenantId
from refdesk.engines.base import CollectionInfo, Engine
from refdesk.errors import ToolFailure
from refdesk.tools.projects import Projects
from refdesk.validation import nearest_name, shortened

ALL = "all"
DEFAULT_COLLECTION = "default"
"""Where documents go that belong to no project and name no collection."""


def may_be_left_out(schema: dict[str, Any]) -> None:
    """Say less of an argument of several types: that it may be null goes without saying."""
    schema["anyOf"] = [option for option in schema["anyOf"] if option != {"type": "null"}]
    schema.pop("default", None)


CollectionName = Annotated[str, Field(min_length=1, max_length=200)]
CollectionId = Annotated[CollectionName | None, Field(description="Id or name.")]
CollectionIds = Annotated[
    CollectionName | Annotated[list[CollectionName], Field(min_length=1, max_length=50)] | None,
    Field(description='Id(s) or name(s); "all"; default: current project.', json_schema_extra=may_be_left_out),
]


class CollectionNotFound(ToolFailure):
    """No such collection; another tenant's answers exactly so."""


class CollectionClosed(ToolFailure):
    """A collection that came with Refdesk, which nobody changes."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The collections that a call is about."""

    collections: tuple[str, ...] = ()
    """Ids; none means all."""
    is_assumed: bool = False
    """Whether it was the caller's project that chose them, not the caller."""

    @property
    def label(self) -> str:
        """The collections' ids as one word, for answers and the history."""
        return ", ".join(self.collections) or ALL


class Scopes:
    """Finds the collections that callers mean."""

    def __init__(self, engine: Engine, projects: Projects) -> None:
        self._engine = engine
        self._projects = projects

    async def to_search(self, call: Call, named: str | Sequence[str] | None) -> Scope:
        """Where to search: a project without documents does not hide those of others."""
        if named is not None:
            names = [named] if isinstance(named, str) else named
            if ALL in names:
                return Scope()
            infos = [await self.find(call.caller.tenant, name) for name in names]
            return Scope(tuple(dict.fromkeys(info.id for info in infos)))
        project = await self._projects.current(call)
        info = await self._projects.collection(call.caller.tenant, project) if project else None
        return Scope((info.id,), is_assumed=True) if info and info.documents else Scope()

    async def to_fill(self, call: Call, named: str | None) -> CollectionInfo:
        """Where to bring documents in; made when it is not there and may be."""
        tenant = call.caller.tenant
        if named is None:
            project = await self._projects.current(call, ask=True)
            info = await self._projects.collection_made(tenant, project) if project else None
            return info or await self._engine.create_collection(tenant, DEFAULT_COLLECTION)
        try:
            found = await self.find(tenant, named)
        except CollectionNotFound:
            if named == ALL or not self._projects.creates_collections:
                raise
            return await self._engine.create_collection(tenant, named)
        if found.shared:
            raise CollectionClosed(f"{found.id!r} comes with Refdesk and takes no documents; name another collection.")
        return found

    async def find(self, tenant: TenantId, named: str) -> CollectionInfo:
        """A collection by its id or its name."""
        # What is in memory first: on every search's path, and right but for what another process has just made.
        found = _named(self._engine.sets(tenant), named)
        if found is None:
            every = await self._engine.collections(tenant)
            found = _named(every, named)
            if found is None:
                raise CollectionNotFound(_not_found(named, every))
        return found


def _named(infos: Sequence[CollectionInfo], named: str) -> CollectionInfo | None:
    by_id = next((info for info in infos if info.id == named), None)
    return by_id or next((info for info in infos if info.name.casefold() == named.casefold()), None)


def _not_found(named: str, infos: Sequence[CollectionInfo]) -> str:
    nearest = nearest_name(named.casefold(), [info.id for info in infos])
    hint = f"Did you mean {nearest!r}?" if nearest else "r2r_list_collections says what there is."
    return f"There is no collection {shortened(named)!r}. {hint}"
