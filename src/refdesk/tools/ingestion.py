"""The ingestion tools: resolve the documents that a call names, submit them to the engine and report progress.

The engine acknowledges at once and works in the background; only names are read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from anyio import move_on_after, to_thread
from pydantic import Field, StringConstraints

from refdesk.calls import Annotations, Call
from refdesk.documents.conversion_store import HANDLE
from refdesk.documents.conversions import UPLOAD_SCHEME, ConversionOptions, Conversions
from refdesk.engines.base import (
    IN_PROGRESS,
    INGESTED_AT,
    INGESTED_BY,
    INGESTION_MODE,
    CollectionInfo,
    ConvertedSource,
    DocumentStatus,
    Engine,
    FileSource,
    NewDocument,
    Source,
    Status,
    TextSource,
)
from refdesk.errors import DocumentNotFound, InvalidArguments, Problem, ToolFailure
from refdesk.ingest.ingester import follow_documents
from refdesk.ingest.sources import build_url_source, list_folder
from refdesk.tools.collection_scope import CollectionId, ScopeResolver, drop_null_option
from refdesk.tools.conversion import ConvertFile, LocatedPath, Sources
from refdesk.tools.document_lookup import build_document_not_found
from refdesk.tools.json_schema import Arguments, Result, ResultItem, Unlisted
from refdesk.tools.paging import MAX_CHARACTERS
from refdesk.tools.registry import Registry, add_tools, tool
from refdesk.validation import shorten

TOOLSET = "r2r"

INGEST_SECONDS = 300.0
"""How long a call may wait for its documents; ingestion itself has no such limit."""

GRACE_SECONDS = 10.0
"""Reserved of that to report the progress."""

MAX_WAIT_SECONDS = 50
"""Longest wait for one document: below most clients' and proxies' timeouts."""

MONITOR_SECONDS = MAX_WAIT_SECONDS + GRACE_SECONDS

PROGRESS_INTERVAL_SECONDS = 5.0
"""Interval of progress notifications, so that the connection is not considered dead."""

MAX_PATHS = 1000
MAX_FOLDER_FILES = 50_000
"""Files per call."""

SHOWN_DOCUMENTS = 40
"""Documents listed for a batch; r2r_list_documents lists all."""

SHOWN_FAILURES = 10

MAX_METADATA_BYTES = 16_384
"""Size of a document's metadata: a page of fields, not a second document."""

Extraction = Literal["pending", "processing", "success", "failed"]
PathArgument = Annotated[str, Field(min_length=1, max_length=4096)]


