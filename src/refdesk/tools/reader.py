"""The `reader` toolset: sections, pages and chunks of one document, never more than the budget."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, TypeVar

from anyio import to_thread
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from refdesk.calls import WINDOW_METHOD, Call
from refdesk.config import ReaderConfig
from refdesk.documents.export.markdown import markdown_parts
from refdesk.documents.model import Block, Section
from refdesk.documents.packed_document import Shelf
from refdesk.documents.tokens import count_tokens
from refdesk.errors import DocumentNotFound, InvalidArguments, Problem, ToolFailure
from refdesk.resilience.limits import Limits, MemoryLimits
from refdesk.tools.budget import Blocklist, ReadingRate
from refdesk.tools.document_lookup import Shelves
from refdesk.tools.interfaces import OfferedTool
from refdesk.tools.outline import MAX_CHARACTERS, OutlineEntry, brief, brief_mapping, brief_path
from refdesk.tools.registry import Registry, Tool
from refdesk.tools.schema import Arguments, Result
from refdesk.tools.windows import LocalWindows, WindowChunk, Windows
from refdesk.validation import invalid_arguments, nearest_name, shortened

TOOLSET = "reader"

SNIPPET_CHARACTERS = 600
"""Of a passage that a search shows."""

BYTES_A_TOKEN = 4
"""What a call that is under way is taken to hand out, until it is known."""

HINTED_SECTIONS = 1000
"""Among which the nearest id is looked for; among a hundred thousand that would take seconds."""

R = TypeVar("R", bound="_Counted")
A = TypeVar("A", bound=Arguments)
DocId = Annotated[str, Field(min_length=1, max_length=2000, description="Handle or document id.")]
Cursor = Annotated[str | None, Field(pattern=r"^\d{1,12}$", description="Where the last answer stopped.")]


class PageOutside(ToolFailure):
    """The document has no such page."""


class ReadDocSection(Arguments):
    doc_id: DocId
    section_id: Annotated[str, Field(min_length=1, max_length=200)]
    cursor: Cursor = None


class ReadDocPages(Arguments):
    doc_id: DocId
    page_start: Annotated[int, Field(ge=1)]
    page_end: Annotated[int, Field(ge=1)]
    cursor: Cursor = None


class ReadDocMetadata(Arguments):
    doc_id: DocId
    under: Annotated[str | None, Field(max_length=200, description="List only this section's subsections.")] = None


class DocLocalSearch(Arguments):
    doc_id: DocId
    query: Annotated[str, Field(min_length=1, max_length=1000)]
    max_results: Annotated[int, Field(ge=1, le=5)] = 5


class ReadChunkWindow(Arguments):
    doc_id: DocId
    anchor_chunk_id: Annotated[str, Field(min_length=1, max_length=2000)]
    window_before: Annotated[int | None, Field(ge=0)] = None
    window_after: Annotated[int | None, Field(ge=0)] = None
    radius: Annotated[int | None, Field(ge=0, description="Both sides alike.")] = None


class NoArguments(Arguments):
    pass


class _Counted(Result):
    """What was read of a document, and what it cost."""

    doc_id: str
    token_estimate: int


class _ReadText(_Counted):
    """Text that was read, and whether there is more."""

    text: str
    truncated: bool
    next_cursor: str | None = None

    def _foot(self, where: str) -> str:
        more = f"; cut here, go on with cursor {self.next_cursor!r}" if self.truncated else ""
        return f"\n\n({where} of {self.doc_id}, {self.token_estimate} tokens{more})"


class SectionText(_ReadText):
    section_id: str
    title: str
    page: int | None = None

    def readable(self) -> str:
        return self.text + self._foot(f"section {self.section_id}")


class PagesText(_ReadText):
    page_start: int
    page_end: int
    pages: int

    def readable(self) -> str:
        return self.text + self._foot(f"pages {self.page_start}–{self.page_end} of {self.pages}")


class DocumentMetadata(_Counted):
    title: str
    pages: int
    page_kind: str
    sections: list[OutlineEntry]
    sections_omitted: int
    tables: int
    tags: list[str]
    tenant: str
    media_type: str
    properties: dict[str, str]
    warnings: list[str]

    def readable(self) -> str:
        lines = [f"# {self.title}", f"{self.doc_id}: {self.media_type}, {self.pages} {self.page_kind}s"]
        lines += [f"{name}: {value}" for name, value in self.properties.items()]
        lines += [f"tags: {', '.join(self.tags)}"] if self.tags else []
        lines += [f"tenant: {self.tenant}", *(f"Warning: {warning}" for warning in self.warnings), "", "Sections:"]
        lines += [entry.readable() for entry in self.sections]
        if self.sections_omitted:
            lines.append(f"… {self.sections_omitted} deeper ones left out; `under` lists those of one section")
        return "\n".join(lines)


class Snippet(BaseModel):
    model_config = ConfigDict(frozen=True)

    text: str
    section_id: str
    section: str | None = None
    page: int | None = None
    chunk_id: str
    score: float


class Snippets(_Counted):
    results: list[Snippet]

    def readable(self) -> str:
        if not self.results:
            return f"Nothing in {self.doc_id} matches; read_doc_metadata lists its sections."
        return "\n\n".join(map(_readable_snippet, self.results))


def _readable_snippet(hit: Snippet) -> str:
    where = f"section {hit.section_id}, page {hit.page}, chunk {hit.chunk_id}"
    return f"### {hit.section or '(start)'} [{where}]\n{hit.text}"


class ChunkWindow(_Counted):
    anchor_chunk_id: str
    chunks: list[WindowChunk]
    truncated: bool

    def readable(self) -> str:
        cut = "; cut to the budget" if self.truncated else ""
        parts = [f"[{chunk.chunk_id}] {chunk.section or ''}\n{chunk.text}" for chunk in self.chunks]
        return "\n\n".join([*parts, f"({len(self.chunks)} chunks, {self.token_estimate} tokens{cut})"])


class AvailableTool(BaseModel):
    name: str
    title: str
    description: str
    toolset: str


class AvailableTools(Result):
    tools: list[AvailableTool]

    def readable(self) -> str:
        return "\n".join(f"- {tool.name} ({tool.toolset}): {tool.description}" for tool in self.tools)


class Reader:
    """The toolset's handlers."""

    def __init__(
        self,
        shelves: Shelves,
        windows: Windows,
        local: LocalWindows,
        settings: ReaderConfig,
        blocklist: Blocklist,
        tools: Callable[[Call], Iterable[OfferedTool]],
        limits: Limits | None = None,
        refused: Callable[[str], None] = lambda kind: None,
    ) -> None:
        self._shelves = shelves
        self._windows = windows
        self._local = local
        self._settings = settings
        self._tools = tools
        counted_in = MemoryLimits() if limits is None else limits
        self._rate = ReadingRate(settings.rate_limit_calls, settings.rate_limit_tokens, counted_in, refused)
        self._blocklist = blocklist

    def register(self, registry: Registry) -> None:
        """Offer the toolset's tools."""
        for tool in (
            _tool(
                "read_doc_section",
                "Read a section",
                "Read one section of a document, subsections included.",
                ReadDocSection,
                self.section,
                SectionText,
            ),
            _tool(
                "read_doc_pages", "Read pages", "Read some pages of a document.", ReadDocPages, self.pages, PagesText
            ),
            _tool(
                "read_doc_metadata",
                "Read a table of contents",
                "A document's title, pages, sections and tags.",
                ReadDocMetadata,
                self.metadata,
                DocumentMetadata,
            ),
            _tool(
                "doc_local_search",
                "Search in a document",
                "Find passages within one document.",
                DocLocalSearch,
                self.search,
                Snippets,
            ),
            _tool(
                "read_chunk_window",
                "Read around a chunk",
                "Read the chunks before and after one that a search gave.",
                ReadChunkWindow,
                self.window,
                ChunkWindow,
            ),
            _tool(
                "list_available_tools",
                "List tools",
                "The tools that you may use here.",
                NoArguments,
                self.available,
                AvailableTools,
            ),
        ):
            registry.add_tool(tool)
        registry.add_method(WINDOW_METHOD, self.local_window)

    async def section(self, arguments: ReadDocSection, call: Call) -> SectionText:
        def read(shelf: Shelf) -> SectionText:
            section = shelf.section(arguments.section_id)
            if section is None:
                raise DocumentNotFound(self._blocklist.shown(_no_section(shelf, arguments)))
            return SectionText(
                doc_id=arguments.doc_id,
                section_id=section.id,
                title=self._blocklist.screened(section.title),
                page=section.page,
                **self._part(shelf.blocks(section.start, section.end), arguments.cursor),
            )

        return await self._read(arguments.doc_id, call, read)

    async def pages(self, arguments: ReadDocPages, call: Call) -> PagesText:
        first, last = arguments.page_start, arguments.page_end
        self._check_page_count(first, last)

        def read(shelf: Shelf) -> PagesText:
            about = shelf.about
            _check_pages(first, last, shelf.page_numbers())
            blocks = chain.from_iterable(shelf.page_blocks(page) for page in range(first, last + 1))
            return PagesText(
                doc_id=arguments.doc_id,
                page_start=first,
                page_end=last,
                pages=about.total_pages,
                **self._part(blocks, arguments.cursor),
            )

        return await self._read(arguments.doc_id, call, read)

    async def metadata(self, arguments: ReadDocMetadata, call: Call) -> DocumentMetadata:
        def read(shelf: Shelf) -> DocumentMetadata:
            about = shelf.about
            screened = self._blocklist.screened
            all_sections = [s for s in _sections_under(shelf, arguments) if not self._blocklist.blocks(s.id)]
            entries = [OutlineEntry.of(s, screened) for s in _fitting(all_sections, self._settings.max_text_bytes)]
            title = screened(shortened(about.title or about.name, MAX_CHARACTERS))
            return DocumentMetadata(
                doc_id=arguments.doc_id,
                title=title,
                pages=about.pages,
                page_kind=about.shown_page_kind,
                sections=entries,
                sections_omitted=len(all_sections) - len(entries),
                tables=about.tables,
                tags=brief(about.tags, screened),
                tenant=call.caller.tenant,
                media_type=about.media_type,
                properties=brief_mapping(about.properties, screened),
                warnings=brief(about.warnings, screened),
                token_estimate=_tokens("\n".join([title, *(entry.title for entry in entries)])),
            )

        return await self._read(arguments.doc_id, call, read)

    async def search(self, arguments: DocLocalSearch, call: Call) -> Snippets:
        def read(shelf: Shelf) -> Snippets:
            hits = [
                Snippet(
                    text=self._blocklist.screened(shortened(snippet, SNIPPET_CHARACTERS)),
                    section_id=self._blocklist.shown(chunk.section),
                    section=self._blocklist.screened(brief_path(chunk.path)) or None,
                    page=chunk.first_page,
                    chunk_id=chunk.id,
                    score=score,
                )
                for chunk, snippet, score in shelf.search(arguments.query, arguments.max_results)
            ]
            tokens = sum(_tokens(hit.text) for hit in hits)
            return Snippets(doc_id=arguments.doc_id, results=hits, token_estimate=tokens)

        return await self._read(arguments.doc_id, call, read)

    async def window(self, arguments: ReadChunkWindow, call: Call) -> ChunkWindow:
        return await self._window(arguments, call, self._windows)

    async def _window(self, arguments: ReadChunkWindow, call: Call, windows: Windows) -> ChunkWindow:
        before, after = self._window_sides(arguments)
        tenant, anchor = call.caller.tenant, arguments.anchor_chunk_id
        chunks = await windows.around(tenant, arguments.doc_id, anchor, before, after, call.trace_id)
        async with await self._rate.admit(tenant, arguments.doc_id, self._expected_tokens) as reading:
            kept, is_cut = self._cut_window(chunks[: before + after + 1], anchor)
            tokens = reading.spent = sum(_tokens(chunk.text) for chunk in kept)
        return ChunkWindow(
            doc_id=arguments.doc_id,
            anchor_chunk_id=arguments.anchor_chunk_id,
            chunks=kept,
            token_estimate=tokens,
            truncated=is_cut,
        )

    async def local_window(self, call: Call) -> dict[str, Any]:
        """What another desk asks for: the window as it is here, whatever is set for this desk's own callers."""
        try:
            arguments = ReadChunkWindow.model_validate(dict(call.params))
        except ValidationError as error:
            raise invalid_arguments(error, list(ReadChunkWindow.model_fields)) from None
        return (await self._window(arguments, call, self._local)).model_dump(mode="json", exclude_none=True)

    async def available(self, _arguments: NoArguments, call: Call) -> AvailableTools:
        return AvailableTools(
            tools=[
                AvailableTool(name=tool.name, title=tool.title, description=tool.description, toolset=tool.toolset)
                for tool in self._tools(call)
            ]
        )

    async def _read(self, doc_id: str, call: Call, read: Callable[[Shelf], R]) -> R:
        """Read a document in a thread, within the rate that it may be read at."""
        tenant = call.caller.tenant
        async with self._shelves.reading(tenant, doc_id) as shelf:
            # Only of documents that there are: invented ones would fill the book of those that are read.
            reading = await self._rate.admit(tenant, doc_id, self._expected_tokens)
            async with reading:
                result = await to_thread.run_sync(read, shelf)
                reading.spent = result.token_estimate
        return result

    @property
    def _expected_tokens(self) -> int:
        return self._settings.max_text_bytes // BYTES_A_TOKEN

    def _part(self, blocks: Iterable[Block], cursor: str | None) -> dict[str, Any]:
        """As much text as the budget allows from where the last answer stopped: the fields of a `_ReadText`."""
        start = int(cursor or 0)
        parts: Iterable[str] = markdown_parts(blocks)
        if not self._blocklist.is_empty:
            # All of it, not only the part: a word cut in two would be none.
            parts = [self._blocklist.screened("".join(parts))]
        text, is_whole = _bytes_between(parts, start, self._settings.max_text_bytes)
        if start and not text:
            raise InvalidArguments([Problem("cursor", "is not one that this text gave")])
        return {
            "text": text,
            "token_estimate": _tokens(text),
            "truncated": not is_whole,
            "next_cursor": None if is_whole else str(start + len(text.encode())),
        }

    def _check_page_count(self, first: int, last: int) -> None:
        most = self._settings.max_pages_per_call
        if last < first:
            raise InvalidArguments([Problem("page_end", "must not be before page_start")])
        if last - first + 1 > most:
            raise InvalidArguments(
                [Problem("page_end", f"at most {most} pages a call: at most {first + most - 1} here")]
            )

    def _window_sides(self, arguments: ReadChunkWindow) -> tuple[int, int]:
        sides = {"window_before": arguments.window_before, "window_after": arguments.window_after}
        if arguments.radius is not None:
            if any(side is not None for side in sides.values()):
                raise InvalidArguments([Problem("radius", "give either radius or window_before and window_after")])
            sides = {"radius": arguments.radius}
        most = self._settings.max_window_radius
        problems = [Problem(name, f"must be at most {most}") for name, side in sides.items() if side and side > most]
        if problems:
            raise InvalidArguments(problems)
        if arguments.radius is not None:
            return arguments.radius, arguments.radius
        default = min(1, most) if set(sides.values()) == {None} else 0
        before, after = sides["window_before"], sides["window_after"]
        return default if before is None else before, default if after is None else after

    def _cut_window(self, chunks: Sequence[WindowChunk], anchor: str) -> tuple[list[WindowChunk], bool]:
        """As many chunks as the budget holds: the anchor first, then those next to it; and whether that was all."""
        at = next((index for index, chunk in enumerate(chunks) if chunk.chunk_id == anchor), 0)
        room = self._settings.max_text_bytes
        kept: dict[int, WindowChunk] = {}
        for index in sorted(range(len(chunks)), key=lambda index: abs(index - at)):
            chunk = self._screened(chunks[index])
            text = cut_to_bytes(chunk.text, room)
            room -= len(text.encode()) + len((chunk.section or "").encode()) + ENTRY_BYTES
            if text or not chunk.text:
                kept[index] = chunk.model_copy(update={"text": text})
            if len(text) < len(chunk.text):
                return [kept[index] for index in sorted(kept)], True
        return [kept[index] for index in sorted(kept)], False

    def _screened(self, chunk: WindowChunk) -> WindowChunk:
        section = shortened(chunk.section or "", 2 * MAX_CHARACTERS)
        return chunk.model_copy(
            update={
                "text": self._blocklist.screened(chunk.text),
                "section": self._blocklist.screened(section) or None,
                "section_id": self._blocklist.shown(chunk.section_id) if chunk.section_id else None,
            }
        )


