"""The caller's current project and its collection.

The project is the client's first MCP root, or else the `project` setting. Asking for roots is a round trip that a plain
request cannot carry. So it happens only when documents are ingested without naming a collection, and once on the first
use over stdio, where there is a single client. The result is remembered for that user. It is not remembered for
anonymous callers, who can't be told apart: another window's project would hide their documents. They get the setting,
or search everything.

A root is only used as a name. No folder is opened because of it, so any client's is trusted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson
from anyio import to_thread
from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from refdesk.calls import Call, TenantId, UserId
from refdesk.config import ProjectsConfig
from refdesk.engines.base import CollectionInfo, Engine
from refdesk.errors import ClientCannot, EngineError, MissingCapability, StorageError
from refdesk.support.fs import lock_file, replace_file
from refdesk.support.lru import BoundedDict
from refdesk.validation import shorten

COLLECTION_PREFIX = "claude-code-"
"""Prefix of a project's collection name."""

MAPPING_FILE = "projects.json"

MAX_USERS = 10_000
"""Users whose project is remembered; the least recently updated is evicted."""


@dataclass(frozen=True, slots=True)
class Project:
    """A caller's project."""

    name: str
    path: str = ""
    """Its folder, as reported by the client."""

    @property
    def collection_name(self) -> str:
        """Name of its collection when it is created."""
        return f"{COLLECTION_PREFIX}{self.name}"


class ProjectEntry(BaseModel):
    """A project's entry in the mapping file."""

    model_config = ConfigDict(frozen=True, extra="allow")

    collection_id: str
    path: str = ""


class _Mapping(RootModel[dict[str, dict[str, ProjectEntry]]]):
    """Entries by tenant and project."""


class MappingFile:
    """The file that maps projects to collections, editable by users and shared by processes.

    It is replaced atomically under a lock. An invalid file is never overwritten.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._entries: Mapping[str, Mapping[str, ProjectEntry]] = {}

    def get(self, tenant: TenantId, project: str) -> ProjectEntry | None:
        """Return a project's entry; the file is read again only if it has changed."""
        return self._load().get(tenant, {}).get(project)

    def put(self, tenant: TenantId, project: str, entry: ProjectEntry) -> None:
        """Store a project's entry durably."""
        with self._translate_os_errors(), lock_file(self._path):
            entries = {name: dict(projects) for name, projects in self._read().items()}
            entries.setdefault(tenant, {})[project] = entry
            self._replace(_Mapping(entries).model_dump(mode="json"))

    def _load(self) -> Mapping[str, Mapping[str, ProjectEntry]]:
        with self._translate_os_errors():
            try:
                info = self._path.stat()
            except FileNotFoundError:
                return {}
            stamp = (info.st_mtime_ns, info.st_size, info.st_ino)
            if stamp != self._stamp:
                self._entries, self._stamp = self._read(), stamp
        return self._entries

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

    def _replace(self, content: Any) -> None:
        encoded = orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
        replace_file(self._path, encoded + b"\n")

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
        if entry is not None:
            mapped = next((info for info in own if info.id == entry.collection_id), None)
            if mapped is not None:
                return mapped
        return next((info for info in own if info.name == project.collection_name), None)

    async def ensure_collection(self, tenant: TenantId, project: Project) -> CollectionInfo | None:
        """Return a project's collection, creating and recording it if enabled; None if there is none."""
        info = await self.find_collection(tenant, project)
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


async def _request_project(call: Call) -> Project | None:
    """Ask the client for its roots, and return the first one's project."""
    try:
        answer = await call.client.ask("roots", "roots/list", {})
    except (ClientCannot, MissingCapability):
        return None
    roots = answer.get("roots")
    for root in roots if isinstance(roots, list) else ():
        if isinstance(root, Mapping) and (project := _parse_root(root)) is not None:
            return project
    return None


def _parse_root(root: Mapping[str, Any]) -> Project | None:
    try:
        parts = urlsplit(str(root.get("uri", "")))
    except ValueError:
        return None
    path = unquote(parts.path) if parts.scheme else ""
    # The folder's name, not the displayed one, which differs between clients.
    name = _clean_name(PurePosixPath(path).name)
    return Project(name, shorten(path, 1000)) if name else None


def _clean_name(name: str) -> str:
    """Normalize whitespace and length; reject unprintable names."""
    return shorten(" ".join(name.split()), 80) if name.isprintable() else ""
