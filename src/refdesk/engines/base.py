"""Engine interface: search, reading and ingestion of documents.

Every call names its tenant; documents of other tenants don't exist for it. Documents included with Refdesk (the manual)
belong to the tenant `SHARED`, which everyone can search and read, and nobody can change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from refdesk.calls import TenantId
from refdesk.documents.packed_document import PackedDocument
from refdesk.errors import ToolFailure
from refdesk.resilience.dependency import Dependency
from refdesk.support.extras import build_install_command

SHARED = TenantId("")
"""Tenant of the documents included with Refdesk, readable by everyone."""

SearchMode = Literal["hybrid", "semantic", "fulltext"]

Status = Literal["pending", "converting", "embedding", "success", "failed"]
"""Ingestion status of a document. Full-text search finds it from `embedding` on, semantic search from `success` on."""

NOTHING_TO_INDEX = (
    "It has no text, so no search finds it. If it is a scan, ingest a searchable copy, or install text recognition "
    f"({build_install_command('ocr')}) and ingest the file again."
)
"""Warning about a document that was ingested without any chunks."""

IN_PROGRESS: tuple[Status, ...] = ("pending", "converting", "embedding")


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """Set of documents that are searched together; `docs` calls it a documentation set."""

    id: str
    """Readable lower-case name, such as `postgresql`; the first part of its documents' ids."""
    name: str
    description: str
    documents: int
    created_at: datetime
    updated_at: datetime
    version: str = ""
    """Version of the documented product, if there is one for all documents."""
    shared: bool = False
    """Whether it is included with Refdesk."""
    pending: int = 0
    """Number of documents that no search finds yet."""
    revision: str = field(default="", compare=False)
    """Value that changes with every change to its documents."""
    external_id: str = ""
    """Its id in the service that stores it, if the engine has one: R2R's UUID."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids that callers may use for it."""
        return (self.id, self.external_id) if self.external_id else (self.id,)


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    """Metadata of a document."""

    id: str
    collection: str
    title: str
    version: str
    """Version of the documented product, empty if unknown."""
    indexed_at: datetime
    digest: str = ""
    """Start of the content's hash."""
    source: str = ""
    """Path or URL the document was read from."""
    media_type: str = ""
    size_bytes: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DocumentStatus:
    """Ingestion status of a document."""

    id: str
    collection: str
    title: str
    status: Status
    progress: float
    """Share of the ingestion work that is done, from 0 to 1."""
    created_at: datetime
    updated_at: datetime
    size_bytes: int = 0
    chunks: int = 0
    embedded: int = 0
    """Number of chunks that semantic search can find."""
    error: str | None = None
    warning: str | None = None
    """What is wrong with an ingested document, and what to do."""
    attempts: int = 0
    source: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Document:
    """Document with its text as Markdown."""

    info: DocumentInfo
    text: str


@dataclass(frozen=True, slots=True)
class Passage:
    """Chunk of a document with its position."""

    chunk_id: str
    section: str
    path: tuple[str, ...]
    page: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """Passage that matches a query. A higher score, from 0 to 1, is better."""

    document: DocumentInfo
    chunk_id: str
    section: str
    path: tuple[str, ...]
    page: int | None
    text: str
    score: float
    anchor: str = ""
    """Position in the source, as a URL fragment."""
    anchors: tuple[str, ...] = ()
    """Anchors of the enclosing sections from the top down, its own last."""
    base_score: float = 0.0
    """Score without the discount for further hits of a document, which makes results diverse. 0 if there is none."""
    context: Sequence[Passage] = ()
    """Chunks around it in reading order, its own included, if the search asks for them and the engine has them."""


