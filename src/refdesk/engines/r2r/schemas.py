"""Parsing of R2R's responses: only the fields that are used, validated.

Everything else, such as password hashes and embeddings, is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from refdesk.errors import EngineError

METADATA_KEY = "refdesk"
"""Metadata key with Refdesk's data. All other keys belong to other users."""


@dataclass(frozen=True, slots=True)
class RemoteCollection:
    """Collection in R2R."""

    id: str
    name: str
    description: str
    created_at: datetime
    updated_at: datetime

    @classmethod
    def from_json(cls, fields: Any) -> RemoteCollection:
        """Parse R2R's JSON."""
        return cls(
            id=parse_uuid(fields, "id"),
            name=parse_text(fields, "name"),
            description=parse_text(fields, "description"),
            created_at=parse_time(fields, "created_at"),
            updated_at=parse_time(fields, "updated_at"),
        )


@dataclass(frozen=True, slots=True)
class RemoteDocument:
    """Document in R2R, without its text."""

    id: str
    collections: tuple[str, ...]
    title: str
    status: str
    """R2R's ingestion status."""
    failure: str
    kind: str
    """File extension, as stored by R2R."""
    size: int
    created_at: datetime
    updated_at: datetime
    own: Mapping[str, Any] | None
    """Refdesk's metadata; None for foreign documents."""
    metadata: Mapping[str, Any]

    @classmethod
    def from_json(cls, fields: Any) -> RemoteDocument:
        """Parse R2R's JSON."""
        metadata = parse_mapping(fields, "metadata")
        size = fields.get("size_in_bytes")
        return cls(
            id=parse_uuid(fields, "id"),
            collections=parse_uuids(fields, "collection_ids"),
            title=parse_text(fields, "title"),
            status=parse_text(fields, "ingestion_status").lower(),
            failure=parse_text(metadata, "failure"),
            kind=parse_text(fields, "document_type"),
            size=size if isinstance(size, int) and size >= 0 else 0,
            created_at=parse_time(fields, "created_at"),
            updated_at=parse_time(fields, "updated_at"),
            own=parse_own_metadata(metadata),
            metadata=extract_foreign_metadata(metadata),
        )


@dataclass(frozen=True, slots=True)
class RemoteChunk:
    """Chunk in R2R."""

    id: str
    document: str
    collections: tuple[str, ...]
    text: str
    score: float
    order: int
    """Position in the document, from 0."""
    page: int | None
    own: Mapping[str, Any] | None
    metadata: Mapping[str, Any]

    @classmethod
    def from_json(cls, fields: Any) -> RemoteChunk:
        """Parse R2R's JSON."""
        metadata = parse_mapping(fields, "metadata")
        score, order, page = fields.get("score"), metadata.get("chunk_order"), metadata.get("page_number")
        return cls(
            id=parse_uuid(fields, "id"),
            document=parse_uuid(fields, "document_id"),
            collections=parse_uuids(fields, "collection_ids"),
            # R2R prepends the title to search results.
            text=parse_text(fields, "text").removeprefix(f"Document Title: {metadata.get('title')}\n\nText: "),
            score=float(score) if isinstance(score, int | float) else 0.0,
            order=order if isinstance(order, int) else 0,
            page=page if isinstance(page, int) and page > 0 else None,
            own=parse_own_metadata(metadata),
            metadata=extract_foreign_metadata(metadata),
        )


_R2R_KEYS = frozenset(
    "version chunk_order document_type associated_query semantic_rank full_text_rank collection_ids title page_number "
    "failure".split()
)
"""Metadata keys set by R2R itself."""


def parse_own_metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return Refdesk's metadata with validated types, since other users can write it too."""
    own = metadata.get(METADATA_KEY)
    if not isinstance(own, dict) or not parse_text(own, "name"):
        return None
    moment = parse_time(own, "indexed_at").isoformat(timespec="milliseconds")
    return {
        **{name: parse_text(own, name) for name in _TEXT_FIELDS},
        **{name: _parse_count(own.get(name)) for name in ("size", "chunks")},
        "indexed_at": moment,
        "metadata": parse_mapping(own, "metadata"),
    }


_TEXT_FIELDS = ("name", "title", "version", "digest", "source", "media_type", "page_kind")


def _parse_count(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**53 else 0


def extract_foreign_metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata set by other users."""
    return {key: value for key, value in metadata.items() if key not in _R2R_KEYS and key != METADATA_KEY}


def unwrap_results(answer: Any) -> Any:
    """Return the content of R2R's response envelope."""
    if not isinstance(answer, dict) or "results" not in answer:
        raise make_unusable_error("it has no results")
    return answer["results"]


def unwrap_rows(answer: Any) -> tuple[list[dict[str, Any]], int]:
    """Return a page of a list, and the total number of rows."""
    rows = unwrap_results(answer)
    total = answer.get("total_entries")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise make_unusable_error("its results aren't a list")
    return rows, total if isinstance(total, int) else len(rows)


def parse_chunks(results: Any) -> Iterator[RemoteChunk]:
    """Yield the chunks of a search result."""
    found = results.get("chunk_search_results") if isinstance(results, dict) else None
    if found is None:
        return
    if not isinstance(found, list):
        raise make_unusable_error("its chunks aren't a list")
    yield from map(RemoteChunk.from_json, found)


def parse_uuid(fields: Any, name: str) -> str:
    """Return an id in canonical form."""
    try:
        return str(UUID(fields[name]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise make_unusable_error(f"{name} isn't an id") from error


def parse_uuids(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return a list of ids, empty if missing."""
    value = fields.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise make_unusable_error(f"{name} isn't a list")
    return tuple(parse_uuid({name: each}, name) for each in value)


def parse_text(fields: Mapping[str, Any], name: str) -> str:
    """Return a text, empty if missing."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def parse_mapping(fields: Any, name: str) -> Mapping[str, Any]:
    """Return an object, empty if missing."""
    value = fields.get(name) if isinstance(fields, dict) else None
    return value if isinstance(value, dict) else {}


def parse_time(fields: Mapping[str, Any], name: str) -> datetime:
    """Return a time in UTC, or the epoch if missing."""
    try:
        moment = datetime.fromisoformat(parse_text(fields, name))
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def make_unusable_error(why: str) -> EngineError:
    """Return the error for an invalid response."""
    return EngineError(f"R2R's response is invalid: {why}. Check that r2r.api_url is an R2R server.")
