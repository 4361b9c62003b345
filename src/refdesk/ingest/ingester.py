"""Queues documents in the engine and waits until they are indexed.

The work may be done by this process or by a server that has the same data open.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence, Set
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from itertools import islice
from typing import Any

import anyio
from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.engines.base import (
    IN_PROGRESS,
    ConvertedSource,
    DocumentStatus,
    Engine,
    FileSource,
    FolderSync,
    Listing,
    NewDocument,
    TextSource,
    UrlSource,
)
from refdesk.errors import Overloaded, ToolFailure
from refdesk.ingest.sources import (
    DocumentDefaults,
    Folder,
    JsonLinesFile,
    ResolvedSource,
    SingleDocument,
    SourceFailure,
    list_folder,
)

BATCH_SIZE = 500
"""Documents per call to the engine: few enough for memory, enough to amortize the disk writes."""

QUEUE_RETRY_SECONDS = 0.5
"""Delay before retrying a full queue that gives no `retry_after`."""

NO_LIMIT = 10_000_000
"""More documents than a collection can hold."""

REPORT_SECONDS = 1.0
"""Longest interval between two reports of progress, and between two checks of the engine."""

POLLED_PER_SECOND = 2000
"""Documents whose status is polled per second, so that waiting for many documents stays cheap."""


@dataclass(frozen=True, slots=True)
class IngestOutcome(FolderSync):
    """Result of an ingestion."""

    failed: tuple[SourceFailure, ...] = ()
    warnings: tuple[SourceFailure, ...] = ()
    """Documents that were ingested, but not as expected."""

    def __add__(self, other: IngestOutcome) -> IngestOutcome:
        return IngestOutcome(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def is_empty(self) -> bool:
        """Whether nothing changed and nothing failed."""
        return not (self.new or self.changed or self.removed or self.failed)

    def with_statuses(self, statuses: Iterable[DocumentStatus]) -> IngestOutcome:
        """Return the outcome with final statuses: failed documents no longer count as new or changed."""
        statuses = list(statuses)
        failed = {status.id: status.error or "It failed." for status in statuses if status.status == "failed"}
        warnings = tuple(SourceFailure(status.id, status.warning) for status in statuses if status.warning)
        return replace(
            self,
            new=tuple(id for id in self.new if id not in failed),
            changed=tuple(id for id in self.changed if id not in failed),
            failed=self.failed + tuple(SourceFailure(id, cause) for id, cause in failed.items()),
            warnings=self.warnings + warnings,
        )

    def summary(self) -> str:
        """Return the counts as one line of text."""
        counts = {
            "new": len(self.new),
            "changed": len(self.changed),
            "unchanged": self.unchanged,
            "removed": len(self.removed),
            "failed": len(self.failed),
        }
        return ", ".join(f"{count:,} {what}" for what, count in counts.items())

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome for `--json`."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Ingester:
    """Ingests the sources of one command."""

    engine: Engine
    tenant: TenantId
    defaults: DocumentDefaults
    report: Callable[[Sequence[DocumentStatus]], None] = lambda _: None
    """Called with the statuses of all documents that are waited for."""
    wait: bool = True
    _origins: dict[tuple[str, str], str] = field(default_factory=dict)
    """Origin of each document by collection and name, to detect clashes."""

    async def ingest(self, sources: Sequence[ResolvedSource]) -> IngestOutcome:
        """Ingest all sources. A source that fails doesn't stop the others."""
        outcome = IngestOutcome(failed=tuple(source for source in sources if isinstance(source, SourceFailure)))
        folders = [source for source in sources if isinstance(source, Folder)]
        for folder in folders:
            outcome += await self._sync(folder)
        others = [source for source in sources if isinstance(source, JsonLinesFile | SingleDocument)]
        for name in dict.fromkeys(source.collection for source in others):
            outcome += await self._ingest(name, [source for source in others if source.collection == name])
        return await self.wait_until_indexed(outcome, folders)

    async def sync_folder(self, folder: Folder) -> IngestOutcome:
        """Sync the collection with its folder again."""
        return await self.wait_until_indexed(await self._sync(folder), [folder])

    async def _sync(self, folder: Folder) -> IngestOutcome:
        collection = await self.engine.create_collection(self.tenant, folder.collection, version=self.defaults.version)
        listing = await to_thread.run_sync(partial(list_folder, folder.path, ignore=folder.ignore))
        documents, clashes = self._split_clashes(
            self.defaults.build_document(source, collection.id) for source in listing.sources
        )
        done = await self.engine.sync_folder(self.tenant, collection.id, folder.path, documents, unseen=listing.unseen)
        skipped = (SourceFailure(str(folder.path / path.relative), path.reason) for path in listing.skipped)
        return IngestOutcome(**asdict(done), failed=(*skipped, *clashes))

    async def _ingest(self, name: str, sources: Sequence[SingleDocument | JsonLinesFile]) -> IngestOutcome:
        collection = await self.engine.create_collection(self.tenant, name)
        known = set(await self.engine.list_document_ids(self.tenant, prefix=f"{collection.id}/", limit=NO_LIMIT))
        found = (document for source in sources for document in source.iter_documents(collection.id, self.defaults))
        outcome = IngestOutcome()
        while batch := list(islice(found, BATCH_SIZE)):
            invalid = [document for document in batch if isinstance(document, SourceFailure)]
            unique, clashes = self._split_clashes(document for document in batch if isinstance(document, NewDocument))
            outcome += await self._submit(unique, known) + IngestOutcome(failed=(*invalid, *clashes))
        return outcome

    def _split_clashes(self, documents: Iterable[NewDocument]) -> tuple[list[NewDocument], list[SourceFailure]]:
        """Separate documents whose name another document of this command already has."""
        unique, clashes = [], []
        for document in documents:
            source, origin = document.source, _describe_origin(document)
            # Other sources get their name when they are ingested.
            name = source.name if isinstance(source, FileSource | TextSource) else ""
            first = self._origins.setdefault((document.collection, name), origin) if name else origin
            if first == origin:
                unique.append(document)
            else:
                cause = f"It has the same name as {first}. Add it to another collection."
                clashes.append(SourceFailure(origin, cause))
        return unique, clashes

    async def _submit(self, documents: Sequence[NewDocument], known: Set[str]) -> IngestOutcome:
        """Queue documents. If the batch is rejected, submit them one by one."""
        while True:
            try:
                return _classify(await self.engine.ingest(self.tenant, documents), known)
            except Overloaded as full:
                await anyio.sleep(full.retry_after or QUEUE_RETRY_SECONDS)
            except ToolFailure as failure:
                if len(documents) == 1:
                    return IngestOutcome(failed=(SourceFailure(_describe_origin(documents[0]), failure.detail),))
                return sum([await self._submit([document], known) for document in documents], IngestOutcome())

    async def wait_until_indexed(self, outcome: IngestOutcome, folders: Sequence[Folder] = ()) -> IngestOutcome:
        """Return the final outcome once no document is pending any more; raise EngineError if the engine has failed."""
        if not self.wait:
            return outcome
        ids = [*outcome.new, *outcome.changed]
        for folder in folders if outcome.unchanged else ():
            # Documents that an earlier command queued may still be pending.
            collection = await self.engine.create_collection(self.tenant, folder.collection)
            listing = Listing(collection.id, IN_PROGRESS, limit=NO_LIMIT)
            ids += [status.id for status in (await self.engine.documents(self.tenant, listing))[0]]
        ids = list(dict.fromkeys(ids))
        statuses: Sequence[DocumentStatus] = ()
        async for statuses in follow_documents(self.engine, self.tenant, ids, seconds=REPORT_SECONDS):
            self.report(statuses)
            await self.engine.check(self.tenant)
        return outcome.with_statuses(statuses)