def _tool(
    name: str,
    title: str,
    description: str,
    arguments: type[A],
    handler: Callable[[A, Call], Awaitable[Result]],
    result: type[Result],
) -> Tool[A]:
    return Tool(name, title, description, TOOLSET, arguments, handler, result)


def cut_to_bytes(text: str, max_bytes: int) -> str:
    """The beginning of a text that has at most so many bytes as UTF-8, cut between characters."""
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= max_bytes else encoded[: max(max_bytes, 0)].decode("utf-8", "ignore")


def _bytes_between(parts: Iterable[str], start: int, length: int) -> tuple[str, bool]:
    """The bytes from start on, as text, and whether the parts end there; no more parts are made than needed."""
    taken = bytearray()
    position = 0
    for part in parts:
        encoded = part.encode("utf-8", "replace")
        taken += encoded[max(start - position, 0) :]
        position += len(encoded)
        if len(taken) > length:
            return bytes(taken[:length]).decode("utf-8", "ignore"), False
    return taken.decode("utf-8", "ignore"), True


def _check_pages(first: int, last: int, pages: set[int]) -> None:
    if not pages.issuperset(range(first, last + 1)):
        held = f"pages {min(pages)} to {max(pages)}" if pages else "no pages"
        raise PageOutside(f"The document has {held}; ask for some of those.")


