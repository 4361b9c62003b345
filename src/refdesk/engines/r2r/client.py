"""Client of the R2R endpoints that Refdesk uses. Request bodies are built field by field.

Methods return Refdesk's own types; R2R's JSON stays in this module and `schemas`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from refdesk.config.models import R2RConfig
from refdesk.engines.base import INGESTED_AT, INGESTED_BY, Search
from refdesk.engines.r2r.http import CONFLICT, NOT_FOUND, IgnoreStatus, R2RRequest, R2RTransport, open_r2r_transport
from refdesk.engines.r2r.schemas import (
    RemoteChunk,
    RemoteCollection,
    RemoteDocument,
    make_unusable_error,
    parse_chunks,
    parse_mapping,
    parse_text,
    unwrap_results,
    unwrap_rows,
)
from refdesk.errors import R2RRefused
from refdesk.resilience.dependency import Dependency
from refdesk.telemetry.metrics import Metrics

PAGE_SIZE = 1000
"""Maximum page size of R2R."""

HEALTH_SECONDS = 5.0
"""Timeout of the health check."""

IDEMPOTENT_RETRIES = 1
"""Retries of idempotent requests. What fails twice in a row will fail a third time."""

CHUNKING = {"chunking_strategy": "character", "chunk_size": 1, "chunk_overlap": 0}
"""Makes R2R split a text at blank lines only, in each of its ingestion modes."""

SLOW_MODES = ("hi-res", "custom")
"""R2R's ingestion modes in which its model also writes a summary of the document, unlike in `fast`."""


def build_search_settings(
    search: Search, limit: int, collections: Collection[str], documents: Collection[str] | None = None
) -> dict[str, Any]:
    """Return R2R's settings of a search. Collections and documents are R2R ids; no documents given means all.

    Collections are inside `$and`: at the top level, R2R drops them for the owner of the documents.
    """
    assert collections
    conditions: list[dict[str, Any]] = [{"collection_ids": {"$overlap": list(collections)}}]
    if documents is not None:
        conditions.append({"document_id": {"$in": list(documents)}})
    # R2R fails if its full-text limit is lower than the requested limit.
    hybrid: dict[str, Any] = {"full_text_limit": max(limit, 200), "rrf_k": 50}
    if search.semantic_weight is not None:
        hybrid |= {"semantic_weight": search.semantic_weight, "full_text_weight": 1 - search.semantic_weight}
    return {
        "filters": {"$and": conditions},
        "limit": limit,
        "use_hybrid_search": search.mode == "hybrid",
        "use_semantic_search": search.mode != "fulltext",
        "use_fulltext_search": search.mode != "semantic",
        "hybrid_settings": hybrid,
        "include_metadatas": True,
        "include_scores": True,
        "graph_settings": {"enabled": False},
    }


@dataclass(frozen=True, slots=True)
class RemoteAnswer:
    """Answer of R2R's model with the chunks it was given."""

    text: str
    chunks: tuple[RemoteChunk, ...]
    others: bool
    """Whether the model was given anything besides chunks."""
    model: str


@dataclass(frozen=True, slots=True)
class OutgoingDocument:
    """Text to send to R2R."""

    id: str
    collection: str
    title: str
    text: str
    own: Mapping[str, Any]
    mode: str = "fast"
    """R2R's ingestion mode."""

    def to_form(self) -> dict[str, str]:
        """Return the form fields. The collection is given twice, because releases differ in which one they use."""
        metadata = {"title": self.title, "collection_ids": [self.collection], "refdesk": self.own}
        given = self.own.get("metadata", {})
        metadata |= {name: given[name] for name in (INGESTED_BY, INGESTED_AT) if name in given}
        return {
            "id": self.id,
            "raw_text": self.text,
            "collection_ids": _dump_json([self.collection]),
            "metadata": _dump_json(metadata),
            "ingestion_mode": self.mode,
            "ingestion_config": _dump_json(CHUNKING),
            "run_with_orchestration": "true",
        }


