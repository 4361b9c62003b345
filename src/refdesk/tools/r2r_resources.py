"""The knowledge base as resources: the current project, the last searches, collections, documents and sections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

import orjson
from anyio import to_thread

from refdesk.calls import Call, TenantId
from refdesk.documents.export.markdown import markdown_parts
from refdesk.documents.packed_document import Shelf
from refdesk.engines.base import UNDER_WAY, CollectionInfo, Engine, Listing, Status
from refdesk.errors import InvalidArguments, Problem
from refdesk.tools.projects import Projects
from refdesk.tools.resource_texts import document_text, section_text

SCHEME = "r2r://"
CONTEXT = f"{SCHEME}current-project/context"
HISTORY = f"{SCHEME}search/history"
COLLECTION = f"{SCHEME}collection/"
DOCUMENT = f"{SCHEME}document/"
COLLECTION_TEMPLATE = f"{COLLECTION}{{collection_id}}"
DOCUMENT_TEMPLATE = f"{DOCUMENT}{{+document_id}}{{?section_id}}"

HISTORY_LENGTH = 10
COMPLETED = 100
"""Values that a completion looks for; the protocol shows no more."""

MAX_SECTIONS = 2000
"""Sections of one document that are looked through."""

JSON = "application/json"
MARKDOWN = "text/markdown"


@dataclass(frozen=True, slots=True)
class Counts:
    """How many documents are on their way, in, and failed."""

    pending: int
    success: int
    failed: int

    @classmethod
    async def of(cls, engine: Engine, tenant: TenantId, collection: str | None) -> Counts:
        async def count(*statuses: Status) -> int:
            return (await engine.documents(tenant, Listing(collection, statuses, limit=1)))[1]

        return cls(await count(*UNDER_WAY), await count("success"), await count("failed"))

    @property
    def total(self) -> int:
        """All of them."""
        return self.pending + self.success + self.failed


class KnowledgeResources:
    """`r2r://…`."""

    def __init__(self, engine: Engine, projects: Projects) -> None:
        self._engine = engine
        self._projects = projects

    def listing(self, call: Call) -> Iterable[Mapping[str, Any]]:
        yield {
            "uri": CONTEXT,
            "name": "current-project",
            "title": "The current project",
            "description": "Its collection, how many documents it has and how far they are.",
            "mimeType": JSON,
        }
        yield {
            "uri": HISTORY,
            "name": "search-history",
            "title": "Your last searches",
            "description": f"The last {HISTORY_LENGTH}, newest first.",
            "mimeType": JSON,
        }

    def templates(self) -> Iterable[Mapping[str, Any]]:
        yield {
            "uriTemplate": COLLECTION_TEMPLATE,
            "name": "collection",
            "title": "A collection",
            "description": "A collection's name, version and counts.",
            "mimeType": JSON,
        }
        yield {
            "uriTemplate": DOCUMENT_TEMPLATE,
            "name": "indexed-document",
            "title": "An indexed document",
            "description": "One document, or one section of it, as Markdown.",
            "mimeType": MARKDOWN,
        }

    async def read(self, uri: str, call: Call) -> Sequence[Mapping[str, Any]] | None:
        tenant = call.caller.tenant
        if uri == CONTEXT:
            return _json(uri, await self._context(call))
        if uri == HISTORY:
            return _json(uri, await self._history(call))
        if uri.startswith(COLLECTION):
            found = await self._collection(tenant, unquote(uri.removeprefix(COLLECTION)))
            return None if found is None else _json(uri, found)
        if uri.startswith(DOCUMENT):
            text = await self._document(tenant, uri.removeprefix(DOCUMENT))
            return None if text is None else [{"uri": uri, "mimeType": MARKDOWN, "text": text}]
        return None

    async def complete(self, template: str, name: str, value: str, given: Mapping[str, str], call: Call) -> list[str]:
        tenant = call.caller.tenant
        if template == COLLECTION_TEMPLATE and name == "collection_id":
            return [entry.id for entry in self._engine.sets(tenant) if entry.id.startswith(value)]
        if template == DOCUMENT_TEMPLATE and name == "document_id":
            return list(await self._engine.document_ids(tenant, prefix=value, limit=COMPLETED + 1))
        if template == DOCUMENT_TEMPLATE and name == "section_id":
            return await self._section_ids(tenant, given.get("document_id", ""), value)
        raise InvalidArguments([Problem("argument.name", f"{template} has no variable {name!r}")])

    async def _context(self, call: Call) -> dict[str, Any]:
        tenant = call.caller.tenant
        project = await self._projects.current(call)
        info = await self._projects.collection(tenant, project) if project else None
        counts = await Counts.of(self._engine, tenant, info.id) if info else Counts(0, 0, 0)
        return {
            "project_name": project.name if project else None,
            "project_path": (self._projects.path(tenant, project) or None) if project else None,
            "collection_id": info.id if info else None,
            "collection_name": info.name if info else (project.collection_name if project else None),
            "document_count": counts.total,
            "last_updated": info.updated_at if info else None,
            "ingestion_status": counts,
        }

    async def _history(self, call: Call) -> list[dict[str, Any]]:
        past = await self._engine.history(call.caller.tenant, call.caller.user, HISTORY_LENGTH)
        return [
            {"query": search.query, "collection_id": search.collection, "results": search.results, "at": search.at}
            for search in past
        ]

    async def _collection(self, tenant: TenantId, id: str) -> dict[str, Any] | None:
        info = next((entry for entry in await self._engine.collections(tenant) if entry.id == id), None)
        return None if info is None else {**_about(info), "counts": await Counts.of(self._engine, tenant, info.id)}

    async def _document(self, tenant: TenantId, rest: str) -> str | None:
        path, _, query = rest.partition("?")
        section_id = parse_qs(query).get("section_id", [None])[0]
        if section_id is None:
            document = await self._engine.read(tenant, unquote(path))
            return document_text(document) if document else None
        shelf = await self._engine.open(tenant, unquote(path))
        text = await to_thread.run_sync(_section_text, shelf, section_id) if shelf else None
        return None if text is None else section_text(unquote(path), section_id, text)

    async def _section_ids(self, tenant: TenantId, document_id: str, prefix: str) -> list[str]:
        shelf = await self._engine.open(tenant, document_id)
        ids = await to_thread.run_sync(_all_section_ids, shelf) if shelf else []
        return [id for id in ids if id.startswith(prefix)]


def _about(info: CollectionInfo) -> dict[str, Any]:
    return {
        "collection_id": info.id,
        "name": info.name,
        "description": info.description,
        "version": info.version or None,
        "document_count": info.documents,
        "created_at": info.created_at,
        "last_updated": info.updated_at,
    }


def _json(uri: str, content: Any) -> list[dict[str, Any]]:
    options = orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z | orjson.OPT_OMIT_MICROSECONDS
    return [{"uri": uri, "mimeType": JSON, "text": orjson.dumps(content, option=options).decode()}]


def _section_text(shelf: Shelf, section_id: str) -> str | None:
    with shelf:
        section = shelf.section(section_id)
        return "".join(markdown_parts(shelf.blocks(section.start, section.end))) if section else None


def _all_section_ids(shelf: Shelf) -> list[str]:
    with shelf:
        return shelf.section_ids(MAX_SECTIONS)