def _tokens(text: str) -> int:
    """The tokenizer's count; words without end, which it takes for one token each, cost a model more."""
    return max(count_tokens(text), len(text) // 10)


def _no_section(shelf: Shelf, arguments: ReadDocSection) -> str:
    nearest = nearest_name(arguments.section_id, shelf.section_ids(HINTED_SECTIONS))
    hint = f"Did you mean {nearest!r}?" if nearest else "read_doc_metadata lists the sections."
    return f"{shortened(arguments.doc_id)!r} has no section {shortened(arguments.section_id)!r}. {hint}"


def _sections_under(shelf: Shelf, arguments: ReadDocMetadata) -> list[Section]:
    if arguments.under is None:
        return shelf.sections()
    parent = shelf.section(arguments.under)
    if parent is None:
        wanted = ReadDocSection(doc_id=arguments.doc_id, section_id=arguments.under)
        raise DocumentNotFound(_no_section(shelf, wanted))
    return [section for section in shelf.sections() if parent.start <= section.start < parent.end]


def _fitting(sections: Sequence[Section], max_bytes: int) -> list[Section]:
    """The sections down to the deepest level that fits; of the highest level, the first ones."""
    for deepest in sorted({section.level for section in sections}, reverse=True):
        shown = [section for section in sections if section.level <= deepest]
        if _size(shown) <= max_bytes:
            return shown
    highest = min((section.level for section in sections), default=0)
    return list(_within(max_bytes, (section for section in sections if section.level <= highest)))


def _within(max_bytes: int, sections: Iterable[Section]) -> Iterator[Section]:
    for section in sections:
        max_bytes -= _size([section])
        if max_bytes < 0:
            return
        yield section


def _size(sections: Sequence[Section]) -> int:
    return sum(len(section.id) + len(section.title.encode()) + ENTRY_BYTES for section in sections)


ENTRY_BYTES = 48
"""What an entry of a table of contents takes besides its id and title, and a chunk besides its text."""
