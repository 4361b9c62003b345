"""The `reader` toolset: sections, pages and chunks of one document, within a size limit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Annotated, Any, TypeVar

from anyio import to_thread
from pydantic import Field

from refdesk.calls import WINDOW_METHOD, Call, TenantId, ToolEntry
from refdesk.config.models import ReaderConfig
from refdesk.documents.conversion_store import HANDLE
from refdesk.documents.conversions import Conversions
from refdesk.documents.export.markdown import markdown_parts
from refdesk.documents.model import Block, Section
from refdesk.documents.packed_document import PackedDocument
from refdesk.documents.tokens import CHARACTERS_PER_TOKEN, measure_tokens
from refdesk.engines.base import Engine
from refdesk.errors import DocumentNotFound, InvalidArguments, Problem, ToolFailure
from refdesk.tools.budget import Blocklist, DocumentRateLimiter
from refdesk.tools.document_lookup import build_document_not_found, resolve_links, resolve_reference, rewrite_links
from refdesk.tools.fragments import build_chunk_not_found, build_place_not_found, find_section
from refdesk.tools.json_schema import Arguments, Result, ResultItem, Unlisted
from refdesk.tools.paging import MAX_CHARACTERS, OutlineEntry, find_cut, format_path, shorten_all, shorten_mapping
from refdesk.tools.registry import Registry, add_tools, tool
from refdesk.tools.window_service import RemoteWindows, WindowChunk
from refdesk.validation import shorten, validate

TOOLSET = "reader"

SNIPPET_CHARACTERS = 600
"""Length of a search result."""

ENTRY_BYTES = 48
"""Overhead of an outline entry besides id and title, and of a chunk besides its text."""

R = TypeVar("R", bound="_ReadResult")
T = TypeVar("T", bound="_ReadText")
DocId = Annotated[str, Field(min_length=1, max_length=2000, description="Document id or handle.")]
Cursor = Annotated[str | None, Field(pattern=r"^\d{1,12}$", description="From the last answer.")]
Budget = Annotated[int | None, Field(ge=100, le=20_000)]


class PageOutside(ToolFailure):
    """The document has no such page."""


class ReadDocSection(Arguments):
    doc_id: DocId
    section_id: Annotated[str | None, Field(min_length=1, max_length=2000)] = None
    cursor: Cursor = None
    max_tokens: Budget = None


class ReadDocPages(Arguments):
    doc_id: DocId
    page_start: Annotated[int, Field(ge=1)]
    page_end: Annotated[int, Field(ge=1)]
    cursor: Cursor = None
    max_tokens: Budget = None


class ReadDocMetadata(Arguments):
    doc_id: DocId
    under: Annotated[str | None, Field(max_length=200, description="Only subsections of this section.")] = None


class DocLocalSearch(Arguments):
    doc_id: DocId
    query: Annotated[str, Field(min_length=1, max_length=1000)]
    max_results: Annotated[int, Field(ge=1, le=5)] = 5
    max_tokens: Budget = None


class ReadChunkWindow(Arguments):
    doc_id: DocId
    anchor_chunk_id: Annotated[str | None, Field(min_length=1, max_length=2000)] = None
    window_before: Annotated[int | None, Field(ge=0)] = None
    window_after: Annotated[int | None, Field(ge=0)] = None
    radius: Annotated[int | None, Field(ge=0, description="Both sides alike.")] = None
    max_tokens: Budget = None


class NoArguments(Arguments):
    pass


class _ReadResult(Result):
    """Result of a read, with its token count."""

    doc_id: Unlisted[str]
    token_estimate: Unlisted[int]


class _ReadText(_ReadResult):
    """Text that was read, and whether there is more."""

    text: str
    truncated: bool
    next_cursor: str | None = None

    def _format_footer(self, where: str) -> str:
        more = f"; truncated, continue with cursor {self.next_cursor!r}" if self.truncated else ""
        return f"\n\n({where} of {self.doc_id}, {self.token_estimate} tokens{more})"


class SectionText(_ReadText):
    section_id: Unlisted[str]
    title: str
    page: int | None = None

    def readable(self) -> str:
        return self.text + self._format_footer(f"section {self.section_id}")


class PagesText(_ReadText):
    page_start: Unlisted[int]
    page_end: Unlisted[int]
    pages: int

    def readable(self) -> str:
        return self.text + self._format_footer(f"pages {self.page_start}–{self.page_end} of {self.pages}")


class DocumentMetadata(_ReadResult):
    title: str
    pages: int
    page_kind: Unlisted[str]
    sections: list[OutlineEntry]
    sections_omitted: Unlisted[int]
    tables: Unlisted[int]
    tags: list[str]
    tenant: Unlisted[str]
    media_type: Unlisted[str]
    properties: Unlisted[dict[str, str]]
    warnings: Unlisted[list[str]]

    def readable(self) -> str:
        lines = [f"# {self.title}", f"{self.doc_id}: {self.media_type}, {self.pages} {self.page_kind}s"]
        lines += [f"{name}: {value}" for name, value in self.properties.items()]
        lines += [f"tags: {', '.join(self.tags)}"] if self.tags else []
        lines += [f"tenant: {self.tenant}", *(f"Warning: {warning}" for warning in self.warnings), "", "Sections:"]
        lines += [entry.readable() for entry in self.sections]
        if self.sections_omitted:
            lines.append(f"… {self.sections_omitted} deeper ones left out; `under` lists those of one section")
        return "\n".join(lines)


class Snippet(ResultItem):
    text: str
    section_id: str
    section: str | None = None
    page: int | None = None
    chunk_id: str
    score: float


class Snippets(_ReadResult):
    results: list[Snippet]
    omitted: Unlisted[int] = 0
    """Results left out by the budget."""

    def readable(self) -> str:
        if not self.results:
            return f"Nothing in {self.doc_id} matches; read_doc_metadata lists its sections."
        left_out = [f"({self.omitted} more left out; raise max_tokens)"] if self.omitted else []
        snippets = [
            f"### {hit.section or '(start)'} [section {hit.section_id}, page {hit.page}, chunk {hit.chunk_id}]\n"
            f"{hit.text}"
            for hit in self.results
        ]
        return "\n\n".join([*snippets, *left_out])


class ChunkWindow(_ReadResult):
    anchor_chunk_id: Unlisted[str]
    chunks: list[WindowChunk]
    truncated: bool

    def readable(self) -> str:
        cut = "; cut to the budget" if self.truncated else ""
        parts = [f"[{chunk.chunk_id}] {chunk.section or ''}\n{chunk.text}" for chunk in self.chunks]
        return "\n\n".join([*parts, f"({len(self.chunks)} chunks, {self.token_estimate} tokens{cut})"])


class AvailableTool(ResultItem):
    name: str
    title: Unlisted[str]
    description: str
    toolset: str


class AvailableTools(Result):
    tools: list[AvailableTool]

    def readable(self) -> str:
        return "\n".join(f"- {tool.name} ({tool.toolset}): {tool.description}" for tool in self.tools)


@dataclass(eq=False, repr=False)
class Reader:
    """Tools of the toolset `reader`."""

    engine: Engine
    conversions: Conversions
    windows: RemoteWindows | None
    """The service to read chunk windows from, if not from the documents here."""
    settings: ReaderConfig
    blocklist: Blocklist
    tools: Callable[[Call], Iterable[ToolEntry]]
    rate: DocumentRateLimiter

    def register(self, registry: Registry) -> None:
        add_tools(registry, self, TOOLSET)
        registry.add_method(WINDOW_METHOD, self.read_local_window)

    @tool("Read a section", "Read a section of an indexed or converted document, with subsections.")
    async def read_doc_section(self, arguments: ReadDocSection, call: Call) -> SectionText:
        id, name = await self._resolve(call.caller.tenant, arguments.doc_id, arguments.section_id)
        if not name:
            raise InvalidArguments([Problem("section_id", "is required")])

        def read(packed: PackedDocument) -> SectionText:
            section = self._require_section(packed, id, name)
            return SectionText(
                doc_id=id,
                section_id=section.id,
                title=self.blocklist.screen(section.title),
                page=section.page,
                **self._read_part(packed.blocks(section.start, section.end), arguments.cursor, arguments.max_tokens),
            )

        return await self._read_text(id, call, read)

    @tool("Read pages", "Read pages of an indexed or converted document.")
    async def read_doc_pages(self, arguments: ReadDocPages, call: Call) -> PagesText:
        first, last, most = arguments.page_start, arguments.page_end, self.settings.max_pages_per_call
        if last < first:
            raise InvalidArguments([Problem("page_end", "must not be before page_start")])
        if last - first + 1 > most:
            rule = f"at most {most} pages a call: at most {first + most - 1} here"
            raise InvalidArguments([Problem("page_end", rule)])
        id, _ = await resolve_reference(self.engine, call.caller.tenant, arguments.doc_id)

        def read(packed: PackedDocument) -> PagesText:
            if not (numbers := packed.page_numbers()).issuperset(range(first, last + 1)):
                existing = f"pages {min(numbers)} to {max(numbers)}" if numbers else "no pages"
                raise PageOutside(f"The document has {existing}; choose some of them.")
            blocks = chain.from_iterable(packed.page_blocks(page) for page in range(first, last + 1))
            return PagesText(
                doc_id=id,
                page_start=first,
                page_end=last,
                pages=packed.about.total_pages,
                **self._read_part(blocks, arguments.cursor, arguments.max_tokens),
            )

        return await self._read_text(id, call, read)

    @tool(
        "Read a table of contents", "A document's table of contents with section ids, to read a long document in parts."
    )
    async def read_doc_metadata(self, arguments: ReadDocMetadata, call: Call) -> DocumentMetadata:
        id, _ = await resolve_reference(self.engine, call.caller.tenant, arguments.doc_id)

        def read(packed: PackedDocument) -> DocumentMetadata:
            about = packed.about
            screen = self.blocklist.screen
            parent = self._require_section(packed, id, arguments.under) if arguments.under is not None else None
            all_sections = [
                section
                for section in packed.sections()
                if (parent is None or parent.start <= section.start < parent.end)
                and not self.blocklist.is_blocked(section.id)
            ]
            entries = [OutlineEntry.of(s, screen) for s in _fit_sections(all_sections, self.settings.max_text_bytes)]
            title = screen(shorten(about.title or about.name, MAX_CHARACTERS))
            return DocumentMetadata(
                doc_id=id,
                title=title,
                pages=about.pages,
                page_kind=about.page_unit,
                sections=entries,
                sections_omitted=len(all_sections) - len(entries),
                tables=about.tables,
                tags=shorten_all(about.tags, screen),
                tenant=call.caller.tenant,
                media_type=about.media_type,
                properties=shorten_mapping(about.properties, screen),
                warnings=shorten_all(about.warnings, screen),
                token_estimate=measure_tokens("\n".join([title, *(entry.title for entry in entries)])),
            )

        return await self._read(id, call, read)

    @tool("Search in a document", "Search within one document.")
    async def doc_local_search(self, arguments: DocLocalSearch, call: Call) -> Snippets:
        id, _ = await resolve_reference(self.engine, call.caller.tenant, arguments.doc_id)

        def read(packed: PackedDocument) -> Snippets:
            hits = [
                Snippet(
                    text=self.blocklist.screen(rewrite_links(shorten(snippet, SNIPPET_CHARACTERS), id, ())),
                    section_id=self.blocklist.mask(chunk.section),
                    section=self.blocklist.screen(format_path(chunk.path)) or None,
                    page=chunk.first_page,
                    chunk_id=_make_chunk_id(id, chunk.id),
                    score=score,
                )
                for chunk, snippet, score in packed.search(arguments.query, arguments.max_results)
            ]
            room = self._get_max_bytes(arguments.max_tokens)
            sizes = accumulate(len(hit.model_dump_json().encode()) for hit in hits)
            shown = [hit for hit, size in zip(hits, sizes, strict=True) if size <= room]
            if hits and not shown:
                shown = [hits[0].model_copy(update={"text": _cut_bytes(hits[0].text.encode("utf-8", "replace"), room)})]
            tokens = sum(measure_tokens(hit.text) for hit in shown)
            return Snippets(doc_id=id, results=shown, omitted=len(hits) - len(shown), token_estimate=tokens)

        return await self._read(id, call, read)

    @tool("Read around a chunk", "Read what comes before and after a search hit.")
    async def read_chunk_window(self, arguments: ReadChunkWindow, call: Call) -> ChunkWindow:
        return await self._read_window_from(arguments, call, self.windows)

    async def _read_window_from(
        self, arguments: ReadChunkWindow, call: Call, windows: RemoteWindows | None
    ) -> ChunkWindow:
        before, after = self._parse_sides(arguments)
        tenant = call.caller.tenant
        id, anchor = await self._resolve(tenant, arguments.doc_id, arguments.anchor_chunk_id)
        if not anchor:
            raise InvalidArguments([Problem("anchor_chunk_id", "is required")])
        if windows is not None:
            anchor = arguments.anchor_chunk_id or anchor  # Another service may have ids of another form.
            chunks = await windows.read_around(tenant, id, anchor, before, after, call.trace_id)
        else:
            chunks = await self._read_around(tenant, id, anchor, before, after)
        chunks = chunks[: before + after + 1]
        async with await self.rate.admit(tenant, id, self._max_tokens) as reading:
            texts = await resolve_links(self.engine, tenant, [(id, chunk.text) for chunk in chunks])
            chunks = [chunk.model_copy(update={"text": text}) for chunk, text in zip(chunks, texts, strict=True)]
            chosen, is_cut = self._cut_window(chunks, anchor, self._get_max_bytes(arguments.max_tokens))
            tokens = reading.spent = sum(measure_tokens(chunk.text) for chunk in chosen)
        return ChunkWindow(doc_id=id, anchor_chunk_id=anchor, chunks=chosen, token_estimate=tokens, truncated=is_cut)

    async def _read_around(
        self, tenant: TenantId, doc_id: str, name: str, before: int, after: int
    ) -> Sequence[WindowChunk]:
        """Return the chunks around the named one in a document here, in reading order."""
        if not HANDLE.fullmatch(doc_id):
            passages = await self.engine.window(tenant, doc_id, f"{doc_id}#{name}", before=before, after=after)
            if passages is not None:
                return [_build_chunk(p.chunk_id, p.text, p.section, p.path, p.page) for p in passages]
        async with self._open_document(tenant, doc_id) as packed:
            chunks = await to_thread.run_sync(packed.window, name, before, after)
            if chunks is None:
                raise build_chunk_not_found(packed, doc_id, name)
        return [_build_chunk(_make_chunk_id(doc_id, c.id), c.text, c.section, c.path, c.first_page) for c in chunks]

    async def read_local_window(self, call: Call) -> dict[str, Any]:
        """Answer another desk's request: the local window, regardless of the configured window service."""
        window = await self._read_window_from(validate(ReadChunkWindow, dict(call.params)), call, None)
        return window.model_dump(mode="json", exclude_none=True)

    @tool("List tools", "List the tools you may use.")
    async def list_available_tools(self, arguments: NoArguments, call: Call) -> AvailableTools:
        tools = self.tools(call)
        return AvailableTools(tools=[AvailableTool.model_validate(tool, from_attributes=True) for tool in tools])

    async def _resolve(self, tenant: TenantId, doc_id: str, place: str | None) -> tuple[str, str]:
        """Return document id and place of two references. Each may be a document's id or URL with the place."""
        id, name = await resolve_reference(self.engine, tenant, doc_id)
        if place and "#" in place:
            other, fragment = await resolve_reference(self.engine, tenant, place)
            place = fragment if other == id else place
        return id, place or name

    @asynccontextmanager
    async def _open_document(self, tenant: TenantId, doc_id: str) -> AsyncIterator[PackedDocument]:
        """Open a document by handle or id; raise DocumentNotFound, also for another tenant's."""
        packed = await (self.conversions if HANDLE.fullmatch(doc_id) else self.engine).open(tenant, doc_id)
        if packed is None:
            hint = "A handle comes from a convert tool and expires."
            raise await build_document_not_found(self.engine, tenant, doc_id, hint)
        try:
            yield packed
        finally:
            await to_thread.run_sync(packed.close)

    async def _read(self, doc_id: str, call: Call, read: Callable[[PackedDocument], R]) -> R:
        """Read a document in a thread, within its rate limit."""
        tenant = call.caller.tenant
        async with self._open_document(tenant, doc_id) as packed:
            # After the lookup, so that made-up ids do not fill the limiter.
            reading = await self.rate.admit(tenant, doc_id, self._max_tokens)
            async with reading:
                result = await to_thread.run_sync(read, packed)
                reading.spent = result.token_estimate
        return result

    async def _read_text(self, doc_id: str, call: Call, read: Callable[[PackedDocument], T]) -> T:
        """Read text, and rewrite its links."""
        result = await self._read(doc_id, call, read)
        [text] = await resolve_links(self.engine, call.caller.tenant, [(doc_id, result.text)])
        text = self.blocklist.screen(text)
        return result.model_copy(update={"text": text, "token_estimate": measure_tokens(text)})

    def _require_section(self, packed: PackedDocument, doc_id: str, name: str) -> Section:
        section = find_section(packed, name)
        if section is None:
            raise DocumentNotFound(self.blocklist.mask(str(build_place_not_found(packed, doc_id, name))))
        return section

    @property
    def _max_tokens(self) -> int:
        return self.settings.max_text_bytes // CHARACTERS_PER_TOKEN

    def _get_max_bytes(self, max_tokens: int | None) -> int:
        most = self.settings.max_text_bytes
        return most if max_tokens is None else min(max_tokens * CHARACTERS_PER_TOKEN, most)

    def _read_part(self, blocks: Iterable[Block], cursor: str | None, max_tokens: int | None) -> dict[str, Any]:
        """Return the fields of a `_ReadText`: as much text as fits, from the cursor on."""
        start = int(cursor or 0)
        parts: Iterable[str] = markdown_parts(blocks)
        if not self.blocklist.is_empty:
            # Screen the whole text: a blocked word may be split between two parts.
            parts = [self.blocklist.screen("".join(parts))]
        text, is_whole = _slice_bytes(parts, start, self._get_max_bytes(max_tokens))
        if start and not text:
            raise InvalidArguments([Problem("cursor", "is not a cursor of this text")])
        return {
            "text": text,
            "token_estimate": measure_tokens(text),
            "truncated": not is_whole,
            "next_cursor": None if is_whole else str(start + len(text.encode())),
        }

    def _parse_sides(self, arguments: ReadChunkWindow) -> tuple[int, int]:
        before, after, radius = arguments.window_before, arguments.window_after, arguments.radius
        if radius is not None and (before, after) != (None, None):
            raise InvalidArguments([Problem("radius", "give either radius or window_before and window_after")])
        most = self.settings.max_window_radius
        sides = {"window_before": before, "window_after": after, "radius": radius}
        problems = [Problem(name, f"must be at most {most}") for name, side in sides.items() if side and side > most]
        if problems:
            raise InvalidArguments(problems)
        if (before, after) == (None, None):
            radius = min(1, most) if radius is None else radius
            return radius, radius
        return before or 0, after or 0

    def _cut_window(self, chunks: Sequence[WindowChunk], anchor: str, room: int) -> tuple[list[WindowChunk], bool]:
        """Return as many chunks as fit, the anchor and its neighbours first, and whether any were cut."""
        name = anchor.rpartition("#")[2]
        at = next((index for index, chunk in enumerate(chunks) if chunk.chunk_id.rpartition("#")[2] == name), 0)
        chosen: dict[int, WindowChunk] = {}
        is_cut = False
        for index in sorted(range(len(chunks)), key=lambda index: abs(index - at)):
            chunk = chunks[index]
            screened = {
                "text": self.blocklist.screen(chunk.text),
                "section": self.blocklist.screen(shorten(chunk.section or "", 2 * MAX_CHARACTERS)) or None,
                "section_id": self.blocklist.mask(chunk.section_id) if chunk.section_id else None,
            }
            chunk = chunk.model_copy(update=screened)
            encoded = chunk.text.encode("utf-8", "replace")
            text = chunk.text if len(encoded) <= room else _cut_bytes(encoded, max(room, 0))
            room -= len(text.encode()) + len((chunk.section or "").encode()) + ENTRY_BYTES
            if text or not chunk.text:
                chosen[index] = chunk.model_copy(update={"text": text})
            if is_cut := len(text) < len(chunk.text):
                break
        return [chosen[index] for index in sorted(chosen)], is_cut


