"""The `docs` toolset: search technical documentation and read it, within a budget of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import unquote

from pydantic import Field, StringConstraints

from refdesk.cache import Cache, Key, add_cache_flags
from refdesk.calls import Call, TenantId, text_content, tool_answer
from refdesk.config import CacheConfig
from refdesk.engines.base import CollectionInfo, Document, DocumentInfo, Engine, Hit, Search
from refdesk.errors import InvalidArguments, Problem
from refdesk.tools.federation import Federated, Federation, ForeignHit, fused
from refdesk.tools.hits import excerpt, found, provenance
from refdesk.tools.not_found import no_document
from refdesk.tools.paging import CHARACTERS_PER_TOKEN, DEFAULT_TOKENS, MaxTokens, TextPage
from refdesk.tools.registry import Prompt, PromptArgument, Registry, Tool
from refdesk.tools.resource_texts import document_text, fitting
from refdesk.tools.schema import Arguments

TOOLSET = "docs"
ALL = "all"

SHARED_PART = "docs"
"""What the manual's own set is called in its URI, which clients may have written down."""

MAX_CONTENTS = 1000
"""Documents that a set's table of contents is made from: more than there is room for."""

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class SearchDocumentation(Arguments):
    query: Annotated[Text, StringConstraints(max_length=1000), Field(description="Question or keywords.")]
    max_results: Annotated[int, Field(ge=1, le=20)] = 5
    doc_type: Annotated[str, Field(description="Documentation set to search.")] = ALL
    max_tokens: MaxTokens = None


class GetDocument(Arguments):
    document_id: Annotated[Text, Field(description="Id or path, e.g. refdesk/index.md.")]
    cursor: Annotated[str | None, Field(description="Where the last answer stopped.")] = None
    max_tokens: MaxTokens = None


class Documentation:
    """The toolset's handlers, on an engine."""

    def __init__(
        self,
        engine: Engine,
        cache: Cache | None = None,
        seconds: float = 0,
        *,
        is_remote: bool = False,
        federation: Federation | None = None,
    ) -> None:
        """`seconds` is how long search results are kept in the cache; `is_remote` says that the engine's documents can
        change without its knowing; `federation` are the other servers that are searched as well."""
        self._engine = engine
        self._federation = federation
        self._cache = Cache(CacheConfig()) if cache is None else cache
        self._seconds = seconds
        self._is_remote = is_remote

    def register(self, registry: Registry) -> None:
        """Offer the toolset's tools, resources and prompts."""
        registry.add_tool(
            Tool(
                name="search_documentation",
                title="Search documentation",
                description=(
                    "Search the indexed technical documentation. Answers with the passages that match best, each with "
                    "its source; read on with get_document."
                ),
                toolset=TOOLSET,
                arguments=SearchDocumentation,
                handler=self.search,
                choices={"doc_type": self.doc_type_choices},
                # Loaded at once by clients that otherwise hide tools until they are searched for.
                meta={"anthropic/alwaysLoad": True},
            )
        )
        registry.add_tool(
            Tool(
                name="get_document",
                title="Get a document",
                description="Read a document from the documentation, page by page when it is long.",
                toolset=TOOLSET,
                arguments=GetDocument,
                handler=self.get,
            )
        )
        registry.add_resources(TechdocResources(self._engine))
        registry.add_prompt(
            Prompt(
                name="answer_from_docs",
                title="Answer from the documentation",
                description="Answer a question from the indexed documentation, with its sources.",
                toolset=TOOLSET,
                arguments=[
                    PromptArgument("question", "What you want to know.", required=True),
                    PromptArgument("doc_type", "Documentation set to search.", choices=self.doc_type_choices),
                ],
                render=self.answer_from_docs,
            )
        )

    def doc_type_choices(self, call: Call) -> list[str]:
        """`all`, and every set and other source that the caller can search."""
        own = [entry.id for entry in self._engine.sets(call.caller.tenant)]
        return [ALL, *own, *(source for source in self._sources(call) if source not in own)]

    def _sources(self, call: Call) -> list[str]:
        """The other servers that this caller's searches are passed on to."""
        return self._federation.sources(call) if self._federation is not None else []

    async def search(self, arguments: SearchDocumentation, call: Call) -> dict[str, Any]:
        caller = call.caller
        revision = self._engine.revision(caller.tenant)
        sources = self._sources(call)
        asked = (*arguments.model_dump().values(), *sources)
        key = Key(caller.tenant, caller.user, "search_documentation", asked, revision)
        # What other servers hold has no revision here.
        is_certain = not (self._is_remote or sources)
        given = await self._cache.answer(
            key, self._seconds, lambda: self._searched(arguments, call), is_certain=is_certain
        )
        return add_cache_flags(given)

    async def _searched(self, arguments: SearchDocumentation, call: Call) -> dict[str, Any]:
        own, federated = await self._all_hits(arguments, call)
        hits = fused(own, federated, arguments.max_results) if federated.sources else own
        if not hits:
            sets = ", ".join(self.doc_type_choices(call))
            nothing = f"Nothing matches {arguments.query!r}. Documentation sets: {sets}."
            return _with_sources(tool_answer([text_content(nothing)]), federated)
        return _with_sources(_search_answer(hits, arguments.max_tokens or DEFAULT_TOKENS), federated)

    async def _all_hits(self, arguments: SearchDocumentation, call: Call) -> tuple[list[Hit], Federated]:
        if self._federation is None or not self._federation.sources(call):
            return await self._own_hits(arguments, call), Federated()
        return await asyncio.gather(
            self._own_hits(arguments, call), self._others_hits(self._federation, arguments, call)
        )

    async def _own_hits(self, arguments: SearchDocumentation, call: Call) -> list[Hit]:
        tenant = call.caller.tenant
        if arguments.doc_type != ALL and arguments.doc_type not in (entry.id for entry in self._engine.sets(tenant)):
            return []
        collections = () if arguments.doc_type == ALL else (arguments.doc_type,)
        wanted = Search(arguments.query, limit=arguments.max_results, collections=collections)
        return await found(self._engine, tenant, wanted)

    async def _others_hits(self, federation: Federation, arguments: SearchDocumentation, call: Call) -> Federated:
        """What other servers find, unless a set of our own is asked for."""
        own = (entry.id for entry in self._engine.sets(call.caller.tenant))
        if arguments.doc_type in own:
            return Federated()
        only = None if arguments.doc_type == ALL else arguments.doc_type
        return await federation.ask(arguments.query, call, only)

    async def get(self, arguments: GetDocument, call: Call) -> dict[str, Any]:
        tenant = call.caller.tenant
        document = await self._engine.read(tenant, arguments.document_id)
        if document is None:
            hint = "search_documentation finds documents by what they say."
            raise await no_document(self._engine, tenant, arguments.document_id, hint)
        page = TextPage.of(document.text, arguments.cursor, arguments.max_tokens or DEFAULT_TOKENS)
        return _page_answer(document, page)

    async def answer_from_docs(self, given: Mapping[str, str], call: Call) -> dict[str, Any]:
        doc_type = given.get("doc_type") or ALL
        text = (
            f"Answer this question from the documentation: {given['question']}\n\n"
            f'Call search_documentation (doc_type "{doc_type}") and read on with get_document where a passage is cut. '
            "Use only what you find there, name the source after each statement, and say so plainly when the "
            "documentation does not hold the answer."
        )
        return {"messages": [{"role": "user", "content": text_content(text)}]}


