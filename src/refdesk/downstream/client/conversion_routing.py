"""Document conversion: maps a file or URL to the tool that converts it, with a timeout.

Two kinds of servers are supported. Refdesk has one tool per file type, which takes a path or bytes and returns a
handle. `docling-mcp` has one tool for everything, which takes a `source` and returns a `document_key`.
"""

from __future__ import annotations

import asyncio
import base64
import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import unquote, urlsplit

from refdesk.documents.convert.formats import BY_SUFFIX
from refdesk.documents.file_limits import EXPORT_SECONDS, MAX_FILE_BYTES, MEGABYTE, URL_SECONDS, get_time_limit
from refdesk.downstream.client.mcp_client import ToolResult
from refdesk.errors import (
    ERROR_META,
    CannotFetch,
    CannotOpen,
    FileTooLarge,
    InvalidCall,
    ServerRefused,
    ServerTalksNonsense,
    UnknownTool,
    UnsupportedFile,
)

if TYPE_CHECKING:
    from refdesk.downstream.client.handlers import OnProgress
    from refdesk.downstream.client.mcp_client import Client

MAX_SENT_BYTES = 3_000_000
"""Largest file sent as bytes: as base64 it fits into the 4 MB that a server accepts by default."""

EXPORT_TOKENS = 100_000
"""Tokens per export request. A program has no context window to fill."""

MAX_PARTS = 10_000
"""An export with more parts is considered endless."""

Form = Literal["markdown", "html", "json"]
FORMS: tuple[Form, ...] = get_args(Form)

TOOLS: Mapping[str, str] = MappingProxyType({suffix: format.tool for suffix, format in BY_SUFFIX.items()})
"""Conversion tool by file extension."""

_DOCLING_CONVERT, _DOCLING_EXPORT = "convert_document_into_docling_document", "export_docling_document_to_markdown"


CONVERSION_FAILED, EXPORT_FAILED = -32002, -32003
"""Error codes for results with `isError`, so that applications can tell a failed conversion from a failed export."""


@dataclass(frozen=True, slots=True)
class Route:
    """A tool call for a conversion or export."""

    tool: str
    arguments: Mapping[str, Any]
    timeout_seconds: float
    path: Path | None = None
    """The file, if the source isn't a URL."""
    size: int = 0


@dataclass(frozen=True, slots=True)
class ServerDocument:
    """A converted document stored on the server. Its handle identifies it for exports."""

    handle: str
    result: ToolResult


def route(source: str | os.PathLike[str], size: int | None = None) -> Route:
    """Return the tool call for a file or URL. With `size`, the file isn't accessed.

    Raises UnsupportedFile, FileTooLarge, CannotOpen for a path that isn't a file, and CannotFetch for an invalid URL.
    """
    text = os.fspath(source)
    scheme = text.partition("://")[0].lower() if "://" in text else ""
    if scheme in ("http", "https"):
        if not urlsplit(text).hostname:
            raise CannotFetch("The address names no host.")
        return Route("convert_url", {"url": text}, URL_SECONDS)
    if scheme and scheme != "file":
        raise CannotFetch(f"Addresses that begin with {scheme[:20]}:// cannot be converted, only http:// and https://.")
    path = Path(unquote(urlsplit(text).path)) if scheme else Path(text).expanduser()
    size = _get_size(path) if size is None else size
    tool = TOOLS.get(path.suffix.lower())
    if tool is None:
        kind = f"files that end with {path.suffix!r}" if path.suffix else "files without an extension"
        raise UnsupportedFile(f"There is no tool for {kind} ({path.name!r}); known are {' '.join(TOOLS)}.")
    if size > MAX_FILE_BYTES:
        raise FileTooLarge(
            f"{path.name!r} has {size / MEGABYTE:.1f} MB; files of more than 100 MB are not converted. Split it."
        )
    return Route(tool, {"file_path": str(path.absolute())}, get_time_limit(size), path, size)


def _get_size(path: Path) -> int:
    try:
        found = path.stat()
    except FileNotFoundError:
        raise CannotOpen(f"There is no file {str(path)!r}.") from None
    except (OSError, ValueError) as error:
        raise CannotOpen(f"{str(path)!r} cannot be opened: {getattr(error, 'strerror', None) or error}.") from None
    if stat.S_ISDIR(found.st_mode):
        raise CannotOpen(f"{str(path)!r} is a folder; give its files one by one.")
    if not stat.S_ISREG(found.st_mode):
        raise CannotOpen(f"{str(path)!r} is not a regular file.")
    return found.st_size


def route_export(document: str | ServerDocument | Mapping[str, Any], form: Form) -> Route:
    """Return the tool call for an export, by handle or from a DoclingDocument."""
    if form not in FORMS:
        raise InvalidCall(f"There is no form {str(form)[:40]!r}; the forms are {', '.join(FORMS)}")
    if isinstance(document, Mapping):
        return Route(f"export_{form}", {"document": dict(document)}, EXPORT_SECONDS)
    handle = document.handle if isinstance(document, ServerDocument) else document
    return Route(f"export_{form}", {"handle": handle}, EXPORT_SECONDS)


