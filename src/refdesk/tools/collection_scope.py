"""Resolves the collections of a call: named ones, the current project's, or all that the caller can read.

The project is the one that the request names in its URL or header, else the client's first MCP root, else the
`project` setting. Nothing is remembered for a user, who may have windows on several projects: the session remembers
the roots, and a request without a session names its project or is asked for roots.

A project is identified by its path. Two folders of the same name are two projects, whose names get a number. A path is
only used as an identifier. No folder is opened because of it, so any client's is trusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from posixpath import basename, normpath
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import orjson
from anyio import to_thread
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from refdesk.calls import Call, TenantId
from refdesk.config.models import ProjectsConfig
from refdesk.documents.model import slug_of
from refdesk.engines.base import CollectionInfo, Engine
from refdesk.errors import (
    ClientCannot,
    DependencyError,
    EngineError,
    InvalidArguments,
    MissingCapability,
    Problem,
    StorageError,
    ToolFailure,
)
from refdesk.support.fs import FileStamp, lock_file, read_stamp, replace_file
from refdesk.tools.collection_versions import find_collection
from refdesk.validation import nearest_name, shorten

ALL = "all"
DEFAULT_COLLECTION = "default"
"""Destination of documents without a project or a named collection."""

COLLECTION_PREFIX = "claude-code-"
"""Prefix of a project's collection name."""

MAPPING_FILE = "projects.json"

MAX_PATH = 4096
"""Maximum length of a project's path, in characters."""

NO_COLLECTION = "(none)"
"""Stands for no collection at all; it can't be the id of one."""


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
    project: str | None = None
    """Name of the current project, if the call doesn't name a collection."""
    is_project_empty: bool = False
    """Whether the project has no collection yet. Then these are the collections that belong to no project."""

    @property
    def label(self) -> str:
        """The ids as one string, for results and the search history."""
        return ", ".join(self.collections) or ALL

    @property
    def note(self) -> str:
        """Which project was used, for an answer; empty if the call names its collections."""
        if self.project is None:
            return ""
        if self.is_project_empty:
            return (
                f"The current project, {self.project!r}, has no documents yet, and other projects' were left out; "
                'collection_id "all" includes them'
            )
        return f'Only the current project, {self.project!r}, was used; collection_id "all" uses everything'


class ScopeResolver:
    def __init__(self, engine: Engine, projects: Projects) -> None:
        self._engine = engine
        self._projects = projects

    async def resolve_search(self, call: Call, name: str | Sequence[str] | None) -> CollectionScope:
        """Return the collections to search. For a project without a collection, those that belong to no project."""
        if name is not None:
            names = [name] if isinstance(name, str) else name
            if ALL in names:
                return CollectionScope()
            infos = [await self.find(call.caller.tenant, name) for name in names]
            return CollectionScope(tuple(dict.fromkeys(info.id for info in infos)))
        project = await self._projects.get_current(call)
        if project is None:
            return CollectionScope()
        tenant = call.caller.tenant
        info = await self._projects.find_collection(tenant, project)
        if info is not None:
            return CollectionScope((info.id,), project.name)
        others = self._projects.list_unassigned(tenant) or (NO_COLLECTION,)
        return CollectionScope(others, project.name, is_project_empty=True)

    async def resolve_destination(self, call: Call, name: str | None) -> tuple[CollectionInfo, str]:
        """Return the collection to ingest into, creating it if allowed, and why it is that one."""
        tenant = call.caller.tenant
        if name is None:
            return await self._resolve_default_destination(call)
        try:
            found = await self.find(tenant, name, or_newest=False)
        except (CollectionNotFound, DependencyError) as error:
            # If the engine can't list its collections now, it may still queue documents for one.
            is_down = isinstance(error, DependencyError)
            if name == ALL or not self._projects.creates_collections or (is_down and not error.retryable):
                raise
            return await self._engine.create_collection(tenant, name), ""
        if found.shared:
            raise CollectionClosed(f"{found.id!r} is built in and read-only. Name another collection.")
        return found, ""

    async def _resolve_default_destination(self, call: Call) -> tuple[CollectionInfo, str]:
        tenant = call.caller.tenant
        project = await self._projects.get_current(call)
        if project is not None:
            project, info = await self._projects.ensure_collection(tenant, project)
            if info is not None:
                return info, f"It belongs to the current project, {project.name!r}."
            setting = "projects.auto_create_collections"
            why = f"The current project, {project.name!r}, has no collection, and {setting} is off."
        else:
            why = "No current project is known: the client gives no roots, and the server's URL has no ?project=NAME."
        return await self._engine.create_collection(tenant, DEFAULT_COLLECTION), why

    async def find(self, tenant: TenantId, name: str, *, or_newest: bool = True) -> CollectionInfo:
        """Return a collection by id or name; with `or_newest`, also the newest version of a family."""
        # In memory first, as every search comes through here; it misses only what another process has just created.
        found = find_collection(self._engine.cached_collections(tenant), name, or_newest=or_newest)
        if found is None:
            collections = await self._engine.collections(tenant)
            found = find_collection(collections, name, or_newest=or_newest)
            if found is None:
                nearest = nearest_name(name.casefold(), [info.id for info in collections])
                hint = f"Did you mean {nearest!r}?" if nearest else "r2r_list_collections lists them."
                raise CollectionNotFound(f"There is no collection {shorten(name)!r}. {hint}")
        return found


