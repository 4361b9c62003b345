"""Bringing documents in: what a call names becomes something that the engine takes on, and can be watched.

The engine acknowledges at once and works in the background; nothing is read here but names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from anyio import move_on_after, to_thread
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from refdesk.calls import Call, TenantId
from refdesk.documents.conversion_store import HANDLE
from refdesk.documents.conversions import UPLOAD_SCHEME, Conversions, Wanted
from refdesk.documents.folders import LeftOut, walk
from refdesk.documents.ssrf import parse_url
from refdesk.engines.base import (
    UNDER_WAY,
    CollectionInfo,
    DocumentStatus,
    Engine,
    FileSource,
    NewDocument,
    ShelfSource,
    Source,
    Status,
    TextSource,
    UrlSource,
)
from refdesk.errors import CannotFetch, DocumentNotFound, InvalidArguments, Problem, ToolFailure
from refdesk.tools.collection_scope import CollectionId, Scopes, may_be_left_out
from refdesk.tools.not_found import no_document
from refdesk.tools.outline import MAX_CHARACTERS
from refdesk.tools.registry import Annotations, Registry, Tool
from refdesk.tools.schema import Arguments, Result
from refdesk.tools.sources import ConvertFile, Located, Sources
from refdesk.validation import shortened

TOOLSET = "r2r"

INGEST_SECONDS = 300.0
"""How long a call may wait for its documents; the work itself has no such bound."""

GRACE_SECONDS = 10.0
"""Kept of that to say how far it came."""

MAX_WAIT_SECONDS = 50
"""For one document's progress: below what most clients and proxies wait for an answer."""

MONITOR_SECONDS = MAX_WAIT_SECONDS + GRACE_SECONDS

STEP_SECONDS = 5.0
"""How often somebody who waits is told that nothing has changed, so that the connection is not taken for dead."""

MAX_PATHS = 1000
MAX_FOLDER_FILES = 50_000
"""Files that one call may bring in."""

SHOWN_DOCUMENTS = 40
"""Of a batch; r2r_list_documents tells of all."""

SHOWN_FAILURES = 10

MAX_METADATA_BYTES = 16_384
"""Of what is given with a document: a page full of fields, and not a second document."""

Extraction = Literal["pending", "processing", "success", "failed"]
Path_ = Annotated[str, Field(min_length=1, max_length=4096)]


class R2RIngestDocument(Arguments):
    file_path: Annotated[
        Path_ | Annotated[list[Path_], Field(min_length=1, max_length=MAX_PATHS)] | None,
        Field(
            description="File or folder on the desk's machine, upload:// URI or converted handle; or a list.",
            json_schema_extra=may_be_left_out,
        ),
    ] = None
    url: Annotated[str | None, StringConstraints(strip_whitespace=True, min_length=1, max_length=8000)] = None
    text: Annotated[str | None, Field(min_length=1, description="Markdown, with title.")] = None
    title: Annotated[str | None, StringConstraints(strip_whitespace=True, min_length=1, max_length=300)] = None
    collection_id: Annotated[CollectionId, Field(description="Made if new; default: current project's.")] = None
    metadata: Annotated[dict[str, Any] | None, Field(description="To filter by; version: of what is documented.")] = (
        None
    )
    ingestion_mode: Annotated[
        Literal["hi-res", "fast", "custom"], Field(description="For R2R; the embedded engine converts all alike.")
    ] = "fast"
    run_async: Annotated[bool, Field(description="false: wait until it is searchable.")] = True


class R2RMonitorTask(Arguments):
    document_id: Annotated[str, Field(min_length=1, max_length=2000)]
    wait_seconds: Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS, description="Wait for its end.")] = 0


class IngestedDocument(BaseModel):
    model_config = ConfigDict(frozen=True)

    document_id: str
    status: Status
    file_name: str
    error: str | None = None


