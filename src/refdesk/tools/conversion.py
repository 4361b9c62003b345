"""The `convert` toolset: converts files and pages to structured documents, and exports them."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar, get_args
from urllib.parse import unquote, urlsplit

import orjson
from anyio import to_thread
from pydantic import Field, StringConstraints

from refdesk.calls import UPLOAD_METHOD, Annotations, Call, TenantId, resource_entry, text_content, tool_answer
from refdesk.config.models import ConvertConfig
from refdesk.documents.conversions import UPLOAD_SCHEME, ConversionOptions, Conversions, Converted, Export, File
from refdesk.documents.convert.formats import list_formats
from refdesk.documents.convert.source import PageRange
from refdesk.documents.file_limits import EXPORT_SECONDS, URL_SECONDS
from refdesk.documents.file_names import clean_name
from refdesk.documents.files import Roots
from refdesk.documents.scratch import scratch_file
from refdesk.documents.tokens import estimate_tokens
from refdesk.errors import CannotOpen, DocumentNotFound, InvalidArguments, Problem
from refdesk.tools.budget import Blocklist, DocumentRateLimiter
from refdesk.tools.collection_scope import request_roots
from refdesk.tools.json_schema import Arguments, Result, Unlisted
from refdesk.tools.paging import DEFAULT_TOKENS, MAX_CHARACTERS, FilePart, OutlineEntry, read_text, shorten_all
from refdesk.tools.registry import Registry, Resources, Tool, add_tools, tool
from refdesk.validation import shorten

MEDIA_TYPES = {"markdown": "text/markdown", "html": "text/html", "json": "application/json"}
"""Media type of each export format."""

MAX_RESOURCE_BYTES = 32 * 1024 * 1024
"""Largest document that is returned in one piece."""

TOOLSET = "convert"

CONVERT_SECONDS = 330.0
"""The longest conversion, plus half a minute in the queue."""

T = TypeVar("T")
FilePath = Annotated[str | None, Field(min_length=1, max_length=4096, description="Path on the desk's machine.")]


class ConvertFile(Arguments):
    file_path: FilePath = None
    content_base64: Annotated[str | None, Field(min_length=1, description="Or the file's bytes.")] = None
    resource: Annotated[str | None, Field(min_length=1, description="Or upload:// or file:// URI.")] = None
    file_name: Annotated[str | None, Field(max_length=255, description="Name of bytes.")] = None


class ConvertPdf(ConvertFile):
    pages: Annotated[str | None, Field(pattern=r"^\d{1,6}(-\d{1,6})?$", description="Only these, e.g. 1-20.")] = None


class ConvertUrl(Arguments):
    url: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=8000)]


class ExportDocument(Arguments):
    handle: Annotated[str | None, Field(description="From a convert tool.")] = None
    document: Annotated[dict[str, Any] | None, Field(description="Or a DoclingDocument.")] = None
    cursor: Annotated[str | None, Field(pattern=r"^\d{1,12}$", description="From the last answer.")] = None
    max_tokens: Annotated[int | None, Field(ge=100, le=5_000_000)] = None


class ConvertedDocument(Result):
    """Result of a convert tool: summary, outline and the handle."""

    handle: str
    title: str
    format: Unlisted[str]
    pages: int
    page_kind: Unlisted[str]
    total_pages: Unlisted[int | None] = None
    sections: Unlisted[int]
    tables: Unlisted[int]
    outline: list[OutlineEntry]
    warnings: Unlisted[list[str]]
    preview: str
    cached: Unlisted[bool]

    def readable(self) -> str:
        pages = _pluralize(self.pages, self.page_kind)
        if self.total_pages:
            pages += f" of {self.total_pages}"
        parts = f"{_pluralize(self.sections, 'section')}, {_pluralize(self.tables, 'table')}"
        lines = [
            f"# {self.title}",
            f"handle: {self.handle} ({self.format}, {pages}, {parts})",
            *(f"Warning: {warning}" for warning in self.warnings),
        ]
        if self.outline:
            left_out = self.sections - len(self.outline)
            more = [f"… {left_out} more: read_doc_metadata lists them"] if left_out > 0 else []
            lines += ["", "Contents:", *(entry.readable() for entry in self.outline), *more]
        lines += ["", "Preview:", self.preview]
        lines += ["", "Read on with read_doc_section or read_doc_pages (doc_id is the handle), or export_markdown."]
        return "\n".join(lines)


class Conversion:
    def __init__(
        self, conversions: Conversions, sources: Sources, blocklist: Blocklist, rate: DocumentRateLimiter
    ) -> None:
        """Initialize the tools. Exports count towards the `rate` of their document."""
        self._conversions = conversions
        self._sources = sources
        self._blocklist = blocklist
        self._rate = rate

    def register(self, registry: Registry) -> None:
        for name, title, kinds, arguments in (
            ("convert_pdf", "Convert a PDF", "a PDF", ConvertPdf),
            (
                "convert_docx",
                "Convert a text document",
                "Word, OpenDocument, RTF, EPUB, HTML, Markdown or text",
                ConvertFile,
            ),
            ("convert_xlsx", "Convert a spreadsheet", "Excel, OpenDocument sheets or CSV", ConvertFile),
            ("convert_pptx", "Convert slides", "PowerPoint or OpenDocument slides", ConvertFile),
        ):
            registry.add_tool(
                Tool(
                    name=name,
                    title=title,
                    description=f"Convert {kinds}. Returns contents, preview and a handle to read it with.",
                    toolset=TOOLSET,
                    arguments=arguments,
                    handler=partial(self.convert_file, name),
                    result=ConvertedDocument,
                    seconds=CONVERT_SECONDS,
                )
            )
        add_tools(registry, self, TOOLSET)
        forms: dict[Export, str] = {"markdown": "Markdown", "html": "HTML", "json": "DoclingDocument JSON"}
        for form, label in forms.items():
            registry.add_tool(
                Tool(
                    name=f"export_{form}",
                    title=f"Export as {label}",
                    description=f"A converted document as {label}, in parts when long.",
                    toolset=TOOLSET,
                    arguments=ExportDocument,
                    handler=partial(self.export, form),
                    seconds=EXPORT_SECONDS,
                )
            )
        registry.add_resources(ConvertedResources(self._conversions, self._blocklist, self._rate))
        registry.add_method(UPLOAD_METHOD, self.admit_upload)

    async def admit_upload(self, call: Call) -> dict[str, Any]:
        """Accept an upload: the call has passed all policies, and the transport receives the file."""
        return {}

    async def convert_file(self, tool: str, arguments: ConvertFile, call: Call) -> ConvertedDocument:
        pages = _parse_page_range(arguments.pages) if isinstance(arguments, ConvertPdf) else None
        options = ConversionOptions(pages, list_formats(tool))
        async with self._sources.open(arguments, call) as file:
            converted = await self._conversions.convert(call.caller.tenant, file, options, call.client.progress)
        return await self._summarize(converted, call.caller.tenant)

    @tool(
        "Convert a web page or file",
        "Fetch and convert a web page or file. Returns contents, preview and a handle to read it with.",
        annotations=Annotations(open_world=True),
        seconds=URL_SECONDS,
    )
    async def convert_url(self, arguments: ConvertUrl, call: Call) -> ConvertedDocument:
        tenant = call.caller.tenant
        converted = await self._conversions.convert_url(
            tenant, arguments.url, ConversionOptions(), call.client.progress
        )
        return await self._summarize(converted, tenant)

    async def export(self, form: Export, arguments: ExportDocument, call: Call) -> dict[str, Any]:
        tenant = call.caller.tenant
        handle = await self._resolve_handle(arguments, call)
        file = await self._conversions.export(tenant, handle, form)
        if file is None:
            raise DocumentNotFound(_format_not_converted(handle))
        with file:
            async with await self._rate.admit(tenant, handle, arguments.max_tokens or DEFAULT_TOKENS) as reading:
                part = await to_thread.run_sync(self._read_part, file, arguments)
                reading.spent = part.tokens
        meta: dict[str, Any] = {"handle": handle, "tokens": part.tokens, "bytes": part.size}
        content = [text_content(part.text, **meta)]
        if part.next_cursor is not None:
            content[0]["_meta"]["nextCursor"] = part.next_cursor
            content += [text_content(part.format_note()), ConvertedResources.link(handle, form)]
        return tool_answer(content)

    async def _resolve_handle(self, arguments: ExportDocument, call: Call) -> str:
        """Return the given handle, or convert the given DoclingDocument and return its handle."""
        if (arguments.handle is None) == (arguments.document is None):
            raise InvalidArguments([Problem("handle", "give either handle or document")])
        if arguments.handle is not None:
            return arguments.handle
        options = ConversionOptions(expected=("docling",))
        async with scratch_file() as file:
            size = await to_thread.run_sync(lambda: file.write(orjson.dumps(arguments.document)))
            await to_thread.run_sync(file.flush)
            source = File(file.fileno(), "document.json", size)
            converted = await self._conversions.convert(call.caller.tenant, source, options, call.client.progress)
        return converted.handle

    async def _summarize(self, converted: Converted, tenant: TenantId) -> ConvertedDocument:
        packed = await self._conversions.open(tenant, converted.handle)
        if packed is None:
            raise DocumentNotFound(_format_not_converted(converted.handle))
        with packed:
            about, mask = packed.about, self._blocklist.mask
        return ConvertedDocument(
            handle=converted.handle,
            title=mask(shorten(about.title or about.name, MAX_CHARACTERS)),
            format=about.format,
            pages=about.pages,
            page_kind=about.page_unit,
            total_pages=about.total_pages if about.total_pages != about.pages else None,
            sections=about.sections,
            tables=about.tables,
            outline=[OutlineEntry.of(s, mask) for s in about.outline if not self._blocklist.is_blocked(s.id)],
            warnings=shorten_all(about.warnings, mask),
            preview=mask(about.preview),
            cached=converted.cached,
        )

    def _read_part(self, file: IO[bytes], arguments: ExportDocument) -> FilePart:
        """Read the requested part of an export; with a blocklist, of the screened text."""
        if not self._blocklist.is_empty:
            file = BytesIO(self._blocklist.screen(file.read().decode("utf-8", "replace")).encode())
        return FilePart.of(file, arguments.cursor, arguments.max_tokens or DEFAULT_TOKENS)


def _pluralize(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _format_not_converted(handle: str) -> str:
    return f"There is no document {shorten(handle)!r}; it may have expired. Convert the file again for a new handle."


def _parse_page_range(pages: str | None) -> PageRange | None:
    if pages is None:
        return None
    first, _, last = pages.partition("-")
    chosen = PageRange(int(first), int(last or first))
    if not 1 <= chosen.first <= chosen.last:
        raise InvalidArguments([Problem("pages", "must be a page or a range such as 3-7, counted from 1")])
    return chosen


class ConvertedResources(Resources):
    """Resources `document://{handle}/{form}`: a converted document in one piece."""

    SCHEME = "document://"
    TEMPLATE = "document://{handle}/{form}"

    def __init__(self, conversions: Conversions, blocklist: Blocklist, rate: DocumentRateLimiter) -> None:
        self._conversions = conversions
        self._blocklist = blocklist
        self._rate = rate

    def templates(self) -> Iterable[Mapping[str, Any]]:
        description = "A whole converted document as markdown, html or json."
        yield resource_entry("converted", "A converted document", description, uriTemplate=self.TEMPLATE)

    async def read(self, uri: str, call: Call) -> Sequence[Mapping[str, Any]] | None:
        handle, _, name = uri.removeprefix(self.SCHEME).partition("/")
        form = next((form for form in get_args(Export) if form == name), None)
        if not uri.startswith(self.SCHEME) or form is None:
            return None
        tenant = call.caller.tenant
        file = await self._conversions.export(tenant, handle, form)
        if file is None:
            return None
        with file:
            expected = estimate_tokens(os.fstat(file.fileno()).st_size)
            async with await self._rate.admit(tenant, handle, expected) as reading:
                text = await to_thread.run_sync(lambda: self._blocklist.screen(read_text(file, MAX_RESOURCE_BYTES)))
                reading.spent = estimate_tokens(len(text))
        return [{"uri": uri, "mimeType": MEDIA_TYPES[form], "text": text}]

    async def complete(self, template: str, name: str, value: str, context: Mapping[str, str], call: Call) -> list[str]:
        return [form for form in MEDIA_TYPES if form.startswith(value)] if name == "form" else []

    @classmethod
    def link(cls, handle: str, form: Export) -> dict[str, Any]:
        """Return a content item that links to the whole document."""
        uri = f"{cls.SCHEME}{handle}/{form}"
        return {"type": "resource_link", "uri": uri, "name": f"{handle}.{form}", "mimeType": MEDIA_TYPES[form]}


# Files that calls name or contain: local paths, uploads, or bytes.


@dataclass(frozen=True, slots=True)
class LocatedPath:
    path: Path
    """The file or folder, with symlinks resolved."""
    root: Path
    """The open folder that contains it."""
    closed: Sequence[Path] = ()
    is_folder: bool = False

    def can_read(self, path: Path) -> bool:
        """Return whether a file is readable: not one of Refdesk's own."""
        real = Path(os.path.realpath(path))
        return not any(real.is_relative_to(closed) for closed in self.closed)