class TechdocResources:
    """`techdoc://<doc_type>/<collection>` lists a set; `techdoc://{doc_type}/{path}` reads one document of it."""

    SCHEME = "techdoc://"
    TEMPLATE = "techdoc://{doc_type}/{path}"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def listing(self, call: Call) -> Iterable[Mapping[str, Any]]:
        for entry in self._engine.sets(call.caller.tenant):
            version = f", version {entry.version}" if entry.version else ""
            yield {
                "uri": self._uri(entry),
                "name": entry.id,
                "title": entry.name,
                "description": f"{entry.description or entry.name}{version}: contents of {entry.documents} documents",
                "mimeType": "text/markdown",
            }

    def templates(self) -> Iterable[Mapping[str, Any]]:
        yield {
            "uriTemplate": self.TEMPLATE,
            "name": "document",
            "title": "A document of the documentation",
            "description": "One document as Markdown.",
            "mimeType": "text/markdown",
        }

    async def read(self, uri: str, call: Call) -> Sequence[Mapping[str, Any]] | None:
        if not uri.startswith(self.SCHEME):
            return None
        path = unquote(uri.removeprefix(self.SCHEME))
        text = await self._contents(path, call.caller.tenant)
        if text is None:
            document = await self._engine.read(call.caller.tenant, path)
            text = document_text(document) if document else None
        return None if text is None else [{"uri": uri, "mimeType": "text/markdown", "text": text}]

    async def complete(self, template: str, name: str, value: str, given: Mapping[str, str], call: Call) -> list[str]:
        tenant = call.caller.tenant
        if name == "doc_type":
            return [entry.id for entry in self._engine.sets(tenant) if entry.id.startswith(value)]
        if name != "path":
            raise InvalidArguments([Problem("argument.name", f"{template} has no variable {name!r}")])
        prefixes = [given["doc_type"]] if "doc_type" in given else [entry.id for entry in self._engine.sets(tenant)]
        ids = [id for prefix in prefixes for id in await self._engine.document_ids(tenant, prefix=f"{prefix}/{value}")]
        return [id.partition("/")[2] for id in ids]

    async def _contents(self, path: str, tenant: TenantId) -> str | None:
        for entry in self._engine.sets(tenant):
            if f"{self.SCHEME}{path}" == self._uri(entry):
                ids = await self._engine.document_ids(tenant, prefix=f"{entry.id}/", limit=MAX_CONTENTS)
                shown = fitting(f"- [{id}]({self.SCHEME}{id})" for id in ids)
                more = entry.documents - len(shown)
                foot = f"- … {more} more; r2r_list_documents with collection_id {entry.id!r} lists all"
                return "\n".join([f"# {entry.name}", "", *shown, *([foot] if more > 0 else [])])
        return None

    @classmethod
    def _uri(cls, entry: CollectionInfo) -> str:
        return f"{cls.SCHEME}{entry.id}/{SHARED_PART if entry.shared else entry.id}"


