"""Console methods for collections and documents, within the caller's tenant."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from anyio import to_thread

from refdesk.calls import Call, TenantId
from refdesk.console import reader_page
from refdesk.console.params import DocumentsParams, IdParams, IdsParams, NewCollectionParams, NoParams, ReadParams
from refdesk.engines.base import IN_PROGRESS, CollectionInfo, DocumentInfo, DocumentStatus, Engine, Listing, Status
from refdesk.errors import DocumentNotFound, InvalidArguments, Problem
from refdesk.validation import shorten

RESERVED_NAME = "all"
"""Stands for all collections in tool calls, so no collection can have this name."""

STATUSES: Mapping[str, tuple[Status, ...]] = {
    "all": (),
    "pending": IN_PROGRESS,
    "success": ("success",),
    "failed": ("failed",),
}
"""Engine statuses by their names in the console."""


class ConsoleDocuments:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def collections(self, call: Call) -> dict[str, Any]:
        NoParams.of(call)
        found = await self._engine.collections(call.caller.tenant)
        return {"collections": [serialize_collection(info) for info in found]}

    async def documents(self, call: Call) -> dict[str, Any]:
        """List documents, most recently changed first, with the total count.

        Documents that ship with Refdesk are listed only if their collection is requested by name, so that they
        don't crowd out the caller's own.
        """
        params, tenant = DocumentsParams.of(call), call.caller.tenant
        listing = Listing(params.collection, STATUSES[params.status], params.offset, params.limit, newest_first=True)
        found, total = await self._engine.documents(tenant, listing)
        shared = list_shared_ids(self._engine, tenant)
        return {"documents": [serialize_status(status, shared) for status in found], "total": total}

    async def document(self, call: Call) -> dict[str, Any]:
        """Return a document's properties. While it is being ingested, pages and outline are empty."""
        params, tenant = IdParams.of(call), call.caller.tenant
        status = await self._engine.status(tenant, params.id)
        if status is None:
            raise _build_not_found(params.id)
        info = await self._engine.info(tenant, params.id)
        packed = await self._engine.open(tenant, params.id) if info is not None else None
        contents: dict[str, Any] = {"pages": 0, "page_kind": "page", "outline": []}
        if packed is not None:
            with packed:
                contents = await to_thread.run_sync(reader_page.describe_contents, packed)
        shared = list_shared_ids(self._engine, tenant)
        return {"info": _serialize_info(info or status), **contents, "status": serialize_status(status, shared)}

    async def read(self, call: Call) -> dict[str, Any]:
        params = ReadParams.of(call)
        packed = await self._engine.open(call.caller.tenant, params.id)
        if packed is None:
            raise _build_not_found(params.id)
        with packed:
            return await to_thread.run_sync(reader_page.read, packed, params)

    async def create_collection(self, call: Call) -> dict[str, Any]:
        """Return the collection of a name, creating it if needed."""
        params = NewCollectionParams.of(call)
        if params.name.casefold() == RESERVED_NAME:
            raise InvalidArguments([Problem("name", f"{params.name!r} means all collections; choose another name")])
        info = await self._engine.create_collection(
            call.caller.tenant, params.name, description=params.description, version=params.version
        )
        return {"collection": serialize_collection(info)}

    async def delete_collection(self, call: Call) -> dict[str, Any]:
        params, tenant = IdParams.of(call), call.caller.tenant
        if params.id in list_shared_ids(self._engine, tenant):
            raise InvalidArguments([Problem("id", f"{params.id!r} comes with Refdesk and can't be deleted")])
        if not await self._engine.delete_collection(tenant, params.id):
            raise DocumentNotFound(f"No such collection: {shorten(params.id)!r}. It may have been deleted.")
        return {"deleted": params.id}

    async def delete_documents(self, call: Call) -> dict[str, Any]:
        """Delete documents, reporting those that don't exist."""
        params, tenant = IdsParams.of(call), call.caller.tenant
        deleted: list[str] = []
        missing: list[str] = []
        for id in dict.fromkeys(params.ids):
            (deleted if await self._engine.delete(tenant, id) else missing).append(id)
        return {"deleted": deleted, "missing": missing}

    async def retry(self, call: Call) -> dict[str, Any]:
        """Retry the ingestion of a failed document."""
        params, tenant = IdParams.of(call), call.caller.tenant
        status = await self._engine.retry(tenant, params.id)
        if status is None:
            raise _build_not_found(params.id)
        return {"document": serialize_status(status, list_shared_ids(self._engine, tenant))}


def list_shared_ids(engine: Engine, tenant: TenantId) -> Collection[str]:
    """Return the ids of the collections that ship with Refdesk."""
    return {info.id for info in engine.cached_collections(tenant) if info.shared}


def serialize_collection(info: CollectionInfo) -> dict[str, Any]:
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


def serialize_status(status: DocumentStatus, shared: Collection[str]) -> dict[str, Any]:
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
        "warning": status.warning,
        "attempts": status.attempts,
        "source": _get_web_source(status),
        "updated_at": status.updated_at.isoformat(),
        "shared": status.collection in shared,
    }


def _serialize_info(info: DocumentInfo | DocumentStatus) -> dict[str, Any]:
    """Serialize a document's properties. Fewer are known before it is indexed."""
    wire: dict[str, Any] = {
        "id": info.id,
        "collection": info.collection,
        "title": info.title,
        "source": _get_web_source(info),
        "size_bytes": info.size_bytes,
        "metadata": dict(info.metadata),
        "version": "",
        "indexed_at": None,
        "media_type": "",
    }
    if isinstance(info, DocumentInfo):
        wire |= {"version": info.version, "indexed_at": info.indexed_at.isoformat(), "media_type": info.media_type}
    return wire


def _get_web_source(document: DocumentInfo | DocumentStatus) -> str:
    """Return the document's source if it is a URL. Local paths aren't disclosed."""
    return document.source if document.source.startswith(("http://", "https://")) else ""


def _build_not_found(id: str) -> DocumentNotFound:
    return DocumentNotFound(f"No such document: {shorten(id)!r}. It may have been deleted.")
