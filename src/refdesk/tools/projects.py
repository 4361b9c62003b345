"""The project that a caller works on, and the collection that belongs to it.

A project is what the client's first MCP root names, or else the `project` setting. To ask a client for its roots is a
round trip, and a plain request cannot carry one; so it is asked where it is worth it: when documents are brought in
without naming a collection, and, once, on the first need of a process that has only one client (standard input and
output). What was learned holds for that user from then on. For callers that nobody can tell apart (a desk without keys)
it does not: another window's project would hide what they look for. They get the setting, or search everything.

A root here is only a name; no folder is opened because of it, so any client's is believed.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections import OrderedDict
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
from refdesk.validation import shortened

COLLECTION_PREFIX = "claude-code-"
"""What a project's collection is called before the project's own name."""

MAPPING_FILE = "projects.json"

MAX_USERS = 10_000
"""Whose project is kept in mind; the longest unused is forgotten, and asked for or searched without."""


@dataclass(frozen=True, slots=True)
class Project:
    """What a caller works on."""

    name: str
    path: str = ""
    """Where it is, in the client's words."""

    @property
    def collection_name(self) -> str:
        """What its collection is called when it is made."""
        return f"{COLLECTION_PREFIX}{self.name}"


class Mapped(BaseModel):
    """A project's entry in the mapping file."""

    model_config = ConfigDict(frozen=True, extra="allow")

    collection_id: str
    path: str = ""


class _Mapping(RootModel[dict[str, dict[str, Mapped]]]):
    """Tenant, then project, then its collection."""


class MappingFile:
    """Which collection belongs to which project: a file that people may edit and several processes write.

    It is replaced as a whole, by one process at a time. One that cannot be understood is never written over.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._known: Mapping[str, Mapping[str, Mapped]] = {}

    def get(self, tenant: TenantId, project: str) -> Mapped | None:
        """A project's entry; the file is read again only when it has changed."""
        return self._current().get(tenant, {}).get(project)

    def put(self, tenant: TenantId, project: str, entry: Mapped) -> None:
        """Record a project's collection; it is on the disk when this returns."""
        with self._told_of_the_disk(), self._alone():
            known = {name: dict(projects) for name, projects in self._read().items()}
            known.setdefault(tenant, {})[project] = entry
            self._replace(_Mapping(known).model_dump(mode="json"))

    def _current(self) -> Mapping[str, Mapping[str, Mapped]]:
        with self._told_of_the_disk():
            try:
                found = self._path.stat()
            except FileNotFoundError:
                return {}
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if stamp != self._seen:
                self._known, self._seen = self._read(), stamp
        return self._known

    def _read(self) -> Mapping[str, Mapping[str, Mapped]]:
        try:
            return _Mapping.model_validate_json(self._path.read_bytes()).root
        except FileNotFoundError:
            return {}
        except ValidationError as error:
            where = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, where["loc"])) or "the whole"
            raise EngineError(
                f"{self._path} cannot be understood ({place}: {where['msg']}). Mend it, or move it away: "
                "it is not written over."
            ) from error

    def _replace(self, content: Any) -> None:
        with tempfile.NamedTemporaryFile(dir=self._path.parent, prefix=".projects-", delete=False) as file:
            try:
                file.write(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, self._path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
        _sync_folder(self._path.parent)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While no other process writes; the lock is beside the file, as the file itself is replaced."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_name(f".{self._path.name}.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _told_of_the_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"{self._path} cannot be used: {error.strerror}", retry_after=60) from error


class Projects:
    """Whose project is which, and its collection."""

    def __init__(self, engine: Engine, settings: ProjectsConfig, data: Path, default: str | None) -> None:
        self._engine = engine
        self.creates_collections = settings.auto_create_collections
        self._mapping = MappingFile(settings.collection_mapping_file or data / MAPPING_FILE)
        self._default = Project(name) if default and (name := _clean(default)) else None
        self._learned: OrderedDict[tuple[TenantId, UserId], Project | None] = OrderedDict()

    async def current(self, call: Call, *, ask: bool = False) -> Project | None:
        """The caller's project; with `ask`, what its client says now."""
        caller = (call.caller.tenant, call.caller.user)
        if ask or (call.caller.local and caller not in self._learned):
            announced = await _announced(call)
            if call.caller.authenticated:
                self._learn(caller, announced)
            return announced or self._default
        return self._learned.get(caller) or self._default

    async def collection(self, tenant: TenantId, project: Project) -> CollectionInfo | None:
        """A project's collection if it has one: the one that is written down, or the one with its name."""
        entry = self._mapping.get(tenant, project.name)
        own = [info for info in self._engine.sets(tenant) if not info.shared]
        if not own:  # as it also looks before anybody of the tenant has asked for anything
            own = [info for info in await self._engine.collections(tenant) if not info.shared]
        if entry is not None:
            mapped = next((info for info in own if info.id == entry.collection_id), None)
            if mapped is not None:
                return mapped
        return next((info for info in own if info.name == project.collection_name), None)

    async def collection_made(self, tenant: TenantId, project: Project) -> CollectionInfo | None:
        """A project's collection, made and written down where that is wanted; None when it has none."""
        found = await self.collection(tenant, project)
        if found is None:
            if not self.creates_collections:
                return None
            description = f"Documents of the project {project.name}"
            found = await self._engine.create_collection(tenant, project.collection_name, description=description)
        known = self._mapping.get(tenant, project.name)
        entry = Mapped(collection_id=found.id, path=project.path or (known.path if known else ""))
        if known is None or (known.collection_id, known.path) != (entry.collection_id, entry.path):
            await to_thread.run_sync(self._mapping.put, tenant, project.name, entry)
        return found

    def path(self, tenant: TenantId, project: Project) -> str:
        """Where a project is: as its client says, or as it was written down."""
        entry = self._mapping.get(tenant, project.name)
        return project.path or (entry.path if entry else "")

    def _learn(self, caller: tuple[TenantId, UserId], project: Project | None) -> None:
        self._learned[caller] = project
        self._learned.move_to_end(caller)
        if len(self._learned) > MAX_USERS:
            self._learned.popitem(last=False)


async def _announced(call: Call) -> Project | None:
    """The project that the client's first root names."""
    try:
        answer = await call.client.ask("roots", "roots/list", {})
    except (ClientCannot, MissingCapability):
        return None
    roots = answer.get("roots")
    for root in roots if isinstance(roots, list) else ():
        if isinstance(root, Mapping) and (project := _project_of(root)) is not None:
            return project
    return None


def _project_of(root: Mapping[str, Any]) -> Project | None:
    try:
        parts = urlsplit(str(root.get("uri", "")))
    except ValueError:
        return None
    path = unquote(parts.path) if parts.scheme else ""
    # The folder's name, not the one that the client shows: that differs from one client to the next.
    name = _clean(PurePosixPath(path).name)
    return Project(name, shortened(path, 1000)) if name else None


def _clean(name: str) -> str:
    """A name fit to be shown and written down."""
    return shortened(" ".join(name.split()), 80) if name.isprintable() else ""


def _sync_folder(folder: Path) -> None:
    """Have the disk keep a new name; to sync the file alone would keep its content under the old one."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