def _classify(statuses: Iterable[DocumentStatus], known: Set[str]) -> IngestOutcome:
    """Sort statuses into new, changed and unchanged. A known document with work left is changed."""
    new, changed, unchanged = [], [], 0
    for status in statuses:
        if status.id not in known:
            new.append(status.id)
        elif status.status == "success":
            unchanged += 1
        else:
            changed.append(status.id)
    return IngestOutcome(tuple(new), tuple(changed), unchanged)


def _describe_origin(document: NewDocument) -> str:
    match document.source:
        case FileSource(path=path):
            return str(path)
        case UrlSource(url=url):
            return url
        case TextSource(title=title):
            return f"the text {title!r}"
        case ConvertedSource(handle=handle):
            return handle


async def follow_documents(
    engine: Engine, tenant: TenantId, document_ids: Sequence[str], *, seconds: float
) -> AsyncGenerator[list[DocumentStatus]]:
    """Yield the statuses of documents when some have changed, or `seconds` have passed, until none is in progress.

    Deleted documents are omitted.
    """
    latest: dict[str, DocumentStatus] = {}
    remaining = set(document_ids)
    while remaining:
        found = await engine.wait(tenant, [id for id in document_ids if id in remaining], seconds=seconds)
        latest = {id: status for id, status in latest.items() if id not in remaining}
        latest |= {status.id: status for status in found}
        remaining = {status.id for status in found if status.status in IN_PROGRESS}
        yield [latest[id] for id in document_ids if id in latest]
        await anyio.sleep(len(remaining) / POLLED_PER_SECOND)
