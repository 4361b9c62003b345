"""The few of R2R's endpoints that are used, each as a method. Bodies are built field by field, here.

What comes back are our own values; R2R's JSON does not leave this module and `shapes`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from refdesk.config import R2RConfig
from refdesk.engines.r2r.auth import ApiKey, CredentialsRefused, TokenPair, Tokens, TokenSource
from refdesk.engines.r2r.failures import ALREADY_THERE, NOT_THERE, Tolerating
from refdesk.engines.r2r.http import Reply, Request, Wire, open_wire
from refdesk.engines.r2r.schemas import (
    RemoteChunk,
    RemoteCollection,
    RemoteDocument,
    chunks_in,
    mapping_in,
    results_of,
    rows_of,
    text_in,
    unusable,
)
from refdesk.errors import ConfigError, R2RRefused
from refdesk.resilience.dependency import Dependency
from refdesk.telemetry import Metrics

PAGE = 1000
"""The most that R2R lists at once."""

HEALTH_SECONDS = 5.0
"""A server that takes longer to say that it is well is not."""

LOGIN_SECONDS = 15.0
"""A login costs R2R a third of a second, and on a busy machine several."""

REPEATED = 1
"""How often a question is asked again; what fails twice in a row will fail a third time."""

CHUNKING = {"chunking_strategy": "character", "chunk_size": 1, "chunk_overlap": 0, "skip_document_summary": True}
"""Has R2R cut a text at its blank lines and nowhere else, and not ask a model for a summary."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How R2R is to search. There is no way to leave out where."""

    collections: tuple[str, ...]
    limit: int
    mode: str
    semantic_weight: float | None = None
    documents: tuple[str, ...] | None = None
    """Ids at R2R; None means all of the collections'."""

    def body(self) -> dict[str, Any]:
        """As R2R reads it.

        The collections stand within `$and`: at the top, R2R takes them out again for whoever owns the documents.
        """
        assert self.collections
        conditions: list[dict[str, Any]] = [{"collection_ids": {"$overlap": list(self.collections)}}]
        if self.documents is not None:
            conditions.append({"document_id": {"$in": list(self.documents)}})
        return {
            "filters": {"$and": conditions},
            "limit": self.limit,
            "use_hybrid_search": self.mode == "hybrid",
            "use_semantic_search": self.mode != "fulltext",
            "use_fulltext_search": self.mode != "semantic",
            "hybrid_settings": self._weights(),
            "include_metadatas": True,
            "include_scores": True,
            "graph_settings": {"enabled": False},
        }

    def _weights(self) -> dict[str, Any]:
        # R2R fails when its full text may find fewer than are asked for.
        settings: dict[str, Any] = {"full_text_limit": max(self.limit, 200), "rrf_k": 50}
        if self.semantic_weight is None:
            return settings
        return {**settings, "semantic_weight": self.semantic_weight, "full_text_weight": 1 - self.semantic_weight}


@dataclass(frozen=True, slots=True)
class Generation:
    """How R2R's model is to write; what is None is left to R2R."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None

    def body(self) -> dict[str, Any]:
        """As R2R reads it: only what is listed here, since R2R would also take the address of another model."""
        given = {
            "model": self.model,
            "max_tokens_to_sample": self.max_tokens,
            "temperature": self.temperature,
            "stream": False,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class RemoteAnswer:
    """What R2R's model wrote, and from which chunks."""

    text: str
    chunks: tuple[RemoteChunk, ...]
    others: bool
    """Whether anything besides chunks was given to the model."""
    model: str


@dataclass(frozen=True, slots=True)
class Sent:
    """A text on its way to R2R."""

    id: str
    collection: str
    title: str
    text: str
    own: Mapping[str, Any]

    def form(self) -> dict[str, str]:
        """As R2R reads it. The collection is named twice: releases differ in which of the two they heed."""
        metadata = {"title": self.title, "collection_ids": [self.collection], "refdesk": self.own}
        return {
            "id": self.id,
            "raw_text": self.text,
            "collection_ids": _json([self.collection]),
            "metadata": _json(metadata),
            "ingestion_mode": "custom",
            "ingestion_config": _json(CHUNKING),
            "run_with_orchestration": "true",
        }