def _with_sources(answer: dict[str, Any], federated: Federated) -> dict[str, Any]:
    """The answer, saying which of several sources it is from."""
    if not federated.sources:
        return answer
    last = answer["content"][-1]
    last["text"] += f"\n\n({federated.note()})"
    return {**answer, "_meta": {**answer.get("_meta", {}), "sources": federated.meta()}}


def _search_answer(hits: Sequence[Hit | ForeignHit], max_tokens: int) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    left = max_tokens * CHARACTERS_PER_TOKEN
    for position, hit in enumerate(hits):
        # What is left is shared among the hits that are still to come, so that a long first one leaves room.
        room = max(left // (len(hits) - position), 1)
        item = _hit_item(hit, room) if isinstance(hit, Hit) else _foreign_item(hit, room)
        if items and len(item["text"]) > left:
            break
        items.append(item)
        left -= len(item["text"])
    return _accounted(items, omitted=len(hits) - len(items))


def _accounted(items: list[dict[str, Any]], omitted: int) -> dict[str, Any]:
    """The answer with what it cost and what was left out, for the model and for the program."""
    tokens = sum(len(item["text"]) for item in items) // CHARACTERS_PER_TOKEN
    left_out = f", {omitted} left out (raise max_tokens)" if omitted else ""
    items[-1]["text"] += f"\n\n({len(items)} result{'s' if len(items) > 1 else ''}, about {tokens} tokens{left_out})"
    return {**tool_answer(items), "_meta": {"tokens": tokens, "omitted": omitted}}


def _hit_item(hit: Hit, room: int) -> dict[str, Any]:
    head = f"### {' › '.join(hit.path) or hit.document.title}\n"
    foot = f"\nSource: {provenance(hit.document)}"
    passage = excerpt(hit.text, max(room - len(head) - len(foot), 200))
    section = hit.path[-1] if hit.path else None
    place = {
        "page": hit.page,
        "section": section,
        "anchor": hit.anchor or None,
        "anchors": [a for a in hit.anchors if a],
    }
    metadata = {**_metadata(hit.document), **place}
    return text_content(f"{head}{passage}{foot}", metadata=metadata, score=hit.score, chunk_id=hit.chunk_id)


def _foreign_item(hit: ForeignHit, room: int) -> dict[str, Any]:
    passage = hit.passage
    head = f"### {passage.title or passage.url or hit.server}\n"
    version = f", version {hit.version}" if hit.version else ""
    foot = f"\nSource: {passage.url or 'no address given'} by {hit.server}{version}, fetched {hit.fetched_at}"
    text = excerpt(passage.text, max(room - len(head) - len(foot), 200))
    metadata = {
        "source": passage.url or hit.server,
        "title": passage.title or None,
        "doc_type": hit.server,
        "server": hit.server,
        "version": hit.version or None,
        "fetched_at": hit.fetched_at,
        "page": None,
        "section": None,
    }
    return text_content(f"{head}{text}{foot}", metadata=metadata)


def _metadata(info: DocumentInfo) -> dict[str, Any]:
    return {
        "source": info.id,
        "title": info.title,
        "doc_type": info.collection,
        "version": info.version,
        "indexed_at": info.indexed_at.isoformat(),
    }


def _page_answer(document: Document, page: TextPage) -> dict[str, Any]:
    text = page.text.strip("\n")
    meta: dict[str, Any] = {"metadata": _metadata(document.info), "tokens": page.tokens}
    source = f"(Source: {provenance(document.info)}; about {page.tokens} tokens)"
    if page.next_cursor is not None:
        meta["nextCursor"] = page.next_cursor
        source += f"\n{page.note()}"
    return tool_answer([text_content(f"{text}\n\n{source}", **meta)])
