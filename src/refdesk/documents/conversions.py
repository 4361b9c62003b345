"""Conversion service: files, uploads and URLs to packed documents, sandboxed and deduplicated.

The conversion itself runs in the sandbox's workers.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal
from urllib.parse import quote, unquote
from weakref import WeakValueDictionary

from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.config.models import ConvertConfig
from refdesk.documents.conversion_store import UPLOAD, Bounds, Store, UrlRecord
from refdesk.documents.convert.formats import describe_wrong_format, is_detectable_by_content
from refdesk.documents.convert.source import PageRange
from refdesk.documents.fetch import Fetched, Fetcher, FetchRules, Progress, open_fetcher
from refdesk.documents.file_limits import EXPORT_SECONDS, MAX_FILE_BYTES, MEGABYTE, get_time_limit
from refdesk.documents.file_names import clean_name
from refdesk.documents.packed_document import PackedDocument
from refdesk.documents.sandbox import Sandbox, SandboxLimits, open_sandbox
from refdesk.documents.scratch import in_thread, scratch_file
from refdesk.documents.ssrf import Resolver, parse_networks, resolve
from refdesk.errors import CannotConvert
from refdesk.telemetry.metrics import ConversionRecord, Metrics

UPLOAD_SCHEME = "upload://"

Export = Literal["markdown", "html", "json"]


async def unheard(_done: float, _total: float | None, _doing: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class File:
    """An open file with its metadata."""

    fd: int
    name: str
    size: int
    media_type: str = ""
    charset: str | None = None
    url: str = ""
    is_own: bool = False
    """Whether it is Refdesk's own text, which doesn't queue behind other conversions."""


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """Conversion options."""

    pages: PageRange | None = None
    expected: Sequence[str] = ()
    """Keys of the accepted formats; empty accepts any."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A stored packed document."""

    handle: str
    cached: bool
    """Whether it was stored already."""