@dataclass(frozen=True, slots=True)
class Project:
    name: str
    """Unique among the tenant's projects, if returned by `Projects`."""
    path: str = ""
    """Its folder, as reported by the client or recorded."""

    @property
    def collection_name(self) -> str:
        """Name of its collection when it is created."""
        return f"{COLLECTION_PREFIX}{self.name}"


class ProjectEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    collection_id: str = ""
    """Empty until the collection is created."""
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

    def get_entries(self, tenant: TenantId) -> Mapping[str, ProjectEntry]:
        """Return a tenant's entries; the file is read again only if it has changed."""
        with self._translate_os_errors():
            stamp = read_stamp(self._path)
            if stamp is None or stamp != self._stamp:
                self._entries, self._stamp = self._read(), stamp
        return self._entries.get(tenant, {})

    def put(self, tenant: TenantId, project: str, entry: ProjectEntry) -> None:
        with self._translate_os_errors(), lock_file(self._path):
            self._write(tenant, project, entry)

    def claim(self, tenant: TenantId, project: Project, collections: Sequence[CollectionInfo]) -> Project:
        """Record a project under a unique name. Return it as it is recorded, by this process or another."""
        with self._translate_os_errors(), lock_file(self._path):
            entries = self._read().get(tenant, {})
            claimed = identify_project(entries, project, collections)
            known = entries.get(claimed.name)
            if known is None or known.path != claimed.path:
                entry = known.model_copy(update={"path": claimed.path}) if known else ProjectEntry(path=claimed.path)
                self._write(tenant, claimed.name, entry)
        return claimed

    def _write(self, tenant: TenantId, project: str, entry: ProjectEntry) -> None:
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
    """Resolves calls to projects, and projects to collections."""

    def __init__(self, engine: Engine, settings: ProjectsConfig, data: Path, default: str | None) -> None:
        self._engine = engine
        self.creates_collections = settings.auto_create_collections
        self._mapping = MappingFile(settings.collection_mapping_file or data / MAPPING_FILE)
        self._default = parse_project(default) if default else None

    async def get_current(self, call: Call) -> Project | None:
        """Return the project of a call, under its unique name. Asks the client for its roots if necessary."""
        if call.project is not None:
            project = parse_project(call.project)
            if project is None:
                raise InvalidArguments([Problem("project", "must be a printable name or the path of a folder")])
        else:
            project = await _request_project(call) or self._default
        if project is None:
            return None
        tenant = call.caller.tenant
        return identify_project(self._mapping.get_entries(tenant), project, self._engine.cached_collections(tenant))

    async def find_collection(self, tenant: TenantId, project: Project) -> CollectionInfo | None:
        """Return a project's collection: the mapped one, or the one with its name."""
        entries = self._mapping.get_entries(tenant)
        entry = entries.get(project.name)
        taken = {other.collection_id for name, other in entries.items() if name != project.name}

        def find(infos: Sequence[CollectionInfo]) -> CollectionInfo | None:
            own = [info for info in infos if not info.shared]
            id = entry.collection_id if entry else None
            mapped = find_collection(own, id, or_newest=False) if id else None
            named = (info for info in own if info.name == project.collection_name and info.id not in taken)
            return mapped or next(named, None)

        cached = self._engine.cached_collections(tenant)
        found = find(cached)
        # Another process may have created it, or this is the first request of the tenant.
        if found is None and (entry is not None or all(info.shared for info in cached)):
            found = find(await self._engine.collections(tenant))
        return found

    async def ensure_collection(self, tenant: TenantId, project: Project) -> tuple[Project, CollectionInfo | None]:
        """Return a project as recorded, and its collection or None. Both are created if that is enabled."""
        if not self.creates_collections and await self.find_collection(tenant, project) is None:
            return project, None
        entry = self._mapping.get_entries(tenant).get(project.name)
        if entry is None or entry.path != project.path:
            cached = self._engine.cached_collections(tenant)
            project = await to_thread.run_sync(self._mapping.claim, tenant, project, cached)
        try:
            info = await self.find_collection(tenant, project)
        except DependencyError as error:
            if not error.retryable:
                raise
            info = None
        if info is None:
            description = f"Documents of the project {project.name}"
            info = await self._engine.create_collection(tenant, project.collection_name, description=description)
        entry = self._mapping.get_entries(tenant).get(project.name, ProjectEntry(path=project.path))
        if entry.collection_id not in info.ids:
            entry = entry.model_copy(update={"collection_id": info.id})
            await to_thread.run_sync(self._mapping.put, tenant, project.name, entry)
        return project, info

    def list_unassigned(self, tenant: TenantId) -> tuple[str, ...]:
        """Return the ids of the collections that belong to no project."""
        mapped = {entry.collection_id for entry in self._mapping.get_entries(tenant).values()}
        return tuple(
            info.id
            for info in self._engine.cached_collections(tenant)
            if info.shared or not (info.name.startswith(COLLECTION_PREFIX) or info.id in mapped)
        )


