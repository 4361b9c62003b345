"""The engine port: what the tools may ask of the place where documents live.

Every question names its tenant. A document of another tenant does not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from refdesk.calls import TenantId

SHARED = TenantId("")
"""The tenant whose documents everybody can read: what comes with Refdesk itself."""


@dataclass(frozen=True, slots=True)
class DocumentationSet:
    """A body of documentation that is indexed and refreshed together."""

    doc_type: str
    collection: str
    title: str
    version: str
    documents: int


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    """What is known of a document besides its text."""

    id: str
    doc_type: str
    title: str
    version: str
    indexed_at: datetime


@dataclass(frozen=True, slots=True)
class Document:
    """A document with its text."""

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
    """A passage that matches a query; the higher the score, the better."""

    document: DocumentInfo
    chunk_id: str
    section: str
    path: tuple[str, ...]
    page: int | None
    text: str
    score: float


class Engine(Protocol):
    """Search and reading, for one tenant at a time."""

    async def search(self, tenant: TenantId, query: str, *, limit: int, doc_type: str | None = None) -> Sequence[Hit]:
        """The best passages, at most one a section, best first."""
        ...

    async def read(self, tenant: TenantId, document_id: str) -> Document | None:
        """A document by its id, or None."""
        ...

    async def document_ids(self, tenant: TenantId, *, prefix: str = "", limit: int = 100) -> Sequence[str]:
        """Ids that begin with the prefix, in order."""
        ...

    async def window(
        self, tenant: TenantId, document_id: str, chunk_id: str, *, before: int, after: int
    ) -> Sequence[Passage] | None:
        """The chunks around one that a search gave, in reading order; None when the document has no such chunk."""
        ...

    def sets(self, tenant: TenantId) -> Sequence[DocumentationSet]:
        """The documentation sets that the tenant can search; from memory, so that it costs nothing to ask."""
        ...

    async def check(self) -> str:
        """A few words for people on how the engine is; raises EngineError when it cannot answer."""
        ...