class Conversions:
    """Converts files for tenants with shared sandboxes and a shared store."""

    def __init__(
        self, sandbox: Sandbox, internal_sandbox: Sandbox, store: Store, fetcher: Fetcher, metrics: Metrics
    ) -> None:
        self._sandbox = sandbox
        self._internal_sandbox = internal_sandbox
        self._store = store
        self._fetcher = fetcher
        self._metrics = metrics
        self._locks_by_name = WeakValueDictionary[str, asyncio.Lock]()
        """A lock goes with its last user."""
        self.get_time_limit = get_time_limit

    async def open(self, tenant: TenantId, handle: str) -> PackedDocument | None:
        """Open a converted document of a tenant, or return None."""
        return await to_thread.run_sync(self._store.open, tenant, handle)

    async def convert(self, tenant: TenantId, file: File, wanted: ConversionOptions, progress: Progress) -> Converted:
        """Convert a file and store the result; the same bytes with the same options are converted once."""
        with self._measure() as metric:
            _check_size(file)
            digest, head = await to_thread.run_sync(_hash_file, file.fd)
            handle = self._store.handle(tenant, digest, _make_variant_key(file, wanted, head))
            async with self._locks_by_name.setdefault(handle, asyncio.Lock()):
                if (found := await self._find_format(tenant, handle)) is not None:
                    if wanted.expected and found not in wanted.expected:
                        raise CannotConvert(describe_wrong_format(file.name, found, wanted.expected))
                    metric.outcome = "cached"
                    return Converted(handle, cached=True)
                async with in_thread(self._store.writing) as output:
                    await self._run("convert", file, wanted, output, progress)
                    await to_thread.run_sync(self._store.keep, tenant, handle, output)
            return Converted(handle, cached=False)

    @contextmanager
    def _measure(self) -> Iterator[ConversionRecord]:
        with self._metrics.conversion() as metric:
            try:
                yield metric
            except CannotConvert:
                metric.outcome = "refused"
                raise
            metric.outcome = "cached" if metric.outcome == "cached" else "ok"

    async def convert_url(self, tenant: TenantId, url: str, wanted: ConversionOptions, progress: Progress) -> Converted:
        """Fetch and convert a URL; an unchanged page is neither sent nor converted again."""
        known = await to_thread.run_sync(self._store.get_url_record, tenant, url)
        if known is not None and await self._find_format(tenant, known.handle) is None:
            known = None
        etag, last_modified = (known.etag, known.last_modified) if known else (None, None)
        async with self.open_download(url, etag, last_modified, progress) as fetched:
            if known is not None and fetched.not_modified:
                return Converted(known.handle, cached=True)
            converted = await self.convert(tenant, download_to_file(fetched), wanted, progress)
        record = UrlRecord(converted.handle, fetched.etag, fetched.last_modified)
        await to_thread.run_sync(self._store.save_url_record, tenant, url, record)
        return converted

    def create_upload(self) -> AbstractAsyncContextManager[IO[bytes]]:
        """Open a temporary file for an upload; it is deleted unless `keep_upload` stores it."""
        return in_thread(self._store.writing)

    async def keep_upload(self, tenant: TenantId, file: IO[bytes], name: str) -> str:
        """Store an upload for as long as a converted document, and return a URI private to its tenant."""
        id = self._store.handle(tenant, secrets.token_hex(), UPLOAD)
        await to_thread.run_sync(self._store.keep, tenant, id, file, UPLOAD)
        return f"{UPLOAD_SCHEME}{id}/{quote(clean_name(name) or 'document')}"

    async def open_upload(self, tenant: TenantId, uri: str) -> tuple[IO[bytes], str] | None:
        """Open an upload by its URI and return it with its name, or None."""
        id, _, name = uri.removeprefix(UPLOAD_SCHEME).partition("/")
        file = await to_thread.run_sync(self._store.open_file, tenant, id, UPLOAD)
        return (file, clean_name(unquote(name)) or "document") if file else None

    async def export(self, tenant: TenantId, handle: str, to: Export) -> IO[bytes] | None:
        """Return a stored document in another format as an open file, or None if there is no such document."""
        async with self._locks_by_name.setdefault(f"{handle}.{to}", asyncio.Lock()):
            written = await to_thread.run_sync(self._store.open_file, tenant, handle, to)
            if written is not None:
                return written
            document = await to_thread.run_sync(self._store.open_file, tenant, handle)
            if document is None:
                return None
            async with in_thread(lambda: document), in_thread(self._store.writing) as output:
                job = {"do": "export", "to": to}
                source, sink = document.fileno(), output.fileno()
                await self._sandbox.run(job, source=source, output=sink, seconds=EXPORT_SECONDS)
                await to_thread.run_sync(self._store.keep, tenant, handle, output, to)
            return await to_thread.run_sync(self._store.open_file, tenant, handle, to)

    async def convert_and_export(
        self, file: File, to: Export, wanted: ConversionOptions, progress: Progress
    ) -> tuple[bytes, Any]:
        """Convert a file to an export format without storing it; return the bytes and metadata."""
        _check_size(file)
        async with scratch_file() as output:
            facts = await self._run("convert_and_export", file, wanted, output, progress, to=to)
            return await to_thread.run_sync(_read_all, output.fileno()), facts

    async def pack(self, file: File, progress: Progress) -> bytes:
        """Convert a file to a packed document that the caller stores."""
        with self._measure():
            _check_size(file)
            async with scratch_file() as output:
                await self._run("convert", file, ConversionOptions(), output, progress)
                return await to_thread.run_sync(_read_all, output.fileno())

    async def packed(self, tenant: TenantId, handle: str) -> bytes | None:
        """Return the bytes of a tenant's packed document, or None."""
        file = await to_thread.run_sync(self._store.open_file, tenant, handle)
        if file is None:
            return None
        async with in_thread(lambda: file):
            return await to_thread.run_sync(_read_all, file.fileno())

    @asynccontextmanager
    async def open_download(
        self, url: str, etag: str | None, last_modified: str | None, progress: Progress
    ) -> AsyncIterator[Fetched]:
        """Fetch a URL as an open file, or learn that it hasn't changed."""
        fetched = await self._fetcher.fetch(url, etag=etag, last_modified=last_modified, progress=progress)
        async with in_thread(lambda: fetched.file):
            yield fetched

    async def fetch_and_export(
        self, url: str, to: Export, wanted: ConversionOptions, progress: Progress
    ) -> tuple[bytes, Any]:
        """Fetch a URL and convert it to an export format without storing it."""
        async with self.open_download(url, None, None, progress) as fetched:
            return await self.convert_and_export(download_to_file(fetched), to, wanted, progress)

    def check(self) -> dict[str, Any]:
        """Return the state of the workers and their restrictions, for the health check."""
        return {"state": "ok", **self._sandbox.state(), "walls": sorted(self._sandbox.restrictions)}

    async def _run(
        self, do: str, file: File, wanted: ConversionOptions, output: IO[bytes], progress: Progress, **options: str
    ) -> Any:
        job = {
            "do": do,
            "name": file.name,
            "media_type": file.media_type,
            "charset": file.charset,
            "url": file.url,
            "pages": [wanted.pages.first, wanted.pages.last] if wanted.pages else None,
            "expected": list(wanted.expected),
            **options,
        }
        sandbox = self._internal_sandbox if file.is_own else self._sandbox
        seconds = self.get_time_limit(file.size)
        return await sandbox.run(job, source=file.fd, output=output.fileno(), seconds=seconds, progress=progress)

    async def _find_format(self, tenant: TenantId, handle: str) -> str | None:
        packed = await self.open(tenant, handle)
        if packed is None:
            return None
        with packed:
            return packed.about.format


