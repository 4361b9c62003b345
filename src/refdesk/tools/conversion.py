"""The `convert` toolset: a file or a page to a document with its structure, and that to other forms."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Annotated, Any, get_args
from urllib.parse import unquote, urlsplit

import orjson
from anyio import to_thread
from pydantic import Field, StringConstraints

from refdesk.calls import Call, TenantId, text_content, tool_answer
from refdesk.config import ConvertConfig
from refdesk.documents.conversions import (
    EXPORT_SECONDS,
    UPLOAD_SCHEME,
    URL_SECONDS,
    Conversions,
    Converted,
    Export,
    File,
    Wanted,
)
from refdesk.documents.convert.source import PageRange
from refdesk.documents.file_names import clean_name
from refdesk.documents.files import OpenedFile, Roots
from refdesk.documents.scratch import scratch_file
from refdesk.documents.shelf import Shelf
from refdesk.errors import CannotOpen, ClientCannot, DocumentNotFound, InvalidArguments, MissingCapability, Problem
from refdesk.problems import shortened
from refdesk.tools.budget import Blocklist
from refdesk.tools.outline import MAX_CHARACTERS, OutlineEntry, brief
from refdesk.tools.registry import Annotations, Registry, Tool
from refdesk.tools.schema import Arguments, Result
from refdesk.tools.text import DEFAULT_TOKENS, FilePart, whole_text

TOOLSET = "convert"

ACCEPTED = {
    "convert_pdf": ("pdf",),
    "convert_docx": ("docx", "doc", "odt", "rtf", "epub", "html", "markdown", "rst", "text", "docling"),
    "convert_xlsx": ("xlsx", "xls", "ods", "csv"),
    "convert_pptx": ("pptx", "ppt", "odp"),
}
"""The formats that each tool takes; every format has its tool."""

TOOL_FOR = {format: tool for tool, formats in ACCEPTED.items() for format in formats}

CONVERT_SECONDS = 330.0
"""The longest conversion, and half a minute to wait for its turn."""

MEDIA_TYPES = {"markdown": "text/markdown", "html": "text/html", "json": "application/json"}

MAX_RESOURCE_BYTES = 32 * 1024 * 1024
"""The largest document that is handed out in one piece."""

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
    document: Annotated[dict[str, Any] | None, Field(description="Or DoclingDocument JSON.")] = None
    cursor: Annotated[str | None, Field(pattern=r"^\d{1,12}$", description="Where the last answer stopped.")] = None
    max_tokens: Annotated[int | None, Field(ge=100, le=5_000_000)] = None


class ConvertedDocument(Result):
    """What a convert tool answers: enough to know the document, and the handle to read it by."""

    handle: str
    title: str
    format: str
    pages: int
    page_kind: str
    total_pages: int | None = None
    sections: int
    tables: int
    outline: list[OutlineEntry]
    warnings: list[str]
    preview: str
    cached: bool

    def readable(self) -> str:
        pages = f"{self.pages} {self.page_kind}{'' if self.pages == 1 else 's'}"
        if self.total_pages:
            pages += f" of {self.total_pages}"
        lines = [
            f"# {self.title}",
            f"handle: {self.handle} ({self.format}, {pages}, {self.sections} sections, {self.tables} tables)",
            *(f"Warning: {warning}" for warning in self.warnings),
        ]
        if self.outline:
            left_out = self.sections - len(self.outline)
            more = [f"… {left_out} more: read_doc_metadata lists them"] if left_out > 0 else []
            lines += ["", "Contents:", *(entry.readable() for entry in self.outline), *more]
        lines += ["", "Preview:", self.preview]
        lines += ["", "Read on with read_doc_section or read_doc_pages (doc_id is the handle), or export_markdown."]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class OpenFolders:
    """Where files that tools may name are, and what is kept from them there."""

    roots: Sequence[Path]
    closed: Sequence[Path] = ()

    def with_roots(self, more: Sequence[Path] = ()) -> Roots:
        """These folders, and some that a client works in."""
        return Roots([*self.roots, *more], self.closed)


class Conversion:
    """The toolset's handlers."""

    def __init__(
        self, conversions: Conversions, settings: ConvertConfig, folders: OpenFolders, blocklist: Blocklist
    ) -> None:
        self._conversions = conversions
        self._settings = settings
        self._folders = folders
        self._blocklist = blocklist

    def register(self, registry: Registry) -> None:
        """Offer the toolset's tools and resources."""
        for tool in self._convert_tools():
            registry.add_tool(tool)
        for form in get_args(Export):
            registry.add_tool(self._export_tool(form))
        registry.add_resources(ConvertedResources(self._conversions, self._blocklist))

    def _convert_tools(self) -> Iterable[Tool[Any]]:
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
            yield Tool(
                name=name,
                title=title,
                description=f"Convert {kinds}, with structure. Answers a handle, contents and preview.",
                toolset=TOOLSET,
                arguments=arguments,
                handler=self.convert_with(name),
                result=ConvertedDocument,
                talks=True,
                seconds=CONVERT_SECONDS,
            )
        yield Tool(
            name="convert_url",
            title="Convert a web page or file",
            description="Fetch a URL (page, PDF, Office file) and convert it. Answers like convert_pdf.",
            toolset=TOOLSET,
            arguments=ConvertUrl,
            handler=self.convert_url,
            result=ConvertedDocument,
            annotations=Annotations(open_world=True),
            talks=True,
            seconds=URL_SECONDS,
        )

    def _export_tool(self, form: Export) -> Tool[Any]:
        title = {"markdown": "Markdown", "html": "HTML", "json": "DoclingDocument JSON"}[form]

        async def export(arguments: ExportDocument, call: Call) -> dict[str, Any]:
            return await self.export(arguments, form, call)

        return Tool(
            name=f"export_{form}",
            title=f"Export as {title}",
            description=f"A converted document as {title}, in parts when long.",
            toolset=TOOLSET,
            arguments=ExportDocument,
            handler=export,
            seconds=EXPORT_SECONDS,
        )

    def convert_with(self, tool: str) -> Any:
        """The handler of one of the convert tools."""

        async def convert(arguments: ConvertFile, call: Call) -> ConvertedDocument:
            pages = _page_range(arguments.pages) if isinstance(arguments, ConvertPdf) else None
            wanted = Wanted(pages, ACCEPTED[tool], TOOL_FOR)
            async with self._given_file(arguments, call) as file:
                converted = await self._conversions.convert(call.caller.tenant, file, wanted, call.client.progress)
            return await self._summary(converted, call.caller.tenant)

        return convert

    async def convert_url(self, arguments: ConvertUrl, call: Call) -> ConvertedDocument:
        tenant = call.caller.tenant
        converted = await self._conversions.convert_url(tenant, arguments.url, Wanted(), call.client.progress)
        return await self._summary(converted, tenant)

    async def export(self, arguments: ExportDocument, form: Export, call: Call) -> dict[str, Any]:
        tenant = call.caller.tenant
        handle = await self._handle(arguments, call)
        file = await self._conversions.export(tenant, handle, form)
        if file is None:
            raise DocumentNotFound(not_converted(handle))
        part = await to_thread.run_sync(self._part, file, arguments)
        meta: dict[str, Any] = {"handle": handle, "tokens": part.tokens, "bytes": part.size}
        content = [text_content(part.text, **meta)]
        if part.next_cursor is not None:
            content[0]["_meta"]["nextCursor"] = part.next_cursor
            content += [text_content(part.note()), _link(handle, form)]
        return tool_answer(content)

    async def _handle(self, arguments: ExportDocument, call: Call) -> str:
        """The handle that was given, or that of the DoclingDocument that was."""
        if (arguments.handle is None) == (arguments.document is None):
            raise InvalidArguments([Problem("handle", "give either handle or document")])
        if arguments.handle is not None:
            return arguments.handle
        wanted = Wanted(expected=("docling",))
        async with scratch_file() as file:
            size = await to_thread.run_sync(_write_json, file, arguments.document)
            given = File(file.fileno(), "document.json", size)
            converted = await self._conversions.convert(call.caller.tenant, given, wanted, call.client.progress)
        return converted.handle

    async def _summary(self, converted: Converted, tenant: TenantId) -> ConvertedDocument:
        shelf = await self._conversions.open(tenant, converted.handle)
        if shelf is None:
            raise DocumentNotFound(not_converted(converted.handle))
        return await to_thread.run_sync(self._summarised, shelf, converted)

    def _summarised(self, shelf: Shelf, converted: Converted) -> ConvertedDocument:
        shown = self._blocklist.shown
        with shelf:
            about = shelf.about
            return ConvertedDocument(
                handle=converted.handle,
                title=shown(shortened(about.title or about.name, MAX_CHARACTERS)),
                format=about.format,
                pages=about.pages,
                page_kind=about.shown_page_kind,
                total_pages=about.total_pages if about.total_pages != about.pages else None,
                sections=about.sections,
                tables=about.tables,
                outline=[OutlineEntry.of(s, shown) for s in about.outline if not self._blocklist.blocks(s.id)],
                warnings=brief(about.warnings, shown),
                preview=shown(about.preview),
                cached=converted.cached,
            )

    def _part(self, file: IO[bytes], arguments: ExportDocument) -> FilePart:
        """The part that was asked for; where words are blocked, of the text without them."""
        with file:
            if not self._blocklist.is_empty:
                file = BytesIO(self._blocklist.screened(file.read().decode("utf-8", "replace")).encode())
            return FilePart.of(file, arguments.cursor, arguments.max_tokens or DEFAULT_TOKENS)

    @asynccontextmanager
    async def _given_file(self, arguments: ConvertFile, call: Call) -> AsyncIterator[File]:
        """The file that the arguments name or hold, open."""
        given = [arguments.file_path, arguments.content_base64, arguments.resource]
        if sum(value is not None for value in given) != 1:
            raise InvalidArguments([Problem("file_path", "give exactly one of file_path, content_base64, resource")])
        if arguments.content_base64 is not None:
            async with scratch_file() as file:
                size = await to_thread.run_sync(_write_base64, file, arguments.content_base64)
                yield File(file.fileno(), clean_name(arguments.file_name or "") or "document", size)
        elif arguments.resource is not None and arguments.resource.startswith(UPLOAD_SCHEME):
            async with self._uploaded(arguments.resource, call) as uploaded:
                yield uploaded
        else:
            with await self._open(arguments.file_path or arguments.resource or "", call) as opened:
                yield File(opened.fd, clean_name(opened.name) or "document", opened.size)

    @asynccontextmanager
    async def _uploaded(self, uri: str, call: Call) -> AsyncIterator[File]:
        found = await self._conversions.open_upload(call.caller.tenant, uri)
        if found is None:
            raise CannotOpen(f"There is no upload {shortened(uri)!r}; it may have expired. Send the file again.")
        file, name = found
        with file:
            yield File(file.fileno(), name, os.fstat(file.fileno()).st_size)

    async def _open(self, path: str, call: Call) -> OpenedFile:
        if not self._settings.local_files:
            raise CannotOpen("Files on this desk's machine are not open to tools; send the bytes or a URL.")
        try:
            return await to_thread.run_sync(self._folders.with_roots().open, path)
        except CannotOpen:
            roots = await self._client_roots(call)
            if not roots:
                raise
        return await to_thread.run_sync(self._folders.with_roots(roots).open, path)

    async def _client_roots(self, call: Call) -> list[Path]:
        """The folders that the client says it works in, where they are to be believed."""
        trusted = self._settings.client_roots
        if trusted == "none" or (trusted == "local" and not call.caller.local):
            return []
        try:
            answer = await call.client.ask("roots", "roots/list", {})
        except (ClientCannot, MissingCapability):
            return []
        uris = [str(root.get("uri", "")) for root in answer.get("roots", ())]
        return [Path(path) for uri in uris if (path := _local_path(uri))]