@dataclass(frozen=True, slots=True)
class Search:
    """Search query with its scope and options."""

    query: str
    limit: int = 10
    mode: SearchMode = "hybrid"
    collections: tuple[str, ...] = ()
    """Collection ids; empty means all the tenant can read."""
    filters: Mapping[str, Any] | None = None
    semantic_weight: float | None = None
    """From 0 (lexical only) to 1 (semantic only). None uses the engine's default."""
    context: int = 0
    """Chunks to return with each hit, before and after it."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Filter and page of a document list."""

    collection: str | None = None
    statuses: tuple[Status, ...] = ()
    """Empty means any."""
    offset: int = 0
    limit: int = 50
    newest_first: bool = False
    """Order by last change instead of by id."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """Local file."""

    path: Path
    name: str
    """Path within the collection, with slashes."""
    root: Path | None = None
    """Folder the file must be in. None for the local user, who may name any file."""


@dataclass(frozen=True, slots=True)
class UrlSource:
    """Web page or file."""

    url: str


@dataclass(frozen=True, slots=True)
class TextSource:
    """Text passed with the call: Markdown or plain."""

    title: str
    text: str
    name: str = ""
    """Path within the collection. Derived from the title if empty, and never that of another text."""


@dataclass(frozen=True, slots=True)
class ConvertedSource:
    """Already converted document, by its handle."""

    handle: str
    name: str


Source = FileSource | UrlSource | TextSource | ConvertedSource


INGESTED_BY, INGESTED_AT, INGESTION_MODE = "ingested_by", "ingested_at", "ingestion_mode"
"""Metadata that r2r_ingest_document adds: the user, the time, and R2R's ingestion mode unless it is `fast`."""