@dataclass(eq=False, repr=False)
class Sources:
    """Opens the file that a call names or contains."""

    conversions: Conversions
    settings: ConvertConfig
    roots: Sequence[Path]
    """Folders whose files may be read."""
    closed: Sequence[Path]
    """Paths excluded from them."""

    @asynccontextmanager
    async def open(self, arguments: ConvertFile, call: Call) -> AsyncIterator[File]:
        sources = [arguments.file_path, arguments.content_base64, arguments.resource]
        if sum(value is not None for value in sources) != 1:
            raise InvalidArguments([Problem("file_path", "give exactly one of file_path, content_base64, resource")])
        if arguments.content_base64 is not None:
            async with scratch_file() as file:
                size = await to_thread.run_sync(_write_base64, file, arguments.content_base64)
                yield File(file.fileno(), clean_name(arguments.file_name or "") or "document", size)
        elif arguments.resource is not None and arguments.resource.startswith(UPLOAD_SCHEME):
            found = await self.conversions.open_upload(call.caller.tenant, arguments.resource)
            if found is None:
                uri = shorten(arguments.resource)
                raise CannotOpen(f"There is no upload {uri!r}; it may have expired. Send the file again.")
            uploaded, name = found
            with uploaded:
                yield File(uploaded.fileno(), name, os.fstat(uploaded.fileno()).st_size)
        else:
            path = arguments.file_path or arguments.resource or ""
            with await self._search_roots(call, lambda roots: Roots(roots, self.closed).open(path)) as opened:
                yield File(opened.fd, clean_name(opened.name) or "document", opened.size)

    async def locate(self, path: str, call: Call) -> LocatedPath:
        """Resolve a path to a file or folder without opening it."""

        def find(roots: Sequence[Path]) -> LocatedPath:
            closed = [Path(os.path.realpath(path)) for path in self.closed]
            for root in roots:
                if (folder := _find_folder(path, Path(os.path.realpath(root)), closed)) is not None:
                    return folder
            with Roots(roots, self.closed).open(path) as opened:
                root = next(root for root in roots if opened.path.is_relative_to(root))
                return LocatedPath(Path(os.path.realpath(opened.path)), Path(os.path.realpath(root)), closed)

        return await self._search_roots(call, find)

    async def _search_roots(self, call: Call, find: Callable[[Sequence[Path]], T]) -> T:
        """Search the open folders, then also the client's roots, if they are trusted."""
        if not self.settings.local_files:
            raise CannotOpen(
                "Tools can't open files on the server's machine (convert.local_files). Send the bytes or a URL."
            )
        try:
            return await to_thread.run_sync(find, self.roots)
        except CannotOpen:
            trusted = self.settings.client_roots
            if trusted == "none" or (trusted == "local" and not call.caller.local):
                raise
            roots = [Path(path) for uri in await request_roots(call) if (path := _parse_file_uri(uri))]
            if not roots:
                raise
        return await to_thread.run_sync(find, [*self.roots, *roots])