def _make_chunk_id(doc_id: str, name: str) -> str:
    """Return the id of a chunk in results: with the document's id, unless that is a handle."""
    return name if HANDLE.fullmatch(doc_id) else f"{doc_id}#{name}"


def _build_chunk(id: str, text: str, section_id: str, path: Sequence[str], page: int | None) -> WindowChunk:
    return WindowChunk(chunk_id=id, text=text, section_id=section_id, section=format_path(path) or None, page=page)


def _slice_bytes(parts: Iterable[str], start: int, length: int) -> tuple[str, bool]:
    """Return the bytes from `start` on as text, and whether that is the end; parts are consumed lazily."""
    taken = bytearray()
    position = 0
    for part in parts:
        encoded = part.encode("utf-8", "replace")
        taken += encoded[max(start - position, 0) :]
        position += len(encoded)
        if len(taken) > length:
            return _cut_bytes(taken, length), False
    return taken.decode("utf-8", "ignore"), True


def _cut_bytes(encoded: bytes | bytearray, length: int) -> str:
    """Return at most so many bytes as text, cut between paragraphs, lines, sentences or words."""
    text = encoded[:length].decode("utf-8", "ignore")
    return text[: find_cut(text, len(text))]


def _fit_sections(sections: Sequence[Section], max_bytes: int) -> list[Section]:
    """Return the sections down to the deepest level that fits, or the first ones of the top level."""
    fitting: list[Section] = []
    for deepest in sorted({section.level for section in sections}, reverse=True):
        shown = [section for section in sections if section.level <= deepest]
        sizes = accumulate(len(section.id) + len(section.title.encode()) + ENTRY_BYTES for section in shown)
        fitting = [section for section, size in zip(shown, sizes, strict=True) if size <= max_bytes]
        if len(fitting) == len(shown):
            break
    return fitting
