"""Resolves the collections of a call: named ones, the current project's, or all that the caller can read.

The project is the client's first MCP root, or else the `project` setting. Asking for roots is a round trip that a plain
request cannot carry. So it happens only when documents are ingested without naming a collection, and once on the first
use over stdio, where there is a single client. The result is remembered for that user. It is not remembered for
anonymous callers, who can't be told apart: another window's project would hide their documents. They get the setting,
or search everything.

A root is only used as a name. No folder is opened because of it, so any client's is trusted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import orjson
from anyio import to_thread
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from refdesk.calls import Call, TenantId, UserId
from refdesk.config.models import ProjectsConfig
from refdesk.engines.base import CollectionInfo, Engine
from refdesk.errors import ClientCannot, DependencyError, EngineError, MissingCapability, StorageError, ToolFailure
from refdesk.support.fs import FileStamp, lock_file, read_stamp, replace_file
from refdesk.support.lru import BoundedDict
from refdesk.validation import nearest_name, shorten

ALL = "all"
DEFAULT_COLLECTION = "default"
"""Destination of documents without a project or a named collection."""

COLLECTION_PREFIX = "claude-code-"
"""Prefix of a project's collection name."""

MAPPING_FILE = "projects.json"

MAX_USERS = 10_000
"""Users whose project is remembered; the least recently updated is evicted."""


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
    collections: tuple[str, ...] = ()
    """Ids; empty for all."""
    is_default: bool = False
    """Whether they come from the caller's project, not from the call."""

    @property
    def label(self) -> str:
        """The ids as one string, for results and the search history."""
        return ", ".join(self.collections) or ALL


class ScopeResolver:
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
        except (CollectionNotFound, DependencyError) as error:
            # If the engine can't list its collections now, it may still queue documents for one.
            is_down = isinstance(error, DependencyError)
            if name == ALL or not self._projects.creates_collections or (is_down and not error.retryable):
                raise
            return await self._engine.create_collection(tenant, name)
        if found.shared:
            raise CollectionClosed(f"{found.id!r} is built in and read-only. Name another collection.")
        return found

    async def find(self, tenant: TenantId, name: str) -> CollectionInfo:
        # In memory first, as every search comes through here; it misses only what another process has just created.
        found = _find_by_name(self._engine.cached_collections(tenant), name)
        if found is None:
            collections = await self._engine.collections(tenant)
            found = _find_by_name(collections, name)
            if found is None:
                nearest = nearest_name(name.casefold(), [info.id for info in collections])
                hint = f"Did you mean {nearest!r}?" if nearest else "r2r_list_collections lists them."
                raise CollectionNotFound(f"There is no collection {shorten(name)!r}. {hint}")
        return found


def _find_by_name(infos: Sequence[CollectionInfo], name: str) -> CollectionInfo | None:
    by_id = next((info for info in infos if info.id == name), None)
    return by_id or next((info for info in infos if info.name.casefold() == name.casefold()), None)


@dataclass(frozen=True, slots=True)
class Project:
    name: str
    path: str = ""
    """Its folder, as reported by the client."""

    @property
    def collection_name(self) -> str:
        """Name of its collection when it is created."""
        return f"{COLLECTION_PREFIX}{self.name}"


class ProjectEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    collection_id: str
    path: str = ""


_Mapping = RootModel[dict[str, dict[str, ProjectEntry]]]
"""Entries by tenant and project."""


class MappingFile:
    """The file that maps projects to collections, editable by users and shared by processes.

    It is replaced atomically under a lock. An invalid file is never overwritten.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: FileStamp = None
        self._entries: Mapping[str, Mapping[str, ProjectEntry]] = {}

    def get(self, tenant: TenantId, project: str) -> ProjectEntry | None:
        """Return a project's entry; the file is read again only if it has changed."""
        with self._translate_os_errors():
            stamp = read_stamp(self._path)
            if stamp is None or stamp != self._stamp:
                self._entries, self._stamp = self._read(), stamp
        return self._entries.get(tenant, {}).get(project)

    def put(self, tenant: TenantId, project: str, entry: ProjectEntry) -> None:
        with self._translate_os_errors(), lock_file(self._path):
            entries = {name: dict(projects) for name, projects in self._read().items()}
            entries.setdefault(tenant, {})[project] = entry
            content = _Mapping(entries).model_dump(mode="json")
            replace_file(self._path, orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")

    def _read(self) -> Mapping[str, Mapping[str, ProjectEntry]]:
        try:
            return _Mapping.model_validate_json(self._path.read_bytes()).root
        except FileNotFoundError:
            return {}
        except ValidationError as error:
            where = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, where["loc"])) or "the whole"
            raise EngineError(
                f"{self._path} is invalid ({place}: {where['msg']}). Fix it, or move it away; "
                "Refdesk doesn't overwrite it."
            ) from error

    @contextmanager
    def _translate_os_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"{self._path} cannot be used: {error.strerror}", retry_after=60) from error