class ConvertedResources:
    """`document://{handle}/{form}`: a converted document in one piece."""

    SCHEME = "document://"
    TEMPLATE = "document://{handle}/{form}"

    def __init__(self, conversions: Conversions, blocklist: Blocklist) -> None:
        self._conversions = conversions
        self._blocklist = blocklist

    def listing(self, call: Call) -> Iterable[Mapping[str, Any]]:
        return ()

    def templates(self) -> Iterable[Mapping[str, Any]]:
        yield {
            "uriTemplate": self.TEMPLATE,
            "name": "converted",
            "title": "A converted document",
            "description": "A whole converted document as markdown, html or json.",
        }

    async def read(self, uri: str, call: Call) -> Sequence[Mapping[str, Any]] | None:
        handle, _, form = uri.removeprefix(self.SCHEME).partition("/")
        if not uri.startswith(self.SCHEME) or form not in MEDIA_TYPES:
            return None
        form_wanted: Export = form  # type: ignore[assignment]
        file = await self._conversions.export(call.caller.tenant, handle, form_wanted)
        if file is None:
            return None
        text = await to_thread.run_sync(self._text, file)
        return [{"uri": uri, "mimeType": MEDIA_TYPES[form], "text": text}]

    def _text(self, file: IO[bytes]) -> str:
        return self._blocklist.screened(whole_text(file, MAX_RESOURCE_BYTES))

    async def complete(self, template: str, name: str, value: str, given: Mapping[str, str], call: Call) -> list[str]:
        return [form for form in MEDIA_TYPES if form.startswith(value)] if name == "form" else []