class R2RClient:
    """R2R as the service account sees it; made by `open_client`."""

    def __init__(self, wire: Wire, tokens: TokenSource, settings: R2RConfig) -> None:
        self._wire = wire
        self._tokens = tokens
        self._seconds = settings.timeout_seconds
        self._rag_seconds = settings.rag_timeout_seconds
        self._ingest_seconds = settings.ingest_timeout_seconds

    async def check(self) -> None:
        """Raise unless R2R is up and lets us in."""
        reply = await self._wire.ask(Request("GET", ("health",), HEALTH_SECONDS))
        if reply.status != 200:
            raise unusable(f"its health has status {reply.status}")
        await self._tokens.token()

    async def collections(self) -> list[RemoteCollection]:
        """Every collection that the account can see."""
        return [RemoteCollection.of(row) async for row in self._rows("collections")]

    async def has_collection(self, id: str) -> bool:
        """Whether a collection is there."""
        try:
            await self._get(("collections", id))
        except R2RRefused:
            return False  # gone, or no longer open to the account
        return True

    async def create_collection(self, name: str, description: str) -> RemoteCollection | None:
        """Make a collection; None when the account has one of this name."""
        body = {"name": name, "description": description}
        with Tolerating(ALREADY_THERE):
            return RemoteCollection.of(results_of(await self._send("POST", ("collections",), json=body)))
        return None

    async def describe_collection(self, id: str, description: str) -> None:
        """Give a collection another description."""
        await self._send("POST", ("collections", id), json={"description": description}, retries=REPEATED)

    async def delete_collection(self, id: str) -> bool:
        """Remove a collection, not its documents; whether it was there."""
        return await self._is_done("DELETE", ("collections", id))

    def documents_of(self, collection: str) -> AsyncIterator[RemoteDocument]:
        """The documents of a collection that have come in, newest first."""
        return self._documents("collections", collection, "documents")

    async def count_documents(self, collection: str) -> int | None:
        """How many documents of a collection have come in; None when it is not there."""
        with Tolerating(NOT_THERE):
            return rows_of(await self._get(("collections", collection, "documents"), _page(0, 1)))[1]
        return None

    async def documents(self, ids: Sequence[str]) -> list[RemoteDocument]:
        """Documents by their ids; those that are not there are left out."""
        if not ids:
            return []
        query = (*(("ids", id) for id in ids[:PAGE]), ("limit", str(PAGE)))
        rows, _ = rows_of(await self._get(("documents",), query))
        return [RemoteDocument.of(row) for row in rows]

    async def document(self, id: str) -> RemoteDocument | None:
        """A document by its id."""
        with Tolerating(NOT_THERE):
            return RemoteDocument.of(results_of(await self._get(("documents", id))))
        return None

    async def chunks(self, document: str, offset: int = 0, limit: int | None = None) -> list[RemoteChunk]:
        """The chunks of a document in reading order; none when it is not there."""
        with Tolerating(NOT_THERE):
            if limit is None:
                return [RemoteChunk.of(row) async for row in self._rows("documents", document, "chunks")]
            rows, _ = rows_of(await self._get(("documents", document, "chunks"), _page(offset, limit)))
            return [RemoteChunk.of(row) for row in rows]
        return []

    async def ingest(self, sent: Sent) -> bool:
        """Have R2R take a text in; False when it has it, or is at it.

        R2R answers when it is done, or has queued it; a model of its own that fails is told as R2R's refusal.
        """
        request = Request("POST", ("documents",), self._ingest_seconds, form=sent.form(), tells_failures=True)
        with Tolerating(ALREADY_THERE):
            await self._wire.send(request, self._tokens)
            return True
        return False

    async def delete_document(self, id: str) -> bool:
        """Remove a document with its chunks; whether it was there."""
        return await self._is_done("DELETE", ("documents", id))

    async def assign(self, collection: str, document: str) -> bool:
        """Put a document into a collection; False when either is not there."""
        with Tolerating(ALREADY_THERE):
            return await self._is_done("POST", ("collections", collection, "documents", document))
        return True

    async def unassign(self, collection: str, document: str) -> None:
        """Take a document out of a collection."""
        await self._is_done("DELETE", ("collections", collection, "documents", document))

    async def search(self, query: str, settings: SearchSettings) -> list[RemoteChunk]:
        """The chunks that match best."""
        body = {"query": query, "search_mode": "custom", "search_settings": settings.body()}
        answer = await self._send("POST", ("retrieval", "search"), json=body, retries=REPEATED)
        return list(chunks_in(results_of(answer)))

    async def answer(self, question: str, settings: SearchSettings, generation: Generation) -> RemoteAnswer:
        """What R2R's own model answers from the chunks that match best."""
        body = {
            "query": question,
            "search_mode": "custom",
            "search_settings": settings.body(),
            "rag_generation_config": generation.body(),
            "include_title_if_available": True,
            "include_web_search": False,
        }
        request = Request("POST", ("retrieval", "rag"), self._rag_seconds, json=body, tells_failures=True)
        results = results_of(await self._wire.send(request, self._tokens))
        found = mapping_in(results, "search_results")
        return RemoteAnswer(
            text=text_in(results, "generated_answer"),
            chunks=tuple(chunks_in(found)),
            others=any(value for name, value in found.items() if name != "chunk_search_results"),
            model=text_in(mapping_in(results, "metadata"), "model"),
        )

    async def _documents(self, *path: str) -> AsyncIterator[RemoteDocument]:
        async for row in self._rows(*path):
            yield RemoteDocument.of(row)

    async def _rows(self, *path: str) -> AsyncIterator[dict[str, Any]]:
        """All of a list, page after page."""
        offset = 0
        while True:
            rows, total = rows_of(await self._get(path, _page(offset, PAGE)))
            for row in rows:
                yield row
            offset += len(rows)
            if not rows or offset >= total:
                return

    async def _is_done(self, method: str, path: tuple[str, ...]) -> bool:
        with Tolerating(NOT_THERE):
            await self._send(method, path, retries=REPEATED)
            return True
        return False

    async def _get(self, path: tuple[str, ...], query: tuple[tuple[str, str], ...] = ()) -> Any:
        return await self._wire.send(Request("GET", path, self._seconds, query, retries=REPEATED), self._tokens)

    async def _send(self, method: str, path: tuple[str, ...], *, json: Any = None, retries: int = 0) -> Any:
        return await self._wire.send(Request(method, path, self._seconds, json=json, retries=retries), self._tokens)