class Ingested(Result):
    """What a call brought in, and how far it is: of a batch, the first document's fields stand for themselves too."""

    document_id: str | None = None
    status: Status
    file_name: str
    collection_id: str
    documents: list[IngestedDocument] | None = None
    total: int | None = None
    unchanged: int | None = None
    removed: int | None = None
    failures: list[str] | None = None
    next: str

    def readable(self) -> str:
        first = f"{self.file_name}: {self.status}, document_id {self.document_id}" if self.document_id else ""
        batch = [f"- {entry.document_id}: {entry.status}{_because(entry.error)}" for entry in self.documents or ()]
        counts = {"document(s) taken on": self.total, "unchanged": self.unchanged, "removed": self.removed}
        told = ", ".join(f"{count} {what}" for what, count in counts.items() if count is not None)
        failures = [f"Not taken on: {failure}" for failure in self.failures or ()]
        lines = [told, *batch] if self.documents is not None else [first]
        return "\n".join([*lines, *failures, f"Collection {self.collection_id}. {self.next}"])


class TaskState(Result):
    """How a document is."""

    document_id: str
    title: str
    ingestion_status: Status
    extraction_status: Extraction
    progress: float
    error: str | None = None
    chunks: int
    embedded: int

    def readable(self) -> str:
        words = f"{self.ingestion_status}, {self.progress:.0%}, extraction {self.extraction_status}"
        return f"{self.document_id} ({self.title}): {words}, {self.embedded} of {self.chunks} chunks embedded" + (
            _because(self.error)
        )


@dataclass(frozen=True, slots=True)
class _Named:
    """What a call names: documents, folders of them, and what leads nowhere."""

    sources: Sequence[Source] = ()
    folders: Sequence[Located] = ()
    failures: Sequence[str] = ()

    @classmethod
    def of(cls, found: Sequence[Source | Located], failures: Sequence[str] = ()) -> _Named:
        folders = [one for one in found if isinstance(one, Located)]
        return cls([one for one in found if not isinstance(one, Located)], folders, failures)


@dataclass(slots=True)
class _Taken:
    """What the engine took on for a call."""

    ids: list[str] = field(default_factory=list)
    statuses: list[DocumentStatus] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    unchanged: int = 0
    removed: int = 0
    is_folder: bool = False


