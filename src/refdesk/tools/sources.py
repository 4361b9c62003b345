"""Where a file to convert comes from: a path beneath the open folders, an upload, or bytes in the call."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated
from urllib.parse import unquote, urlsplit

from anyio import to_thread
from pydantic import Field

from refdesk.calls import Call
from refdesk.config import ConvertConfig
from refdesk.documents.conversions import UPLOAD_SCHEME, Conversions, File
from refdesk.documents.file_names import clean_name
from refdesk.documents.files import OpenedFile, Roots
from refdesk.documents.scratch import scratch_file
from refdesk.errors import CannotOpen, ClientCannot, InvalidArguments, MissingCapability, Problem
from refdesk.problems import shortened
from refdesk.tools.schema import Arguments

FilePath = Annotated[str | None, Field(min_length=1, max_length=4096, description="Path on the desk's machine.")]


class ConvertFile(Arguments):
    file_path: FilePath = None
    content_base64: Annotated[str | None, Field(min_length=1, description="Or the file's bytes.")] = None
    resource: Annotated[str | None, Field(min_length=1, description="Or upload:// or file:// URI.")] = None
    file_name: Annotated[str | None, Field(max_length=255, description="Name of bytes.")] = None


@dataclass(frozen=True, slots=True)
class OpenFolders:
    """Where files that tools may name are, and what is kept from them there."""

    roots: Sequence[Path]
    closed: Sequence[Path] = ()

    def with_roots(self, more: Sequence[Path] = ()) -> Roots:
        """These folders, and some that a client works in."""
        return Roots([*self.roots, *more], self.closed)


class Sources:
    """Opens what a call names or holds."""

    def __init__(self, conversions: Conversions, settings: ConvertConfig, folders: OpenFolders) -> None:
        self._conversions = conversions
        self._settings = settings
        self._folders = folders

    @asynccontextmanager
    async def open(self, arguments: ConvertFile, call: Call) -> AsyncIterator[File]:
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
            with await self._open_path(arguments.file_path or arguments.resource or "", call) as opened:
                yield File(opened.fd, clean_name(opened.name) or "document", opened.size)

    @asynccontextmanager
    async def _uploaded(self, uri: str, call: Call) -> AsyncIterator[File]:
        found = await self._conversions.open_upload(call.caller.tenant, uri)
        if found is None:
            raise CannotOpen(f"There is no upload {shortened(uri)!r}; it may have expired. Send the file again.")
        file, name = found
        with file:
            yield File(file.fileno(), name, os.fstat(file.fileno()).st_size)

    async def _open_path(self, path: str, call: Call) -> OpenedFile:
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


def default_roots(settings: ConvertConfig, folder: Path, home: Path) -> list[Path]:
    """The folders whose files tools may name: those that are set, or the one the server was started in."""
    if settings.roots:
        return [root.absolute() for root in settings.roots]
    too_wide = folder == Path(folder.anchor) or folder == home
    return [] if too_wide else [folder]


def _write_base64(file: IO[bytes], content: str) -> int:
    try:
        data = base64.b64decode(re.sub(r"\s+", "", content), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArguments([Problem("content_base64", "is not base64")]) from None
    file.write(data)
    file.flush()
    return len(data)


def _local_path(uri: str) -> str:
    parts = urlsplit(uri)
    path = unquote(parts.path)
    return path if parts.scheme == "file" and os.path.isabs(path) and path != os.sep else ""