class Account:
    """The service account: it logs in, and has its tokens refreshed."""

    def __init__(self, wire: Wire, email: str, password: str) -> None:
        self._wire = wire
        self._form = {"username": email, "password": password}

    async def login(self) -> TokenPair:
        """Tokens for the password."""
        return _tokens_in(await self._wire.ask(Request("POST", ("users", "login"), LOGIN_SECONDS, form=self._form)))

    async def refresh(self, token: str) -> TokenPair:
        """Tokens for a refresh token; R2R takes it as a JSON string by itself."""
        return _tokens_in(await self._wire.ask(Request("POST", ("users", "refresh-token"), LOGIN_SECONDS, json=token)))


def _tokens_in(reply: Reply) -> TokenPair:
    # An account that R2R does not know is 404, a wrong password 401, a locked account 403, garbage 422.
    if 400 <= reply.status < 500:
        raise CredentialsRefused
    results = results_of(reply.answer)
    access, refresh = (text_in(mapping_in(results, f"{name}_token"), "token") for name in ("access", "refresh"))
    if not access:
        raise unusable("it holds no access token")
    return TokenPair(access, refresh)


@asynccontextmanager
async def open_client(settings: R2RConfig, dependency: Dependency, metrics: Metrics) -> AsyncIterator[R2RClient]:
    """A client of the server that is set, as its service account or by its API key."""
    async with open_wire(settings, dependency, metrics) as wire:
        told = partial(metrics.token_refreshed, dependency.name)
        yield R2RClient(wire, _token_source(wire, settings, told), settings)


def _token_source(wire: Wire, settings: R2RConfig, told: Callable[[str], None]) -> TokenSource:
    if settings.api_key is not None:
        return ApiKey(settings.api_key.get_secret_value())
    if settings.email is None or settings.password is None:
        raise ConfigError(["r2r: set email and password of a service account, or api_key"])
    return Tokens(Account(wire, settings.email, settings.password.get_secret_value()), told=told)


def _page(offset: int, limit: int) -> tuple[tuple[str, str], ...]:
    return ("offset", str(offset)), ("limit", str(limit))


def _json(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()