def default_roots(settings: ConvertConfig, folder: Path, home: Path) -> list[Path]:
    """Return the configured roots, or the working folder unless it is the home or root folder."""
    if settings.roots:
        return [root.absolute() for root in settings.roots]
    return [] if folder in (Path(folder.anchor), home) else [folder]


def _find_folder(path: str, root: Path, closed: Sequence[Path]) -> LocatedPath | None:
    """Return the folder below a root that a path names, if any; hidden ones are excluded, like hidden files."""
    name = _parse_file_uri(path) if path[:5].lower() == "file:" else path
    if not name or "\0" in name:
        return None
    found = LocatedPath(Path(os.path.realpath(root / name)), root, closed, is_folder=True)
    if not found.path.is_relative_to(root) or not found.path.is_dir() or not found.can_read(found.path):
        return None
    return None if any(part.startswith(".") for part in found.path.relative_to(root).parts) else found


def _write_base64(file: IO[bytes], content: str) -> int:
    try:
        data = base64.b64decode(re.sub(r"\s+", "", content), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArguments([Problem("content_base64", "is not base64")]) from None
    file.write(data)
    file.flush()
    return len(data)


def _parse_file_uri(uri: str) -> str:
    """Return the path of a `file:` URI, or an empty string if it has none below the root."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return ""
    path = unquote(parts.path)
    return path if parts.scheme == "file" and os.path.isabs(path) and path != os.sep else ""
