"""Resources of the knowledge base: current project, search history, collections, documents and sections.

Changes of a tenant's documents are published to clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

import orjson
from anyio import to_thread

from refdesk.calls import Call, ListChanged, ResourceUpdated, TenantId
from refdesk.documents.export.markdown import markdown_parts
from refdesk.documents.packed_document import PackedDocument
from refdesk.engines.base import IN_PROGRESS, SHARED, CollectionInfo, Engine, Listing, PassageSearch, Status
from refdesk.engines.storage.search_history import SearchHistory
from refdesk.errors import InvalidArguments, Problem
from refdesk.support.lru import BoundedDict
from refdesk.tools.collection_scope import Projects
from refdesk.tools.paging import format_document, format_section
from refdesk.tools.registry import Registry

MAX_TENANTS = 10_000
"""Tenants whose collections are remembered; after eviction, the next change publishes new lists."""

SCHEME = "r2r://"
CONTEXT = f"{SCHEME}current-project/context"
HISTORY = f"{SCHEME}search/history"
COLLECTION = f"{SCHEME}collection/"
DOCUMENT = f"{SCHEME}document/"
COLLECTION_TEMPLATE = f"{COLLECTION}{{collection_id}}"
DOCUMENT_TEMPLATE = f"{DOCUMENT}{{+document_id}}{{?section_id}}"

HISTORY_LENGTH = 10
MAX_COMPLETIONS = 100
"""Completion values; the protocol's limit."""

JSON = "application/json"
MARKDOWN = "text/markdown"


@dataclass(frozen=True, slots=True)
class DocumentCounts:
    """Number of pending, indexed and failed documents."""

    pending: int
    success: int
    failed: int

    @classmethod
    async def of(cls, engine: Engine, tenant: TenantId, collection: str | None) -> DocumentCounts:
        async def count(*statuses: Status) -> int:
            return (await engine.documents(tenant, Listing(collection, statuses, limit=1)))[1]

        return cls(await count(*IN_PROGRESS), await count("success"), await count("failed"))

    @property
    def total(self) -> int:
        """All documents."""
        return self.pending + self.success + self.failed


class KnowledgeResources:
    """Resources `r2r://…`."""

    def __init__(self, engine: Engine, history: SearchHistory, projects: Projects) -> None:
        self._engine = engine
        self._history = history
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
            return _build_json(uri, await self._build_context(call))
        if uri == HISTORY:
            return _build_json(uri, await self._list_searches(call))
        if uri.startswith(COLLECTION):
            found = await self._describe_collection(tenant, unquote(uri.removeprefix(COLLECTION)))
            return None if found is None else _build_json(uri, found)
        if uri.startswith(DOCUMENT):
            text = await self._read_document(tenant, uri.removeprefix(DOCUMENT))
            return None if text is None else [{"uri": uri, "mimeType": MARKDOWN, "text": text}]
        return None

    async def complete(self, template: str, name: str, value: str, context: Mapping[str, str], call: Call) -> list[str]:
        tenant = call.caller.tenant
        if template == COLLECTION_TEMPLATE and name == "collection_id":
            return [entry.id for entry in self._engine.cached_collections(tenant) if entry.id.startswith(value)]
        if template == DOCUMENT_TEMPLATE and name == "document_id":
            return list(await self._engine.list_document_ids(tenant, prefix=value, limit=MAX_COMPLETIONS + 1))
        if template == DOCUMENT_TEMPLATE and name == "section_id":
            return await self._complete_section_id(tenant, context.get("document_id", ""), value)
        raise InvalidArguments([Problem("argument.name", f"{template} has no variable {name!r}")])

    async def _build_context(self, call: Call) -> dict[str, Any]:
        tenant = call.caller.tenant
        project = await self._projects.get_current(call)
        info = await self._projects.find_collection(tenant, project) if project else None
        counts = await DocumentCounts.of(self._engine, tenant, info.id) if info else DocumentCounts(0, 0, 0)
        return {
            "project_name": project.name if project else None,
            "project_path": (self._projects.get_path(tenant, project) or None) if project else None,
            "collection_id": info.id if info else None,
            "collection_name": info.name if info else (project.collection_name if project else None),
            "document_count": counts.total,
            "last_updated": info.updated_at if info else None,
            "ingestion_status": counts,
        }

    async def _list_searches(self, call: Call) -> list[dict[str, Any]]:
        searches = await self._history.list_recent(call.caller.tenant, call.caller.user, HISTORY_LENGTH)
        return [
            {"query": search.query, "collection_id": search.collection, "results": search.results, "at": search.at}
            for search in searches
        ]

    async def _describe_collection(self, tenant: TenantId, id: str) -> dict[str, Any] | None:
        info = next((entry for entry in await self._engine.collections(tenant) if entry.id == id), None)
        return (
            None
            if info is None
            else {**_describe(info), "counts": await DocumentCounts.of(self._engine, tenant, info.id)}
        )

    async def _read_document(self, tenant: TenantId, rest: str) -> str | None:
        path, _, query = rest.partition("?")
        section_id = parse_qs(query).get("section_id", [None])[0]
        if section_id is None:
            document = await self._engine.read(tenant, unquote(path))
            return format_document(document) if document else None
        packed = await self._engine.open(tenant, unquote(path))
        text = await to_thread.run_sync(_read_section, packed, section_id) if packed else None
        return None if text is None else format_section(unquote(path), section_id, text)

    async def _complete_section_id(self, tenant: TenantId, document_id: str, prefix: str) -> list[str]:
        packed = await self._engine.open(tenant, document_id)
        ids = await to_thread.run_sync(_list_section_ids, packed) if packed else []
        return [id for id in ids if id.startswith(prefix)]


def _describe(info: CollectionInfo) -> dict[str, Any]:
    return {
        "collection_id": info.id,
        "name": info.name,
        "description": info.description,
        "version": info.version or None,
        "document_count": info.documents,
        "created_at": info.created_at,
        "last_updated": info.updated_at,
    }


def _build_json(uri: str, content: Any) -> list[dict[str, Any]]:
    options = orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z | orjson.OPT_OMIT_MICROSECONDS
    return [{"uri": uri, "mimeType": JSON, "text": orjson.dumps(content, option=options).decode()}]


def _read_section(packed: PackedDocument, section_id: str) -> str | None:
    with packed:
        section = packed.section(section_id)
        return "".join(markdown_parts(packed.blocks(section.start, section.end))) if section else None


def _list_section_ids(packed: PackedDocument) -> list[str]:
    with packed:
        return packed.section_ids()


class ChangePublisher:
    """Engine listener: `engine.listen(ChangePublisher(engine, registry).changed)`."""

    def __init__(self, engine: PassageSearch, registry: Registry) -> None:
        self._engine = engine
        self._registry = registry
        self._collection_ids: BoundedDict[TenantId, tuple[str, ...]] = BoundedDict(MAX_TENANTS)

    def changed(self, tenant: TenantId) -> None:
        """Publish changed lists if the tenant's collections differ, and the project's new state."""
        ids = tuple(entry.id for entry in self._engine.cached_collections(tenant))
        # Other tenants are not told; changes of shared collections are announced to all.
        audience = None if tenant == SHARED else tenant
        if self._collection_ids.get(tenant) != ids:
            self._collection_ids[tenant] = ids
            # Collections are resources, and values of `doc_type` in a tool's schema.
            self._registry.publish(ListChanged("resources", audience))
            self._registry.publish(ListChanged("tools", audience))
        self._registry.publish(ResourceUpdated(CONTEXT, audience))