@dataclass(eq=False, repr=False)
class R2RClient:
    """R2R API client of the service account. Created by `open_client`."""

    _transport: R2RTransport
    _settings: R2RConfig

    async def check(self) -> None:
        """Raise unless R2R is up and accepts the credentials."""
        reply = await self._transport.request(R2RRequest("GET", ("health",), HEALTH_SECONDS))
        if reply.status != 200:
            raise make_unusable_error(f"its health check returned status {reply.status}")
        await self._transport.tokens.get_token()

    async def collections(self) -> list[RemoteCollection]:
        """Return all collections visible to the account."""
        return [RemoteCollection.from_json(row) async for row in self._iterate_rows("collections")]

    async def has_collection(self, id: str) -> bool:
        """Whether a collection exists."""
        try:
            await self._get(("collections", id))
        except R2RRefused:
            return False  # gone, or no longer accessible
        return True

    async def create_collection(self, name: str, description: str) -> RemoteCollection | None:
        """Create a collection. Returns None if the account has one with this name."""
        body = {"name": name, "description": description}
        with IgnoreStatus(CONFLICT):
            return RemoteCollection.from_json(unwrap_results(await self._send("POST", ("collections",), json=body)))
        return None

    async def describe_collection(self, id: str, description: str) -> None:
        """Set the description of a collection."""
        await self._send("POST", ("collections", id), json={"description": description}, retries=IDEMPOTENT_RETRIES)

    async def delete_collection(self, id: str) -> bool:
        """Delete a collection, but not its documents. Returns whether it existed."""
        return await self._send_if_exists("DELETE", ("collections", id))

    async def iterate_documents(self, collection: str) -> AsyncIterator[RemoteDocument]:
        """Yield the ingested documents of a collection, newest first."""
        async for row in self._iterate_rows("collections", collection, "documents"):
            yield RemoteDocument.from_json(row)

    async def count_documents(self, collection: str) -> int | None:
        """Return the number of ingested documents in a collection, or None if it doesn't exist."""
        with IgnoreStatus(NOT_FOUND):
            return unwrap_rows(await self._get(("collections", collection, "documents"), _page_query(0, 1)))[1]
        return None

    async def get_documents(self, ids: Sequence[str]) -> list[RemoteDocument]:
        """Return documents by id. Missing ones are omitted."""
        if not ids:
            return []
        query = (*(("ids", id) for id in ids[:PAGE_SIZE]), ("limit", str(PAGE_SIZE)))
        rows, _ = unwrap_rows(await self._get(("documents",), query))
        return [RemoteDocument.from_json(row) for row in rows]

    async def get_document(self, id: str) -> RemoteDocument | None:
        """Return a document by id, or None."""
        with IgnoreStatus(NOT_FOUND):
            return RemoteDocument.from_json(unwrap_results(await self._get(("documents", id))))
        return None

    async def get_chunks(self, document: str, offset: int = 0, limit: int | None = None) -> list[RemoteChunk]:
        """Return the chunks of a document in reading order, or none if it doesn't exist."""
        with IgnoreStatus(NOT_FOUND):
            if limit is None:
                return [RemoteChunk.from_json(row) async for row in self._iterate_rows("documents", document, "chunks")]
            rows, _ = unwrap_rows(await self._get(("documents", document, "chunks"), _page_query(offset, limit)))
            return [RemoteChunk.from_json(row) for row in rows]
        return []

    async def ingest(self, document: OutgoingDocument) -> bool:
        """Ingest a text. Returns False if R2R already has it or is processing it.

        R2R responds once it is done or has queued it. A failure of its model is raised as R2R's refusal.
        """
        seconds = self._settings.ingest_timeout_seconds
        request = R2RRequest("POST", ("documents",), seconds, form=document.to_form(), returns_server_errors=True)
        with IgnoreStatus(CONFLICT):
            await self._transport.send(request)
            return True
        return False

    async def delete_document(self, id: str) -> bool:
        """Delete a document with its chunks. Returns whether it existed."""
        return await self._send_if_exists("DELETE", ("documents", id))

    async def assign(self, collection: str, document: str) -> bool:
        """Add a document to a collection. Returns False if either doesn't exist."""
        with IgnoreStatus(CONFLICT):
            return await self._send_if_exists("POST", ("collections", collection, "documents", document))
        return True

    async def unassign(self, collection: str, document: str) -> None:
        """Remove a document from a collection."""
        await self._send_if_exists("DELETE", ("collections", collection, "documents", document))

    async def search(self, query: str, settings: Mapping[str, Any]) -> list[RemoteChunk]:
        """Return the best matching chunks. The settings are from `build_search_settings`."""
        body = {"query": query, "search_mode": "custom", "search_settings": settings}
        answer = await self._send("POST", ("retrieval", "search"), json=body, retries=IDEMPOTENT_RETRIES)
        return list(parse_chunks(unwrap_results(answer)))

    async def answer(
        self,
        question: str,
        settings: Mapping[str, Any],
        model: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
    ) -> RemoteAnswer:
        """Return the answer of R2R's model from the best matching chunks. None leaves a choice to R2R."""
        # These fields only, since R2R would also accept another model's URL.
        given = {"model": model, "max_tokens_to_sample": max_tokens, "temperature": temperature, "stream": False}
        body = {
            "query": question,
            "search_mode": "custom",
            "search_settings": settings,
            "rag_generation_config": {name: value for name, value in given.items() if value is not None},
            "include_title_if_available": True,
            "include_web_search": False,
        }
        seconds = self._settings.rag_timeout_seconds
        request = R2RRequest("POST", ("retrieval", "rag"), seconds, json=body, returns_server_errors=True)
        results = parse_mapping(unwrap_results(await self._transport.send(request)))
        found = parse_mapping(results.get("search_results"))
        return RemoteAnswer(
            text=parse_text(results.get("generated_answer")),
            chunks=tuple(parse_chunks(found)),
            others=any(value for name, value in found.items() if name != "chunk_search_results"),
            model=parse_text(parse_mapping(results.get("metadata")).get("model")),
        )

    async def _iterate_rows(self, *path: str) -> AsyncIterator[dict[str, Any]]:
        offset = 0
        while True:
            rows, total = unwrap_rows(await self._get(path, _page_query(offset, PAGE_SIZE)))
            for row in rows:
                yield row
            offset += len(rows)
            if not rows or offset >= total:
                return

    async def _send_if_exists(self, method: str, path: tuple[str, ...]) -> bool:
        with IgnoreStatus(NOT_FOUND):
            await self._send(method, path, retries=IDEMPOTENT_RETRIES)
            return True
        return False

    async def _get(self, path: tuple[str, ...], query: tuple[tuple[str, str], ...] = ()) -> Any:
        return await self._transport.send(
            R2RRequest("GET", path, self._settings.timeout_seconds, query, retries=IDEMPOTENT_RETRIES)
        )

    async def _send(self, method: str, path: tuple[str, ...], *, json: Any = None, retries: int = 0) -> Any:
        return await self._transport.send(
            R2RRequest(method, path, self._settings.timeout_seconds, json=json, retries=retries)
        )


@asynccontextmanager
async def open_client(settings: R2RConfig, dependency: Dependency, metrics: Metrics) -> AsyncIterator[R2RClient]:
    """Open a client of the configured server, with its service account or API key."""
    async with open_r2r_transport(settings, dependency, metrics) as transport:
        yield R2RClient(transport, settings)


def _page_query(offset: int, limit: int) -> tuple[tuple[str, str], ...]:
    return ("offset", str(offset)), ("limit", str(limit))


def _dump_json(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()