class Ingesting:
    """The handlers that bring documents in and watch them."""

    def __init__(self, engine: Engine, scopes: Scopes, sources: Sources, conversions: Conversions) -> None:
        self._engine = engine
        self._scopes = scopes
        self._sources = sources
        self._conversions = conversions

    def register(self, registry: Registry) -> None:
        """Offer the tools that bring documents in."""
        registry.add_tool(
            Tool(
                name="r2r_ingest_document",
                title="Add documents",
                description="Index a file, folder, URL or text; goes on in the background.",
                toolset=TOOLSET,
                arguments=R2RIngestDocument,
                handler=self.ingest,
                result=Ingested,
                annotations=Annotations(read_only=False, open_world=True),
                talks=True,
                seconds=INGEST_SECONDS,
            )
        )
        registry.add_tool(
            Tool(
                name="r2r_monitor_task",
                title="Watch an ingestion",
                description="How far a document's ingestion is.",
                toolset=TOOLSET,
                arguments=R2RMonitorTask,
                handler=self.monitor,
                result=TaskState,
                talks=True,
                seconds=MONITOR_SECONDS,
            )
        )

    async def ingest(self, arguments: R2RIngestDocument, call: Call) -> Ingested:
        _require_one_source(arguments)
        _require_sound_metadata(arguments.metadata)
        # What is named is looked at first: for a file that is not there, no collection is made.
        named = await self._all_named(arguments, call)
        collection = await self._scopes.to_fill(call, arguments.collection_id)
        taken = await self._take(named, arguments, collection, call.caller.tenant)
        if not arguments.run_async:
            with move_on_after(INGEST_SECONDS - GRACE_SECONDS):
                await self._until_done(call, taken)
        return _ingested(arguments, collection, taken)

    async def monitor(self, arguments: R2RMonitorTask, call: Call) -> TaskState:
        tenant, id = call.caller.tenant, arguments.document_id
        status = await self._engine.status(tenant, id)
        if status is None:
            raise await no_document(self._engine, tenant, id, "r2r_list_documents says what there is.")
        if status.status in UNDER_WAY and arguments.wait_seconds:
            taken = _Taken([status.id], [status])
            with move_on_after(arguments.wait_seconds):
                await self._until_done(call, taken)
            status = taken.statuses[0] if taken.statuses else status
        return _task_state(status)

    async def _all_named(self, arguments: R2RIngestDocument, call: Call) -> _Named:
        """What the call names. In a batch, one that leads nowhere is told of, and the others go on."""
        if arguments.url is not None:
            return _Named([url_source(arguments.url)])
        if arguments.text is not None:
            return _Named([TextSource(arguments.title or "", arguments.text)])
        if isinstance(arguments.file_path, str):
            return _Named.of([await self._named(arguments.file_path, call)])
        found: list[Source | Located] = []
        failures: list[str] = []
        for name in arguments.file_path or ():
            try:
                found.append(await self._named(name, call))
            except ToolFailure as failure:
                failures.append(failure.detail)
        if not found:
            raise ToolFailure(f"None of the {len(failures)} files can be taken on. {failures[0]}")
        return _Named.of(found, failures)

    async def _named(self, name: str, call: Call) -> Source | Located:
        """What a name leads to: a source, or a folder of them."""
        if HANDLE.fullmatch(name):
            return await self._shelved(name, call.caller.tenant)
        if name.startswith(UPLOAD_SCHEME):
            async with self._sources.open(ConvertFile(resource=name), call) as file:
                done = await self._conversions.convert(call.caller.tenant, file, Wanted(), call.client.progress)
                return ShelfSource(done.handle, file.name)
        place = await self._sources.locate(name, call)
        if place.is_folder:
            return place
        return FileSource(place.path, place.path.relative_to(place.root).as_posix(), place.root)

    async def _shelved(self, handle: str, tenant: TenantId) -> ShelfSource:
        shelf = await self._conversions.open(tenant, handle)
        if shelf is None:
            raise DocumentNotFound(f"There is no converted document {handle!r}; it may have expired. Convert it again.")
        with shelf:
            return ShelfSource(handle, shelf.about.name or handle)

    async def _take(
        self, named: _Named, arguments: R2RIngestDocument, collection: CollectionInfo, tenant: TenantId
    ) -> _Taken:
        """Have the engine take on what was named."""
        new = [_new_document(source, arguments, collection) for source in named.sources]
        statuses = list(await self._engine.ingest(tenant, new)) if new else []
        taken = _Taken([status.id for status in statuses], statuses, list(named.failures))
        for folder in named.folders:
            await self._take_folder(taken, folder, arguments, collection, tenant)
        return taken

    async def _take_folder(
        self,
        taken: _Taken,
        folder: Located,
        arguments: R2RIngestDocument,
        collection: CollectionInfo,
        tenant: TenantId,
    ) -> None:
        """Bring the collection into step with a folder.

        A collection that was named is taken to be the folder's own: its files are named from the folder, so that it
        can be moved or opened elsewhere and they keep their ids. A file that is named alone says nothing of whose the
        collection is, which may hold files from many folders, and only its path from the open folder is its own.
        """
        base = folder.path if arguments.collection_id is not None else folder.root
        sources, left_out = await to_thread.run_sync(_files, folder, base)
        new = [_new_document(source, arguments, collection) for source in sources]
        unseen = [(folder.path / one.relative).relative_to(base).as_posix() for one in left_out]
        synced = await self._engine.sync_folder(tenant, collection.id, folder.path, new, unseen=unseen)
        ids = [*synced.new, *synced.changed]
        shown = ids[: max(SHOWN_DOCUMENTS - len(taken.statuses), 0)]
        taken.is_folder = True
        taken.ids += ids
        taken.statuses += [status for id in shown if (status := await self._engine.status(tenant, id)) is not None]
        taken.failures += [f"{one.relative}: {one.reason}" for one in left_out]
        taken.unchanged += synced.unchanged
        taken.removed += len(synced.removed)

    async def _until_done(self, call: Call, taken: _Taken) -> None:
        """Wait until all the documents are done, telling the client of the way; what is known is in `taken`."""
        latest = {status.id: status for status in taken.statuses}
        while under_way := [id for id in taken.ids if id not in latest or latest[id].status in UNDER_WAY]:
            found = {s.id: s for s in await self._engine.wait(call.caller.tenant, under_way, seconds=STEP_SECONDS)}
            latest |= found
            # One that was removed meanwhile is not waited for.
            taken.ids = [id for id in taken.ids if id not in under_way or id in found]
            taken.statuses = [latest[id] for id in taken.ids]
            done = sum(status.progress if status.status in UNDER_WAY else 1.0 for status in taken.statuses)
            total = len(taken.ids)
            await call.client.progress(round(done, 3), total, f"{int(done)} of {total} documents")