class R2RIngestDocument(Arguments):
    file_path: Annotated[
        PathArgument | Annotated[list[PathArgument], Field(min_length=1, max_length=MAX_PATHS)] | None,
        Field(
            description="File or folder on the desk's machine, upload:// URI or converted handle; or a list.",
            json_schema_extra=drop_null_option,
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


class IngestedDocument(ResultItem):
    document_id: str
    status: Status
    file_name: str
    error: str | None = None
    warning: str | None = None


class IngestResult(Result):
    """Result of an ingestion; for a batch, the top-level fields describe the first document."""

    document_id: str | None = None
    status: Status
    file_name: Unlisted[str]
    collection_id: str
    documents: list[IngestedDocument] | None = None
    total: Unlisted[int | None] = None
    unchanged: Unlisted[int | None] = None
    removed: Unlisted[int | None] = None
    failures: list[str] | None = None
    warning: str | None = None
    next: str

    def readable(self) -> str:
        first = f"{self.file_name}: {self.status}, document_id {self.document_id}" if self.document_id else ""
        batch = [
            f"- {entry.document_id}: {entry.status}{_format_error(entry.error or entry.warning)}"
            for entry in self.documents or ()
        ]
        counts = {"document(s) queued": self.total, "unchanged": self.unchanged, "removed": self.removed}
        summary = ", ".join(f"{count} {what}" for what, count in counts.items() if count is not None)
        failures = [f"Rejected: {failure}" for failure in self.failures or ()]
        lines = [summary, *batch] if self.documents is not None else [first]
        warning = [f"Warning: {self.warning}"] if self.warning else []
        return "\n".join([*lines, *failures, *warning, f"Collection {self.collection_id}. {self.next}"])


class TaskState(Result):
    """Ingestion state of a document."""

    document_id: Unlisted[str]
    title: Unlisted[str]
    ingestion_status: Status
    extraction_status: Unlisted[Extraction]
    progress: float
    error: str | None = None
    warning: str | None = None
    chunks: int
    embedded: int

    def readable(self) -> str:
        words = f"{self.ingestion_status}, {self.progress:.0%}, extraction {self.extraction_status}"
        return f"{self.document_id} ({self.title}): {words}, {self.embedded} of {self.chunks} chunks embedded" + (
            _format_error(self.error or self.warning)
        )


@dataclass(slots=True)
class _Batch:
    """Documents that the engine accepted for a call."""

    ids: list[str] = field(default_factory=list)
    statuses: list[DocumentStatus] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    unchanged: int = 0
    removed: int = 0
    is_folder: bool = False


class IngestionTools:
    def __init__(self, engine: Engine, scopes: ScopeResolver, sources: Sources, conversions: Conversions) -> None:
        self._engine = engine
        self._scopes = scopes
        self._sources = sources
        self._conversions = conversions

    def register(self, registry: Registry) -> None:
        add_tools(registry, self, TOOLSET)

    @tool(
        "Add documents",
        "Index a file, folder, URL or text in the background, so that searches find it.",
        annotations=Annotations(read_only=False, open_world=True),
        seconds=INGEST_SECONDS,
    )
    async def r2r_ingest_document(self, arguments: R2RIngestDocument, call: Call) -> IngestResult:
        _check_arguments(arguments)
        batch, tenant = _Batch(), call.caller.tenant
        # Resolve the targets first, so that a missing file does not create a collection.
        targets = await self._resolve_targets(arguments, call, batch.failures)
        collection, reason = await self._scopes.resolve_destination(call, arguments.collection_id)
        new = [
            _build_document(target, arguments, collection, call)
            for target in targets
            if not isinstance(target, LocatedPath)
        ]
        batch.statuses = list(await self._engine.ingest(tenant, new)) if new else []
        batch.ids = [status.id for status in batch.statuses]
        for folder in targets:
            if isinstance(folder, LocatedPath):
                await self._sync_folder(batch, folder, arguments, collection, call)
        if not arguments.run_async:
            with move_on_after(INGEST_SECONDS - GRACE_SECONDS):
                await self._wait_until_done(call, batch)
        return _build_result(arguments, collection, batch, reason)

    @tool("Watch an ingestion", "How far a document's ingestion is.", seconds=MONITOR_SECONDS)
    async def r2r_monitor_task(self, arguments: R2RMonitorTask, call: Call) -> TaskState:
        tenant, id = call.caller.tenant, arguments.document_id
        status = await self._engine.status(tenant, id)
        if status is None:
            raise await build_document_not_found(self._engine, tenant, id, "r2r_list_documents lists them.")
        if status.status in IN_PROGRESS and arguments.wait_seconds:
            batch = _Batch([status.id], [status])
            with move_on_after(arguments.wait_seconds):
                await self._wait_until_done(call, batch)
            status = batch.statuses[0] if batch.statuses else status
        return TaskState(
            document_id=status.id,
            title=shorten(status.title, MAX_CHARACTERS),
            ingestion_status=status.status,
            extraction_status=_get_extraction_status(status),
            progress=round(status.progress, 3),
            error=status.error,
            warning=status.warning,
            chunks=status.chunks,
            embedded=status.embedded,
        )

    async def _resolve_targets(
        self, arguments: R2RIngestDocument, call: Call, failures: list[str]
    ) -> Sequence[Source | LocatedPath]:
        """Return the documents and folders that the call names. In a list, failures are added to `failures`."""
        if arguments.url is not None:
            return [build_url_source(arguments.url)]
        if arguments.text is not None:
            return [TextSource(arguments.title or "", arguments.text)]
        if isinstance(arguments.file_path, str):
            return [await self._resolve_target(arguments.file_path, call)]
        found: list[Source | LocatedPath] = []
        for name in arguments.file_path or ():
            try:
                found.append(await self._resolve_target(name, call))
            except ToolFailure as failure:
                failures.append(failure.detail)
        if not found:
            raise ToolFailure(f"None of the {len(failures)} files can be ingested. {failures[0]}")
        return found

    async def _resolve_target(self, name: str, call: Call) -> Source | LocatedPath:
        if HANDLE.fullmatch(name):
            packed = await self._conversions.open(call.caller.tenant, name)
            if packed is None:
                raise DocumentNotFound(
                    f"There is no converted document {name!r}; it may have expired. Convert it again."
                )
            with packed:
                return ConvertedSource(name, packed.about.name or name)
        if name.startswith(UPLOAD_SCHEME):
            async with self._sources.open(ConvertFile(resource=name), call) as file:
                done = await self._conversions.convert(
                    call.caller.tenant, file, ConversionOptions(), call.client.progress
                )
                return ConvertedSource(done.handle, file.name)
        located = await self._sources.locate(name, call)
        if located.is_folder:
            return located
        return FileSource(located.path, located.path.relative_to(located.root).as_posix(), located.root)

    async def _sync_folder(
        self,
        batch: _Batch,
        folder: LocatedPath,
        arguments: R2RIngestDocument,
        collection: CollectionInfo,
        call: Call,
    ) -> None:
        """Sync the collection with a folder.

        A named collection is assumed to belong to the folder: document ids are relative to the folder, so that it can
        be moved without changing them. Otherwise the collection may hold files from many folders, and ids are relative
        to the root.
        """
        base = folder.path if arguments.collection_id is not None else folder.root
        list_files = partial(
            list_folder, base=base, root=folder.root, max_files=MAX_FOLDER_FILES, can_read=folder.can_read
        )
        listing = await to_thread.run_sync(list_files, folder.path)
        new = [_build_document(source, arguments, collection, call) for source in listing.sources]
        tenant = call.caller.tenant
        synced = await self._engine.sync_folder(tenant, collection.id, folder.path, new, unseen=listing.unseen)
        ids = [*synced.new, *synced.changed]
        shown = ids[: max(SHOWN_DOCUMENTS - len(batch.statuses), 0)]
        batch.is_folder = True
        batch.ids += ids
        batch.statuses += [status for id in shown if (status := await self._engine.status(tenant, id)) is not None]
        batch.failures += [f"{entry.relative}: {entry.reason}" for entry in listing.skipped]
        batch.unchanged += synced.unchanged
        batch.removed += len(synced.removed)

    async def _wait_until_done(self, call: Call, batch: _Batch) -> None:
        """Wait until all documents are done, reporting progress to the client and updating `batch`."""
        tenant = call.caller.tenant
        async for statuses in follow_documents(self._engine, tenant, batch.ids, seconds=PROGRESS_INTERVAL_SECONDS):
            batch.ids, batch.statuses = [status.id for status in statuses], statuses
            done = sum(status.progress if status.status in IN_PROGRESS else 1.0 for status in statuses)
            total = len(statuses)
            await call.client.progress(round(done, 3), total, f"{int(done)} of {total} documents")


def _check_arguments(arguments: R2RIngestDocument) -> None:
    sources = [arguments.file_path, arguments.url, arguments.text]
    if sum(value is not None for value in sources) != 1:
        raise InvalidArguments([Problem("file_path", "give exactly one of file_path, url, text")])
    if (arguments.text is None) != (arguments.title is None):
        raise InvalidArguments([Problem("title", "goes with text, and text with a title")])
    try:
        size = len(orjson.dumps(arguments.metadata))
    except TypeError:
        raise InvalidArguments([Problem("metadata", "must be JSON with valid text and 64-bit numbers")]) from None
    if size > MAX_METADATA_BYTES:
        raise InvalidArguments([Problem("metadata", f"must have at most {MAX_METADATA_BYTES} bytes as JSON")])


def _build_document(
    source: Source, arguments: R2RIngestDocument, collection: CollectionInfo, call: Call
) -> NewDocument:
    given = arguments.metadata or {}
    version = given.get("version")
    mode = arguments.ingestion_mode
    metadata = {
        **given,
        **({INGESTION_MODE: mode} if mode != "fast" else {}),
        INGESTED_BY: call.caller.user,
        INGESTED_AT: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return NewDocument(source, collection.id, metadata, version if isinstance(version, str) else "")


def _build_result(arguments: R2RIngestDocument, collection: CollectionInfo, batch: _Batch, reason: str) -> IngestResult:
    shown = [
        IngestedDocument(
            document_id=status.id,
            status=status.status,
            file_name=status.id.partition("/")[2].rpartition("/")[2],
            error=_shorten(status.error),
            warning=status.warning,
        )
        for status in batch.statuses[:SHOWN_DOCUMENTS]
    ]
    is_batch = batch.is_folder or isinstance(arguments.file_path, list)
    statuses = {status.status for status in batch.statuses}
    if "failed" in statuses:
        next_step = "Some failed. Fix the cause and ingest them again."
    elif statuses.intersection(IN_PROGRESS):
        next_step = "In progress. r2r_monitor_task reports how far it is."
    elif any(status.warning for status in batch.statuses):
        next_step = "Some are not searchable; see their warning."
    else:
        next_step = "Searchable with r2r_search."
    first = shown[0] if shown else None
    return IngestResult(
        document_id=first.document_id if first else None,
        status=first.status if first else "success",
        file_name=first.file_name if first else str(arguments.file_path),
        collection_id=collection.id,
        documents=shown if is_batch else None,
        total=len(batch.ids) if is_batch else None,
        unchanged=batch.unchanged if batch.is_folder else None,
        removed=batch.removed if batch.is_folder else None,
        failures=[_shorten(failure) or "" for failure in batch.failures[:SHOWN_FAILURES]] or None,
        warning=first.warning if first and not is_batch else None,
        next=f"{reason} {next_step}".strip(),
    )


def _get_extraction_status(status: DocumentStatus) -> Extraction:
    """Return the status of the conversion; a failure with chunks happened after it."""
    match status.status:
        case "pending":
            return "pending"
        case "converting":
            return "processing"
        case "failed" if not status.chunks:
            return "failed"
    return "success"


def _shorten(text: str | None) -> str | None:
    return shorten(text, MAX_CHARACTERS * 2) if text else None


def _format_error(error: str | None) -> str:
    return f": {error}" if error else ""
