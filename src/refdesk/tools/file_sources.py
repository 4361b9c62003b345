"""Opens files to convert: local paths, uploads, or bytes in the call."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, TypeVar
from urllib.parse import unquote, urlsplit

from anyio import to_thread
from pydantic import Field

from refdesk.calls import Call
from refdesk.config import ConvertConfig
from refdesk.documents.conversions import UPLOAD_SCHEME, Conversions, File
from refdesk.documents.file_names import clean_name
from refdesk.documents.files import Roots
from refdesk.documents.scratch import scratch_file
from refdesk.errors import CannotOpen, ClientCannot, InvalidArguments, MissingCapability, Problem
from refdesk.tools.json_schema import Arguments
from refdesk.validation import shorten

T = TypeVar("T")
FilePath = Annotated[str | None, Field(min_length=1, max_length=4096, description="Path on the desk's machine.")]


class ConvertFile(Arguments):
    file_path: FilePath = None
    content_base64: Annotated[str | None, Field(min_length=1, description="Or the file's bytes.")] = None
    resource: Annotated[str | None, Field(min_length=1, description="Or upload:// or file:// URI.")] = None
    file_name: Annotated[str | None, Field(max_length=255, description="Name of bytes.")] = None


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


class Sources:
    """Opens the file that a call names or contains."""

    def __init__(
        self, conversions: Conversions, settings: ConvertConfig, roots: Sequence[Path], closed: Sequence[Path]
    ) -> None:
        """`roots` are the folders whose files may be read, and `closed` are paths excluded from them."""
        self._conversions = conversions
        self._settings = settings
        self._roots = roots
        self._closed = closed

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
            found = await self._conversions.open_upload(call.caller.tenant, arguments.resource)
            if found is None:
                uri = shorten(arguments.resource)
                raise CannotOpen(f"There is no upload {uri!r}; it may have expired. Send the file again.")
            uploaded, name = found
            with uploaded:
                yield File(uploaded.fileno(), name, os.fstat(uploaded.fileno()).st_size)
        else:
            path = arguments.file_path or arguments.resource or ""
            with await self._search_roots(call, lambda roots: Roots(roots, self._closed).open(path)) as opened:
                yield File(opened.fd, clean_name(opened.name) or "document", opened.size)

    async def locate(self, path: str, call: Call) -> LocatedPath:
        """Resolve a path to a file or folder without opening it."""

        def find(roots: Sequence[Path]) -> LocatedPath:
            closed = [Path(os.path.realpath(path)) for path in self._closed]
            for root in roots:
                if (folder := _find_folder(path, Path(os.path.realpath(root)), closed)) is not None:
                    return folder
            with Roots(roots, self._closed).open(path) as opened:
                root = next(root for root in roots if opened.path.is_relative_to(root))
                return LocatedPath(Path(os.path.realpath(opened.path)), Path(os.path.realpath(root)), closed)

        return await self._search_roots(call, find)

    async def _search_roots(self, call: Call, find: Callable[[Sequence[Path]], T]) -> T:
        """Search the open folders, then also the client's roots, if they are trusted."""
        if not self._settings.local_files:
            raise CannotOpen("Tools can't open files on the server's machine. Send the bytes or a URL.")
        try:
            return await to_thread.run_sync(find, self._roots)
        except CannotOpen:
            trusted = self._settings.client_roots
            if trusted == "none" or (trusted == "local" and not call.caller.local):
                raise
            try:
                answer = await call.client.ask("roots", "roots/list", {})
            except (ClientCannot, MissingCapability):
                answer = {}
            uris = [str(root.get("uri", "")) for root in answer.get("roots", ())]
            roots = [Path(path) for uri in uris if (path := _parse_file_uri(uri))]
            if not roots:
                raise
        return await to_thread.run_sync(find, [*self._roots, *roots])


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
    parts = urlsplit(uri)
    path = unquote(parts.path)
    return path if parts.scheme == "file" and os.path.isabs(path) and path != os.sep else ""