def url_source(url: str) -> UrlSource:
    """A page to be fetched; CannotFetch at once for what no fetch could ever succeed with."""
    # A host with an escape in it, which a stray bracket becomes, is in no name and no address.
    if "%" in parse_url(url).host:
        raise CannotFetch(f"{shortened(url)!r} is not a valid URL. Give one such as https://example.com/guide.")
    return UrlSource(url)


def _require_one_source(arguments: R2RIngestDocument) -> None:
    given = [arguments.file_path, arguments.url, arguments.text]
    if sum(value is not None for value in given) != 1:
        raise InvalidArguments([Problem("file_path", "give exactly one of file_path, url, text")])
    if (arguments.text is None) != (arguments.title is None):
        raise InvalidArguments([Problem("title", "goes with text, and text with a title")])


def _require_sound_metadata(metadata: dict[str, Any] | None) -> None:
    try:
        size = len(orjson.dumps(metadata))
    except TypeError:
        raise InvalidArguments([Problem("metadata", "must be JSON with valid text and 64-bit numbers")]) from None
    if size > MAX_METADATA_BYTES:
        raise InvalidArguments([Problem("metadata", f"must have at most {MAX_METADATA_BYTES} bytes as JSON")])


def _new_document(source: Source, arguments: R2RIngestDocument, collection: CollectionInfo) -> NewDocument:
    metadata = arguments.metadata or {}
    version = metadata.get("version")
    return NewDocument(source, collection.id, metadata, version if isinstance(version, str) else "")


def _files(folder: Located, base: Path) -> tuple[list[FileSource], list[LeftOut]]:
    """The documents of a folder, and what of it could not be looked at."""
    files: list[FileSource] = []
    left_out: list[LeftOut] = []
    for found in walk(folder.path, max_files=MAX_FOLDER_FILES):
        if isinstance(found, LeftOut):
            left_out.append(found)
        elif folder.admits(found.path):
            files.append(FileSource(found.path, found.path.relative_to(base).as_posix(), folder.root))
    return files, left_out


def _ingested(arguments: R2RIngestDocument, collection: CollectionInfo, taken: _Taken) -> Ingested:
    shown = [
        IngestedDocument(
            document_id=status.id, status=status.status, file_name=_file_name(status), error=_brief(status.error)
        )
        for status in taken.statuses[:SHOWN_DOCUMENTS]
    ]
    is_batch = taken.is_folder or isinstance(arguments.file_path, list)
    first = shown[0] if shown else None
    return Ingested(
        document_id=first.document_id if first else None,
        status=first.status if first else "success",
        file_name=first.file_name if first else str(arguments.file_path),
        collection_id=collection.id,
        documents=shown if is_batch else None,
        total=len(taken.ids) if is_batch else None,
        unchanged=taken.unchanged if taken.is_folder else None,
        removed=taken.removed if taken.is_folder else None,
        failures=[_brief(failure) or "" for failure in taken.failures[:SHOWN_FAILURES]] or None,
        next=_next(taken),
    )


def _next(taken: _Taken) -> str:
    if any(status.status == "failed" for status in taken.statuses):
        return "Some failed: mend the cause and ingest them again."
    if any(status.status in UNDER_WAY for status in taken.statuses):
        return "Under way: r2r_monitor_task tells how far it is."
    return "Searchable with r2r_search."


def _task_state(status: DocumentStatus) -> TaskState:
    return TaskState(
        document_id=status.id,
        title=shortened(status.title, MAX_CHARACTERS),
        ingestion_status=status.status,
        extraction_status=_extraction(status),
        progress=round(status.progress, 3),
        error=status.error,
        chunks=status.chunks,
        embedded=status.embedded,
    )


def _extraction(status: DocumentStatus) -> Extraction:
    """How its conversion went; what fails with chunks there, fails later."""
    if status.status == "failed":
        return "success" if status.chunks else "failed"
    return _EXTRACTION.get(status.status, "success")


_EXTRACTION: dict[Status, Extraction] = {"pending": "pending", "converting": "processing"}


def _file_name(status: DocumentStatus) -> str:
    return status.id.partition("/")[2].rpartition("/")[2]


def _brief(text: str | None) -> str | None:
    return shortened(text, MAX_CHARACTERS * 2) if text else None


def _because(error: str | None) -> str:
    return f": {error}" if error else ""