class Projects:
    """Resolves callers to projects, and projects to collections."""

    def __init__(self, engine: Engine, settings: ProjectsConfig, data: Path, default: str | None) -> None:
        self._engine = engine
        self.creates_collections = settings.auto_create_collections
        self._mapping = MappingFile(settings.collection_mapping_file or data / MAPPING_FILE)
        self._default = Project(name) if default and (name := _clean_name(default)) else None
        self._by_caller: BoundedDict[tuple[TenantId, UserId], Project | None] = BoundedDict(MAX_USERS)

    async def get_current(self, call: Call, *, ask: bool = False) -> Project | None:
        """Return the caller's project; with `ask`, request it from the client now."""
        caller = (call.caller.tenant, call.caller.user)
        if ask or (call.caller.local and caller not in self._by_caller):
            reported = await _request_project(call)
            if call.caller.authenticated:
                self._by_caller[caller] = reported
            return reported or self._default
        return self._by_caller.get(caller) or self._default

    async def find_collection(self, tenant: TenantId, project: Project) -> CollectionInfo | None:
        """Return a project's collection: the mapped one, or the one with its name."""
        entry = self._mapping.get(tenant, project.name)
        own = [info for info in self._engine.cached_collections(tenant) if not info.shared]
        if not own:  # also the case before the first request of the tenant
            own = [info for info in await self._engine.collections(tenant) if not info.shared]
        mapped = next((info for info in own if entry is not None and info.id == entry.collection_id), None)
        return mapped or next((info for info in own if info.name == project.collection_name), None)

    async def ensure_collection(self, tenant: TenantId, project: Project) -> CollectionInfo | None:
        """Return a project's collection, creating and recording it if enabled; None if there is none."""
        try:
            info = await self.find_collection(tenant, project)
        except DependencyError as error:
            if not error.retryable:
                raise
            info = None
        if info is None:
            if not self.creates_collections:
                return None
            description = f"Documents of the project {project.name}"
            info = await self._engine.create_collection(tenant, project.collection_name, description=description)
        known = self._mapping.get(tenant, project.name)
        entry = ProjectEntry(collection_id=info.id, path=project.path or (known.path if known else ""))
        if known is None or (known.collection_id, known.path) != (entry.collection_id, entry.path):
            await to_thread.run_sync(self._mapping.put, tenant, project.name, entry)
        return info

    def get_path(self, tenant: TenantId, project: Project) -> str:
        """Return a project's folder, as reported by the client or as recorded."""
        entry = self._mapping.get(tenant, project.name)
        return project.path or (entry.path if entry else "")


async def request_roots(call: Call) -> list[str]:
    """Ask the client for its roots, and return their URIs. There are none if it can't answer."""
    try:
        answer = await call.client.ask("roots", "roots/list", {})
    except (ClientCannot, MissingCapability):
        return []
    roots = answer.get("roots")
    return [str(root.get("uri", "")) for root in roots if isinstance(root, Mapping)] if isinstance(roots, list) else []


async def _request_project(call: Call) -> Project | None:
    """Return the project of the client's first root."""
    for uri in await request_roots(call):
        try:
            parts = urlsplit(uri)
        except ValueError:
            continue
        path = unquote(parts.path) if parts.scheme else ""
        # The folder's name, not the displayed one, which differs between clients.
        if name := _clean_name(PurePosixPath(path).name):
            return Project(name, shorten(path, 1000))
    return None


def _clean_name(name: str) -> str:
    """Normalize whitespace and length; reject unprintable names."""
    return shorten(" ".join(name.split()), 80) if name.isprintable() else ""