def adapt_route(wanted: Route, tools: Collection[str], as_bytes: bool) -> Route:
    """Adapt a route to the tools of the server. Raises UnknownTool if none matches.

    `as_bytes` sends the content of a file instead of its path, for a server without access to it.
    """
    if wanted.tool in tools:
        return _with_content(wanted, wanted.path) if as_bytes and wanted.path is not None else wanted
    if wanted.tool.startswith("convert_") and _DOCLING_CONVERT in tools:
        (source,) = wanted.arguments.values()
        return Route(_DOCLING_CONVERT, {"source": source}, wanted.timeout_seconds)
    if wanted.tool == "export_markdown" and _DOCLING_EXPORT in tools and "handle" in wanted.arguments:
        return Route(_DOCLING_EXPORT, {"document_key": wanted.arguments["handle"]}, wanted.timeout_seconds)
    offered = " ".join(sorted(tool for tool in tools if tool.startswith(("convert_", "export_")))) or "none"
    what = " for a document that it has not converted itself" if "document" in wanted.arguments else ""
    raise UnknownTool(f"The server has no tool {wanted.tool!r}{what}; of its kind it offers {offered}")


def _with_content(wanted: Route, path: Path) -> Route:
    if wanted.size > MAX_SENT_BYTES:
        megabytes = wanted.size / 1_000_000
        raise FileTooLarge(f"The file has {megabytes:.1f} MB; only {MAX_SENT_BYTES / 1_000_000:g} MB can be sent.")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CannotOpen(f"{str(path)!r} cannot be opened: {error.strerror}.") from None
    sent = {"content_base64": base64.b64encode(content).decode(), "file_name": path.name}
    return Route(wanted.tool, sent, wanted.timeout_seconds)


def parse_conversion(server: str, result: ToolResult) -> ServerDocument:
    """Return the converted document from a tool result. Raises ServerRefused if the tool failed."""
    structured = _get_structured(server, CONVERSION_FAILED, result)
    handle = structured.get("handle") or structured.get("document_key")
    if not isinstance(handle, str):
        raise ServerTalksNonsense(f"The server {server!r} did not return a document handle")
    return ServerDocument(handle, result)


def parse_export(server: str, result: ToolResult) -> tuple[str, str | None]:
    """Return the text of an export and the cursor of the next part, if any. Raises ServerRefused if the tool failed."""
    structured = _get_structured(server, EXPORT_FAILED, result)
    if isinstance(markdown := structured.get("markdown"), str):
        return markdown, None
    texts = [item for item in result.content if item.get("type") == "text"]
    if not texts:
        raise ServerTalksNonsense(f"The server {server!r} exported a document without any text")
    meta = texts[0].get("_meta")
    cursor = meta.get("nextCursor") if isinstance(meta, Mapping) else None
    return texts[0]["text"], cursor if isinstance(cursor, str) else None


def _get_structured(server: str, failure: int, result: ToolResult) -> Mapping[str, Any]:
    """Return the structured content of a result, or raise its error, whose type Refdesk servers put into `_meta`."""
    if result.is_error:
        meta = result.raw.get("_meta")
        data = meta.get(ERROR_META) if isinstance(meta, Mapping) else None
        raise ServerRefused(server, failure, result.text or "it failed without a message", data, has_code=False)
    return result.structured if isinstance(result.structured, Mapping) else {}


async def convert(
    client: Client, source: str | os.PathLike[str], send: Literal["path", "bytes"] | None, progress: OnProgress | None
) -> ServerDocument:
    """Convert a document on the client's server."""
    wanted = await asyncio.to_thread(route, source)
    tools = {tool["name"]: tool for tool in await client.tools()}
    if send is None:
        takes_bytes = "content_base64" in _get_argument_names(tools.get(wanted.tool))
        send = "bytes" if takes_bytes and wanted.size <= MAX_SENT_BYTES else "path"
    call = await asyncio.to_thread(adapt_route, wanted, tools, send == "bytes")
    result = await client.call(call.tool, call.arguments, timeout=call.timeout_seconds, progress=progress)
    return parse_conversion(client.name, result)


async def export(client: Client, document: str | ServerDocument | Mapping[str, Any], form: Form) -> str:
    """Export a whole document, part by part."""
    tools = {tool["name"]: tool for tool in await client.tools()}
    call = adapt_route(route_export(document, form), tools, as_bytes=False)
    arguments, parts = dict(call.arguments), []
    if "max_tokens" in _get_argument_names(tools[call.tool]):
        arguments["max_tokens"] = EXPORT_TOKENS
    for _ in range(MAX_PARTS):
        result = await client.call(call.tool, arguments, timeout=call.timeout_seconds)
        text, cursor = parse_export(client.name, result)
        parts.append(text)
        if cursor is None:
            return "".join(parts)
        arguments["cursor"] = cursor
    raise ServerTalksNonsense(f"The server {client.name!r} gave {MAX_PARTS} parts of a document without an end")


def _get_argument_names(definition: Mapping[str, Any] | None) -> Collection[str]:
    schema = (definition or {}).get("inputSchema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else ()