@asynccontextmanager
async def open_conversions(
    settings: ConvertConfig, data: Path, metrics: Metrics, *, resolver: Resolver = resolve
) -> AsyncIterator[Conversions]:
    """Open the conversion service with its workers, its store below the data folder and its fetcher."""
    limits = SandboxLimits(workers=settings.workers, memory_bytes=settings.memory_bytes)
    rules = FetchRules(
        allow=parse_networks(settings.allow_networks),
        max_bytes=MAX_FILE_BYTES,
        seconds=settings.fetch_timeout_seconds,
        respect_robots=settings.respect_robots,
    )
    bounds = Bounds(settings.keep_documents, settings.keep_bytes, settings.keep_seconds)
    async with (
        open_sandbox(limits) as sandbox,
        open_sandbox(replace(limits, workers=1)) as internal_sandbox,
        open_fetcher(rules, resolver=resolver) as fetcher,
    ):
        yield Conversions(sandbox, internal_sandbox, Store(data / "converted", bounds), fetcher, metrics)


def _check_size(file: File) -> None:
    if file.size > MAX_FILE_BYTES:
        raise CannotConvert(
            f"{file.name} has {file.size / MEGABYTE:.0f} MB; files over {MAX_FILE_BYTES // MEGABYTE} MB are not "
            "converted. Split it into smaller files."
        )


def _make_variant_key(file: File, wanted: ConversionOptions, head: bytes) -> str:
    """Return what decides on the result besides the bytes: pages and, for text formats, name and encoding."""
    pages = f"{wanted.pages.first}-{wanted.pages.last}" if wanted.pages else ""
    if is_detectable_by_content(head):
        return pages
    return f"{pages} {os.path.splitext(file.name)[1].lower()} {file.media_type} {file.charset} {file.url}"


def download_to_file(fetched: Fetched) -> File:
    """Return a download as conversion input."""
    fd, name = fetched.file.fileno(), fetched.file_name
    return File(fd, name, fetched.size, fetched.content_type, fetched.charset, fetched.url)


def _hash_file(fd: int) -> tuple[str, bytes]:
    """Return the SHA-256 of an open file, and its first bytes."""
    with open(fd, "rb", buffering=0, closefd=False) as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest(), os.pread(fd, 1024, 0)


def _read_all(fd: int) -> bytes:
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()