def identify_project(
    entries: Mapping[str, ProjectEntry], project: Project, collections: Sequence[CollectionInfo]
) -> Project:
    """Return a project under its unique name: the recorded one, or else the first free one.

    A project without a path is the one of its name. An entry without a path is for the first folder of its name.
    """
    # Compared by their ids: collections whose names differ only in case or punctuation would share one.
    ids = {name: slug_of(f"{COLLECTION_PREFIX}{name}") for name in entries}
    if not project.path:
        id = slug_of(project.collection_name)
        name = project.name if project.name in entries else next((name for name in entries if ids[name] == id), "")
        return Project(name, entries[name].path) if name else project
    for name, entry in entries.items():
        if entry.path and _normalize_path(entry.path) == project.path:
            return Project(name, project.path)
    named = entries.get(project.name)
    if named is not None and not named.path:
        return project
    taken = {*ids.values(), *(entry.collection_id for entry in entries.values())}
    if slug_of(project.collection_name) not in taken:
        return project
    taken |= {id for info in collections for id in (info.id, slug_of(info.name))}
    numbered = (Project(f"{project.name[:40]}-{number}", project.path) for number in count(2))
    return next(one for one in numbered if slug_of(one.collection_name) not in taken)


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
    projects = (parse_project(uri) for uri in await request_roots(call) if "://" in uri)
    return next((project for project in projects if project is not None), None)


def parse_project(text: str) -> Project | None:
    """Return the project of a name, a path or a URI; None if it gives no usable name.

    Of a folder it's the folder's name, not the displayed one, which differs between clients.
    """
    if "://" in text:
        try:
            text = unquote(urlsplit(text).path) or "/"
        except ValueError:
            return None
    path = _normalize_path(text) if "/" in text or "\\" in text else ""
    name = basename(path) if path else text
    if not name.isprintable() or not name.strip() or len(path) > MAX_PATH:
        return None
    return Project(shorten(" ".join(name.split()), 80), path)


def _normalize_path(path: str) -> str:
    """Return a path in one spelling, also one of Windows: `C:\\x`, `/c%3A/x` and `/C:/x` are the same folder."""
    path = normpath(path.replace("\\", "/"))
    drive = re.match("/?([A-Za-z]):(?=/|$)", path)
    return f"{drive[1].lower()}:{path[drive.end() :]}" if drive else path
