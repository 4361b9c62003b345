"""The engine port: what the tools may ask of the place where documents live.

Every question names its tenant, and a document of another tenant does not exist. What comes with Refdesk itself (the
manual) belongs to the tenant `SHARED`, whose documents everybody can search and read, and nobody change.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from refdesk.calls import TenantId, UserId
from refdesk.documents.packed_document import Shelf
from refdesk.errors import ToolFailure

SHARED = TenantId("")
"""The tenant whose documents everybody can read: what comes with Refdesk itself."""

SearchMode = Literal["hybrid", "semantic", "fulltext"]

Status = Literal["pending", "converting", "embedding", "success", "failed"]
"""A document's way in. From `embedding` on, full-text search finds it; with `success`, all of search does."""

UNDER_WAY: tuple[Status, ...] = ("pending", "converting", "embedding")


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """Documents that are searched together; what `docs` calls a documentation set."""

    id: str
    """A readable name in lower case, such as `postgresql`; the first part of its documents' ids."""
    name: str
    description: str
    documents: int
    created_at: datetime
    updated_at: datetime
    version: str = ""
    """Of what is documented, where all of it has one."""
    shared: bool = False
    """Whether it came with Refdesk."""


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    """What is known of a document besides its text."""

    id: str
    collection: str
    title: str
    version: str
    """Of what it documents, or the beginning of its content's hash."""
    indexed_at: datetime
    source: str = ""
    """Where it came from: a path or a URL."""
    media_type: str = ""
    size_bytes: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DocumentStatus:
    """A document on its way in, or in."""

    id: str
    collection: str
    title: str
    status: Status
    progress: float
    """From 0 to 1: what is behind it of all the work that it needs."""
    created_at: datetime
    updated_at: datetime
    size_bytes: int = 0
    chunks: int = 0
    embedded: int = 0
    """Of the chunks: those that meaning finds."""
    error: str | None = None
    attempts: int = 0
    source: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Document:
    """A document with its text, as Markdown."""

    info: DocumentInfo
    text: str


@dataclass(frozen=True, slots=True)
class Passage:
    """A chunk of a document, in its place."""

    chunk_id: str
    section: str
    path: tuple[str, ...]
    page: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that matches a query; the higher the score, from 0 to 1, the better."""

    document: DocumentInfo
    chunk_id: str
    section: str
    path: tuple[str, ...]
    page: int | None
    text: str
    score: float
    anchor: str = ""
    """Where in the source it stands, as a link's fragment."""
    anchors: tuple[str, ...] = ()
    """The anchors of the sections that it lies in, from the top down, its own last."""


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for, and where."""

    query: str
    limit: int = 10
    mode: SearchMode = "hybrid"
    collections: tuple[str, ...] = ()
    """Ids; none means all that the tenant can read."""
    filters: Mapping[str, Any] | None = None
    semantic_weight: float | None = None
    """From 0 (words alone) to 1 (meaning alone), where the engine's own choice is not wanted."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Which documents are listed."""

    collection: str | None = None
    statuses: tuple[Status, ...] = ()
    """None means any."""
    offset: int = 0
    limit: int = 50
    newest_first: bool = False
    """By their last change; otherwise by their ids."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file on this machine."""

    path: Path
    name: str
    """Its path within the collection, with slashes."""
    root: Path | None = None
    """The folder that it may not lie outside of; None for the owner of this process, who may name any file."""


@dataclass(frozen=True, slots=True)
class UrlSource:
    """A page or file on the web."""

    url: str


@dataclass(frozen=True, slots=True)
class TextSource:
    """A text that came with the call: Markdown, or plain."""

    title: str
    text: str
    name: str = ""
    """Its path within the collection; made of the title when not given, and never that of another text."""


@dataclass(frozen=True, slots=True)
class ShelfSource:
    """A document that was converted already, by its handle."""

    handle: str
    name: str


Source = FileSource | UrlSource | TextSource | ShelfSource


@dataclass(frozen=True, slots=True)
class NewDocument:
    """What is to be brought in."""

    source: Source
    collection: str
    """The id of one that exists."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""


@dataclass(frozen=True, slots=True)
class PastSearch:
    """A search that somebody made."""

    query: str
    collection: str
    results: int
    at: datetime


@dataclass(frozen=True, slots=True)
class TenantInfo:
    """How much a tenant has here."""

    id: TenantId
    documents: int
    collections: int
    bytes: int
    """Of its documents, as they came."""


class NotToBeRetried(ToolFailure):
    """A document that has not failed, or that was not brought in from here, is not brought in anew."""


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """What an engine's own model wrote. Its citation `[1]` means the first of the hits."""

    text: str
    hits: tuple[Hit, ...]
    """What it was written from; without any, nothing was found, and no model was asked."""
    model: str


@runtime_checkable
class Answering(Protocol):
    """An engine that writes answers itself."""

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
        """An answer from the passages that the search finds, each of which the tenant can read."""
        ...


