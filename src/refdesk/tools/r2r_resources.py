"""Resources and prompts of the knowledge base.

Resources are the current project, the search history, collections, documents and sections. Changes of a tenant's
documents are published to clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, unquote

import orjson
from anyio import to_thread

from refdesk.calls import Call, ListChanged, ResourceUpdated, TenantId, resource_entry
from refdesk.documents.export.markdown import markdown_parts
from refdesk.engines.base import SHARED, DocumentStatus, Engine, Listing
from refdesk.engines.storage.search_history import SearchHistory
from refdesk.errors import InvalidArguments, Problem
from refdesk.support.lru import BoundedDict
from refdesk.tools.collection_scope import ALL, COLLECTION_PREFIX, Projects, ScopeResolver
from refdesk.tools.collection_versions import find_collection, list_names, resolve_document_id
from refdesk.tools.paging import MAX_CHARACTERS, format_document, format_section
from refdesk.tools.prompts import Prompt, PromptArgument
from refdesk.tools.r2r import STATUSES, TOOLSET
from refdesk.tools.registry import Registry
from refdesk.validation import shorten

MAX_SHOWN_DOCUMENTS = 20
"""Documents named in a prompt; the tools find the others."""

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


class KnowledgeResources:
    def __init__(self, engine: Engine, history: SearchHistory, projects: Projects) -> None:
        self._engine = engine
        self._history = history
        self._projects = projects

    def listing(self, call: Call) -> Iterable[Mapping[str, Any]]:
        description = "Its collection, how many documents it has and how far they are."
        yield resource_entry("current-project", "The current project", description, JSON, uri=CONTEXT)
        description = f"The last {HISTORY_LENGTH}, newest first."
        yield resource_entry("search-history", "Your last searches", description, JSON, uri=HISTORY)

    def templates(self) -> Iterable[Mapping[str, Any]]:
        description = "A collection's name, version and counts."
        yield resource_entry("collection", "A collection", description, JSON, uriTemplate=COLLECTION_TEMPLATE)
        name, description = "indexed-document", "One document, or one section of it, as Markdown."
        yield resource_entry(name, "An indexed document", description, MARKDOWN, uriTemplate=DOCUMENT_TEMPLATE)

    async def read(self, uri: str, call: Call) -> Sequence[Mapping[str, Any]] | None:
        tenant = call.caller.tenant
        if uri == CONTEXT:
            return _build_json(uri, await self._build_context(call))
        if uri == HISTORY:
            searches = await self._history.list_recent(tenant, call.caller.user, HISTORY_LENGTH)
            listed = [
                {"query": past.query, "collection_id": past.collection, "results": past.results, "at": past.at}
                for past in searches
            ]
            return _build_json(uri, listed)
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
            return [each for each in list_names(self._engine.cached_collections(tenant)) if each.startswith(value)]
        if template == DOCUMENT_TEMPLATE and name == "document_id":
            return list(await self._engine.list_document_ids(tenant, prefix=value, limit=MAX_COMPLETIONS + 1))
        if template == DOCUMENT_TEMPLATE and name == "section_id":
            packed = await self._engine.open(tenant, context.get("document_id", ""))
            if packed is None:
                return []
            with packed:
                return [id for id in await to_thread.run_sync(packed.section_ids) if id.startswith(value)]
        raise InvalidArguments([Problem("argument.name", f"{template} has no variable {name!r}")])

    async def _build_context(self, call: Call) -> dict[str, Any]:
        tenant = call.caller.tenant
        project = await self._projects.get_current(call)
        info = await self._projects.find_collection(tenant, project) if project else None
        counts = await self._count_documents(tenant, info.id) if info else dict.fromkeys(STATUSES, 0)
        return {
            "project_name": project.name if project else None,
            "project_path": (project.path or None) if project else None,
            "collection_id": info.id if info else None,
            "collection_name": info.name if info else (project.collection_name if project else None),
            "document_count": sum(counts.values()),
            "last_updated": info.updated_at if info else None,
            "ingestion_status": counts,
        }

    async def _describe_collection(self, tenant: TenantId, id: str) -> dict[str, Any] | None:
        info = find_collection(await self._engine.collections(tenant), id)
        if info is None:
            return None
        return {
            "collection_id": info.id,
            "name": info.name,
            "description": info.description,
            "version": info.version or None,
            "document_count": info.documents,
            "created_at": info.created_at,
            "last_updated": info.updated_at,
            "counts": await self._count_documents(tenant, info.id),
        }

    async def _count_documents(self, tenant: TenantId, collection: str) -> dict[str, int]:
        return {
            name: (await self._engine.documents(tenant, Listing(collection, statuses, limit=1)))[1]
            for name, statuses in STATUSES.items()
        }

    async def _read_document(self, tenant: TenantId, rest: str) -> str | None:
        path, _, query = rest.partition("?")
        id = resolve_document_id(self._engine.cached_collections(tenant), unquote(path))
        section_id = parse_qs(query).get("section_id", [None])[0]
        if section_id is None:
            document = await self._engine.read(tenant, id)
            return format_document(document) if document else None
        packed = await self._engine.open(tenant, id)
        if packed is None:
            return None

        def read() -> str | None:
            section = packed.section(section_id)
            return "".join(markdown_parts(packed.blocks(section.start, section.end))) if section else None

        with packed:
            text = await to_thread.run_sync(read)
        return None if text is None else format_section(unquote(path), section_id, text)


def _build_json(uri: str, content: Any) -> list[dict[str, Any]]:
    options = orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z | orjson.OPT_OMIT_MICROSECONDS
    return [{"uri": uri, "mimeType": JSON, "text": orjson.dumps(content, option=options).decode()}]


def publish_changes(engine: Engine, registry: Registry) -> None:
    """Publish changed lists whenever a tenant's collections differ, and the project's new state."""
    collection_ids: BoundedDict[TenantId, tuple[str, ...]] = BoundedDict(MAX_TENANTS)

    def list_ids(tenant: TenantId) -> tuple[str, ...]:
        return tuple(entry.id for entry in engine.cached_collections(tenant))

    # Those of the manual are there from the start: its indexing changes no list.
    collection_ids[SHARED] = list_ids(SHARED)

    def on_change(tenant: TenantId) -> None:
        ids = list_ids(tenant)
        # Other tenants are not told; changes of shared collections are announced to all.
        audience = None if tenant == SHARED else tenant
        if collection_ids.get(tenant) != ids:
            collection_ids[tenant] = ids
            # Collections are resources, and values of `doc_type` in a tool's schema.
            registry.publish(ListChanged("resources", audience))
            registry.publish(ListChanged("tools", audience))
        registry.publish(ResourceUpdated(CONTEXT, audience))

    engine.listen(on_change)


class KnowledgePrompts:
    """Prompts built from the caller's current documents."""

    def __init__(self, engine: Engine, scopes: ScopeResolver) -> None:
        self._engine = engine
        self._scopes = scopes

    def register(self, registry: Registry) -> None:
        collection = PromptArgument(
            "collection_id", "Collection; default: the current project's.", choices=self._list_collections
        )
        registry.add_prompt(
            Prompt(
                name="onboard_me",
                title="Onboard me to this project",
                description="An overview of a project from its documents, with sources.",
                toolset=TOOLSET,
                arguments=[collection, PromptArgument("role", "Who you are, e.g. backend developer.")],
                render=self.onboard,
            )
        )
        registry.add_prompt(
            Prompt(
                name="what_changed",
                title="What changed",
                description="What the most recently indexed documents say.",
                toolset=TOOLSET,
                arguments=[collection],
                render=self.what_changed,
            )
        )

    async def onboard(self, arguments: Mapping[str, str], call: Call) -> str:
        where, newest = await self._list_newest(arguments, call)
        reader = f" I am {shorten(arguments['role'])}." if arguments.get("role") else ""
        return (
            f'Onboard me to the project whose documents are in the collection "{where}".{reader}\n\n'
            f"{_format_documents('Some of its documents', newest)}\n\n"
            f'Use r2r_search (collection_id "{where}") and read on with get_document or read_doc_section. Tell me what '
            "the project is for, how it is built up, how I set it up and run it, what its rules and decisions are, and "
            "what to read first. Name the source of each statement, and say what the documents do not tell."
        )

    async def what_changed(self, arguments: Mapping[str, str], call: Call) -> str:
        where, newest = await self._list_newest(arguments, call)
        return (
            f'Tell me what is new in the documents of the collection "{where}".\n\n'
            f"{_format_documents('Most recently indexed, newest first', newest)}\n\n"
            "Read them with get_document, say for each in a sentence what it is about and what a reader has to know, "
            "and name its id. Skip what is of no consequence."
        )

    def _list_collections(self, call: Call) -> list[str]:
        return [ALL, *list_names(self._engine.cached_collections(call.caller.tenant))]

    async def _list_newest(self, arguments: Mapping[str, str], call: Call) -> tuple[str, Sequence[DocumentStatus]]:
        """Return the scope label and the most recently updated documents."""
        scope = await self._scopes.resolve_search(call, arguments.get("collection_id") or None)
        if scope.is_project_empty:
            return f"{COLLECTION_PREFIX}{scope.project}", ()
        collection = scope.collections[0] if scope.collections else None
        listing = Listing(collection, ("embedding", "success"), limit=MAX_SHOWN_DOCUMENTS, newest_first=True)
        newest, _ = await self._engine.documents(call.caller.tenant, listing)
        return scope.label, newest


def _format_documents(title: str, documents: Sequence[DocumentStatus]) -> str:
    if not documents:
        return "It has no documents yet. Say so, and that r2r_ingest_document adds some."
    lines = [f"- {d.id}: {shorten(d.title, MAX_CHARACTERS)} ({d.updated_at:%Y-%m-%d %H:%M})" for d in documents]
    return "\n".join([f"{title}:", *lines])