def strip_provenance(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata without who ingested the document when: the same document again is no other one."""
    return {name: value for name, value in metadata.items() if name not in (INGESTED_BY, INGESTED_AT)}


@dataclass(frozen=True, slots=True)
class NewDocument:
    """Document to ingest."""

    source: Source
    collection: str
    """Id of an existing collection."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""


@dataclass(frozen=True, slots=True)
class TenantInfo:
    """Size of a tenant's documents."""

    id: TenantId
    documents: int
    collections: int
    bytes: int
    """Total size of the original documents."""


class NotToBeRetried(ToolFailure):
    """The document hasn't failed, or wasn't ingested from here."""


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """Answer written by an engine's own model. Its citation `[1]` refers to the first hit."""

    text: str
    hits: tuple[Hit, ...]
    """Passages it was written from. Empty if nothing was found; then no model was called."""
    model: str


class EngineWriter(Protocol):
    """Model of an engine that answers questions from the engine's passages."""

    async def answer(
        self,
        tenant: TenantId,
        question: str,
        search: Search,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
    ) -> EngineAnswer:
        """Generate an answer from the passages of a search, all of which the tenant can read."""


@dataclass(frozen=True, slots=True)
class FolderSync:
    """Result of a folder sync. Documents are given by id; they are queued, not indexed yet."""

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged: int = 0
    removed: tuple[str, ...] = ()


class PassageSearch(Protocol):
    """Search role of an engine."""

    async def search(self, tenant: TenantId, search: Search) -> Sequence[Hit]:
        """Return the best passages, at most one per section, best first."""

    async def find_absent(self, tenant: TenantId, query: str, collections: Sequence[str]) -> Sequence[str]:
        """Return the identifiers of a query that occur nowhere in the collections. Empty means all collections.

        An engine that can't tell returns none.
        """

    async def collections(self, tenant: TenantId) -> Sequence[CollectionInfo]:
        """Return all collections the tenant can read, its own first, ordered by id."""

    def cached_collections(self, tenant: TenantId) -> Sequence[CollectionInfo]:
        """Return the collections the tenant can search, from memory."""

    def revision(self, tenant: TenantId, collections: Collection[str] = ()) -> Hashable:
        """Return a value that changes whenever search results from some collections may differ. None means all. Cheap.

        An engine that can't tell them apart returns that of all.
        """

    def listen(self, listener: Callable[[TenantId], None]) -> None:
        """Call `listener` with a tenant whenever its documents or collections have changed."""


class DocumentReader(Protocol):
    """Read role of an engine. Only indexed documents can be read."""

    async def read(self, tenant: TenantId, document_id: str) -> Document | None:
        """Return a document with its text, or None."""

    async def open(self, tenant: TenantId, document_id: str) -> PackedDocument | None:
        """Open a document to be read in parts, or return None. The caller closes it."""

    async def info(self, tenant: TenantId, document_id: str) -> DocumentInfo | None:
        """Return the metadata of a document, or None if it doesn't exist or isn't indexed yet."""

    async def window(
        self, tenant: TenantId, document_id: str, chunk_id: str, *, before: int, after: int
    ) -> Sequence[Passage] | None:
        """Return the chunks around a search hit in reading order, or None if the document has no such chunk."""

    async def list_document_ids(
        self, tenant: TenantId, *, prefix: str = "", parts: Sequence[str] = (), limit: int = 100
    ) -> Sequence[str]:
        """Return the sorted ids that start with the prefix and, if parts are given, contain one of them."""

    async def filter_ids(self, tenant: TenantId, ids: Collection[str]) -> frozenset[str]:
        """Return those of the ids that name documents the tenant can read."""


class DocumentIngest(Protocol):
    """Ingest role of an engine: the collections and documents of a tenant, and their status."""

    async def create_collection(
        self, tenant: TenantId, name: str, *, description: str = "", version: str = ""
    ) -> CollectionInfo:
        """Return the collection with this name, creating it if missing."""

    async def delete_collection(self, tenant: TenantId, collection: str) -> bool:
        """Delete a collection with all its documents. Returns whether it existed."""

    async def ingest(self, tenant: TenantId, documents: Sequence[NewDocument]) -> Sequence[DocumentStatus]:
        """Queue documents durably. They are processed in the background."""

    async def sync_folder(
        self,
        tenant: TenantId,
        collection: str,
        folder: Path,
        documents: Sequence[NewDocument],
        *,
        unseen: Sequence[str] = (),
    ) -> FolderSync:
        """Make the collection match these files of the folder: skip unchanged files and delete missing ones.

        `unseen` are paths within the collection that couldn't be read: documents below them are kept. `.` means all.
        """

    async def retry(self, tenant: TenantId, document_id: str) -> DocumentStatus | None:
        """Queue a failed document again with all attempts left. Returns None if it doesn't exist.

        Raises NotToBeRetried if it is indexed or in progress.
        """

    async def delete(self, tenant: TenantId, document_id: str) -> bool:
        """Delete a document. Returns whether it existed."""

    async def status(self, tenant: TenantId, document_id: str) -> DocumentStatus | None:
        """Return the status of a document, or None."""

    async def documents(self, tenant: TenantId, listing: Listing) -> tuple[Sequence[DocumentStatus], int]:
        """Return a page of documents, and the total number of matches."""

    async def wait(self, tenant: TenantId, document_ids: Sequence[str], *, seconds: float) -> Sequence[DocumentStatus]:
        """Wait until any of the documents changes its status, or the time is up, and return their statuses."""


class EngineAdmin(Protocol):
    """Administration role of an engine, over all tenants."""

    async def reindex(self, tenant: TenantId) -> None:
        """Rebuild a tenant's indexes from its document store. Searches keep working until it is done."""

    async def tenants(self) -> Sequence[TenantInfo]:
        """Return all tenants with data, ordered by id, without the shared one. For administrators."""

    async def waiting(self) -> Mapping[Status, int]:
        """Count the documents in progress by status, over all tenants known to this process.

        Every status in progress is included, even with a count of 0. Raises EngineError if they can't be counted.
        """

    async def check(self, tenant: TenantId | None = None) -> str:
        """Return a short description of the engine's state. Raises EngineError if it doesn't work.

        With a tenant, it must work for that one, else for any.
        """

    def problems(self) -> Sequence[str]:
        """Return why documents of single tenants can't be used or ingested at the moment."""


class Engine(PassageSearch, DocumentReader, DocumentIngest, EngineAdmin, Protocol):
    """Document store with search and ingestion for many tenants. A component asks for the role that it uses."""

    @property
    def traits(self) -> EngineTraits:
        """What distinguishes this engine from others."""

    @property
    def writer(self) -> EngineWriter | None:
        """Model that answers in place of Refdesk's own writers."""

    @property
    def dependencies(self) -> Sequence[Dependency]:
        """External services that are monitored."""


LACKS_REINDEX = "reindex"
"""The engine can't rebuild its index, because another service keeps it."""

LACKS_SHARED = "shared"
"""The engine has no shared documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTraits:
    """Properties of an engine that other components depend on."""

    name: str
    cache_namespace: str
    """Identifies the documents: processes with the same namespace can share cached results."""
    cache_secret: bytes | None = None
    """Secret of all processes on the same documents that signs results in a shared cache. None if they only share the
    data folder."""
    embedding_model: str | None = None
    """Model of semantic search, if it runs in this process."""
    has_certain_revision: bool = True
    """Whether `revision` reflects every change. Otherwise documents can change without the engine knowing."""
    min_confidence: float = 0.0
    """Score of the best hit below which a search probably found no answer. 0 if scores aren't calibrated."""
    lacks: frozenset[str] = frozenset()
    """Features of the interface that it doesn't support, by the `LACKS_*` names."""