class Engine(Protocol):
    """Documents of tenants: brought in, found and read."""

    @property
    def lacks(self) -> frozenset[str]:
        """The promises of this port that the engine cannot keep, by the names below."""
        ...

    async def search(self, tenant: TenantId, search: Search) -> Sequence[Hit]:
        """The best passages, at most one a section, best first."""
        ...

    async def read(self, tenant: TenantId, document_id: str) -> Document | None:
        """A document by its id, or None."""
        ...

    async def open(self, tenant: TenantId, document_id: str) -> Shelf | None:
        """A document by its id, to be read in parts and closed; or None."""
        ...

    async def info(self, tenant: TenantId, document_id: str) -> DocumentInfo | None:
        """What is known of a document besides its text, or None; None too before it has come in."""
        ...

    async def window(
        self, tenant: TenantId, document_id: str, chunk_id: str, *, before: int, after: int
    ) -> Sequence[Passage] | None:
        """The chunks around one that a search gave, in reading order; None when the document has no such chunk."""
        ...

    async def document_ids(self, tenant: TenantId, *, prefix: str = "", limit: int = 100) -> Sequence[str]:
        """Ids that begin with the prefix, in order."""
        ...

    async def ingest(self, tenant: TenantId, documents: Sequence[NewDocument]) -> Sequence[DocumentStatus]:
        """Take documents on; once this returns, they are not forgotten. The work goes on in the background."""
        ...

    async def retry(self, tenant: TenantId, document_id: str) -> DocumentStatus | None:
        """Have a document that has failed brought in again, as if for the first time; None when there is none.

        Raises NotToBeRetried for one that is under way or in.
        """
        ...

    async def sync_folder(
        self,
        tenant: TenantId,
        collection: str,
        folder: Path,
        documents: Sequence[NewDocument],
        *,
        unseen: Sequence[str] = (),
    ) -> FolderSync:
        """Make the collection hold these files of the folder: unchanged ones are not touched, missing ones go.

        Beneath `unseen`, paths within the collection, nobody could look: what was there stays. `.` is all of it.
        """
        ...

    async def wait(self, tenant: TenantId, document_ids: Sequence[str], *, seconds: float) -> Sequence[DocumentStatus]:
        """How the documents are once any of them has changed, or when the time is up."""
        ...

    async def status(self, tenant: TenantId, document_id: str) -> DocumentStatus | None:
        """How a document is, or None."""
        ...

    async def documents(self, tenant: TenantId, listing: Listing) -> tuple[Sequence[DocumentStatus], int]:
        """Some documents, and how many match in all."""
        ...

    async def delete(self, tenant: TenantId, document_id: str) -> bool:
        """Remove a document for good; whether it was there."""
        ...

    async def collections(self, tenant: TenantId) -> Sequence[CollectionInfo]:
        """Every collection that the tenant can read, its own first, in the order of their ids."""
        ...

    async def create_collection(
        self, tenant: TenantId, name: str, *, description: str = "", version: str = ""
    ) -> CollectionInfo:
        """The collection of this name, made when it is not there yet."""
        ...

    async def delete_collection(self, tenant: TenantId, collection: str) -> bool:
        """Remove a collection with all its documents; whether it was there."""
        ...

    def sets(self, tenant: TenantId) -> Sequence[CollectionInfo]:
        """The collections that the tenant can search; from memory, so that it costs nothing to ask."""
        ...

    def revision(self, tenant: TenantId) -> Hashable:
        """Another value whenever the tenant may find something else than before; costs next to nothing to ask."""
        ...

    async def remember(self, tenant: TenantId, user: UserId, search: PastSearch) -> None:
        """Keep a search in the user's history."""
        ...

    async def history(self, tenant: TenantId, user: UserId, limit: int = 10) -> Sequence[PastSearch]:
        """The user's last searches, newest first."""
        ...

    async def reindex(self, tenant: TenantId) -> None:
        """Make whatever is derived from the tenant's documents anew; till it is done, searches find what they did."""
        ...

    async def tenants(self) -> Sequence[TenantInfo]:
        """Whoever has something here, in the order of their ids; what all share is nobody's. For administrators."""
        ...

    async def waiting(self) -> Mapping[Status, int]:
        """How many documents this desk is bringing in, of all tenants that this process knows of: by each status that
        is under way, also where there are none; raises EngineError when they cannot be counted."""
        ...

    def listen(self, listener: Callable[[TenantId], None]) -> None:
        """Have `listener` called with a tenant whenever that tenant's documents or collections have changed."""
        ...

    async def check(self) -> str:
        """A few words for people on how the engine is; raises EngineError when it cannot answer."""
        ...


LACKS_REINDEX = "reindex"
"""Of an engine's `lacks`: it cannot make its index anew, because that is kept somewhere else."""

LACKS_SHARED = "shared"
"""Of an engine's `lacks`: it has no documents that everybody can read."""


@dataclass(frozen=True, slots=True)
class FolderSync:
    """What bringing a folder up to date came to."""

    new: Sequence[str] = ()
    changed: Sequence[str] = ()
    unchanged: int = 0
    removed: Sequence[str] = ()