def not_converted(handle: str) -> str:
    """A sentence for a handle that leads nowhere."""
    return f"There is no document {shortened(handle)!r}; it may have expired. Convert the file again for a new handle."


def default_roots(settings: ConvertConfig, folder: Path, home: Path) -> list[Path]:
    """The folders whose files tools may name: those that are set, or the one the server was started in."""
    if settings.roots:
        return [root.absolute() for root in settings.roots]
    too_wide = folder == Path(folder.anchor) or folder == home
    return [] if too_wide else [folder]


def _link(handle: str, form: Export) -> dict[str, Any]:
    uri = f"{ConvertedResources.SCHEME}{handle}/{form}"
    return {"type": "resource_link", "uri": uri, "name": f"{handle}.{form}", "mimeType": MEDIA_TYPES[form]}


def _page_range(pages: str | None) -> PageRange | None:
    if pages is None:
        return None
    first, _, last = pages.partition("-")
    chosen = PageRange(int(first), int(last or first))
    if not 1 <= chosen.first <= chosen.last:
        raise InvalidArguments([Problem("pages", "must be a page or a range such as 3-7, counted from 1")])
    return chosen


def _write_base64(file: IO[bytes], content: str) -> int:
    try:
        data = base64.b64decode(re.sub(r"\s+", "", content), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArguments([Problem("content_base64", "is not base64")]) from None
    file.write(data)
    file.flush()
    return len(data)


def _write_json(file: IO[bytes], document: dict[str, Any] | None) -> int:
    size = file.write(orjson.dumps(document))
    file.flush()
    return size


def _local_path(uri: str) -> str:
    parts = urlsplit(uri)
    path = unquote(parts.path)
    return path if parts.scheme == "file" and os.path.isabs(path) and path != os.sep else ""
