"""Collections and documents in the console: listed, read, made and taken away, each for the caller's own tenant."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from anyio import to_thread

from refdesk.calls import Call, TenantId
from refdesk.console import reading
from refdesk.console.params import ById, ByIds, Documents, NewCollection, Nothing, Read
from refdesk.engines.base import UNDER_WAY, CollectionInfo, DocumentInfo, DocumentStatus, Engine, Listing, Status
from refdesk.errors import DocumentNotFound, InvalidArguments, Problem
from refdesk.validation import shortened

EVERYTHING = "all"
"""What tools call every collection at once, so that none can have this name."""

STATUSES: Mapping[str, tuple[Status, ...]] = {
    "all": (),
    "pending": UNDER_WAY,
    "success": ("success",),
    "failed": ("failed",),
}
"""What the page calls some of them together."""


class Holdings:
    """Answers what the pages ask of documents."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def collections(self, call: Call) -> dict[str, Any]:
        """Every collection that the caller can read."""
        Nothing.of(call)
        return {"collections": [collection_wire(info) for info in await self._engine.collections(call.caller.tenant)]}

    async def documents(self, call: Call) -> dict[str, Any]:
        """Some documents, the last changed first, and how many match in all.

        They are the caller's own: what comes with Refdesk is listed only where its collection is asked for by its name,
        lest somebody with three documents has to look for them among the pages of a manual.
        """
        asked, tenant = Documents.of(call), call.caller.tenant
        listing = Listing(asked.collection, STATUSES[asked.status], asked.offset, asked.limit, newest_first=True)
        found, total = await self._engine.documents(tenant, listing)
        shared = shared_ids(self._engine, tenant)
        return {"documents": [status_wire(status, shared) for status in found], "total": total}

    async def document(self, call: Call) -> dict[str, Any]:
        """What is known of a document besides its text. One that is not in yet has neither pages nor an outline."""
        asked, tenant = ById.of(call), call.caller.tenant
        status = await self._engine.status(tenant, asked.id)
        if status is None:
            raise _no_document(asked.id)
        info = await self._engine.info(tenant, asked.id)
        shelf = await self._engine.open(tenant, asked.id) if info is not None else None
        contents: dict[str, Any] = {"pages": 0, "page_kind": "page", "outline": []}
        if shelf is not None:
            with shelf:
                contents = await to_thread.run_sync(reading.contents, shelf)
        shared = shared_ids(self._engine, tenant)
        return {"info": _info_wire(info or status), **contents, "status": status_wire(status, shared)}

    async def read(self, call: Call) -> dict[str, Any]:
        """Some blocks of a document."""
        asked = Read.of(call)
        shelf = await self._engine.open(call.caller.tenant, asked.id)
        if shelf is None:
            raise _no_document(asked.id)
        with shelf:
            return await to_thread.run_sync(reading.read, shelf, asked)

    async def create_collection(self, call: Call) -> dict[str, Any]:
        """The collection of a name, made when it is not there yet."""
        asked = NewCollection.of(call)
        if asked.name.casefold() == EVERYTHING:
            raise InvalidArguments([Problem("name", f"{asked.name!r} stands for every collection; choose another")])
        info = await self._engine.create_collection(
            call.caller.tenant, asked.name, description=asked.description, version=asked.version
        )
        return {"collection": collection_wire(info)}

    async def delete_collection(self, call: Call) -> dict[str, Any]:
        """Take a collection away with all its documents."""
        asked, tenant = ById.of(call), call.caller.tenant
        if asked.id in shared_ids(self._engine, tenant):
            raise InvalidArguments([Problem("id", f"{asked.id!r} comes with Refdesk and cannot be taken away")])
        if not await self._engine.delete_collection(tenant, asked.id):
            raise DocumentNotFound(f"There is no collection {shortened(asked.id)!r}; it may be gone already.")
        return {"deleted": asked.id}

    async def delete_documents(self, call: Call) -> dict[str, Any]:
        """Take documents away; those that were not there are told apart."""
        asked, tenant = ByIds.of(call), call.caller.tenant
        deleted: list[str] = []
        missing: list[str] = []
        for id in dict.fromkeys(asked.ids):
            (deleted if await self._engine.delete(tenant, id) else missing).append(id)
        return {"deleted": deleted, "missing": missing}

    async def retry(self, call: Call) -> dict[str, Any]:
        """Bring a document in that has failed before."""
        asked, tenant = ById.of(call), call.caller.tenant
        status = await self._engine.retry(tenant, asked.id)
        if status is None:
            raise _no_document(asked.id)
        return {"document": status_wire(status, shared_ids(self._engine, tenant))}


def shared_ids(engine: Engine, tenant: TenantId) -> Collection[str]:
    """The collections that came with Refdesk."""
    return {info.id for info in engine.sets(tenant) if info.shared}


def collection_wire(info: CollectionInfo) -> dict[str, Any]:
    """A collection as the pages know it."""
    return {
        "id": info.id,
        "name": info.name,
        "description": info.description,
        "documents": info.documents,
        "version": info.version,
        "shared": info.shared,
        "created_at": info.created_at.isoformat(),
        "updated_at": info.updated_at.isoformat(),
    }


def status_wire(status: DocumentStatus, shared: Collection[str]) -> dict[str, Any]:
    """A document as the pages know it."""
    return {
        "id": status.id,
        "collection": status.collection,
        "title": status.title,
        "status": status.status,
        "progress": status.progress,
        "chunks": status.chunks,
        "embedded": status.embedded,
        "size_bytes": status.size_bytes,
        "error": status.error,
        "attempts": status.attempts,
        "source": _address(status),
        "updated_at": status.updated_at.isoformat(),
        "shared": status.collection in shared,
    }


def _info_wire(info: DocumentInfo | DocumentStatus) -> dict[str, Any]:
    """What is known of a document; of one that is not in yet, less."""
    wire: dict[str, Any] = {
        "id": info.id,
        "collection": info.collection,
        "title": info.title,
        "source": _address(info),
        "size_bytes": info.size_bytes,
        "metadata": dict(info.metadata),
        "version": "",
        "indexed_at": None,
        "media_type": "",
    }
    if isinstance(info, DocumentInfo):
        wire |= {"version": info.version, "indexed_at": info.indexed_at.isoformat(), "media_type": info.media_type}
    return wire


def _address(document: DocumentInfo | DocumentStatus) -> str:
    """Where a document came from, if from the web: paths of this machine are nobody else's business."""
    return document.source if document.source.startswith(("http://", "https://")) else ""


def _no_document(id: str) -> DocumentNotFound:
    return DocumentNotFound(f"There is no document {shortened(id)!r} that can be read; it may have been taken away.")
