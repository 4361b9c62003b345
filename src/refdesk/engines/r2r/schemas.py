"""What is taken from R2R's answers: the few fields that are used, checked as they are read.

Everything else in them, such as password hashes and embeddings, is not even kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from refdesk.errors import EngineError

OWN = "refdesk"
"""The one key of a document's metadata that is ours; beside it, others' keys can be whatever they like."""


@dataclass(frozen=True, slots=True)
class RemoteCollection:
    """A collection at R2R."""

    id: str
    name: str
    description: str
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, fields: Any) -> RemoteCollection:
        """From R2R's JSON."""
        return cls(
            id=uuid_in(fields, "id"),
            name=text_in(fields, "name"),
            description=text_in(fields, "description"),
            created_at=moment_in(fields, "created_at"),
            updated_at=moment_in(fields, "updated_at"),
        )


@dataclass(frozen=True, slots=True)
class RemoteDocument:
    """A document at R2R, without its text."""

    id: str
    collections: tuple[str, ...]
    title: str
    status: str
    """R2R's own word for how far it is."""
    failure: str
    kind: str
    """Its file's extension, as R2R keeps it."""
    size: int
    created_at: datetime
    updated_at: datetime
    own: Mapping[str, Any] | None
    """What Refdesk has noted on it; None when somebody else brought it in."""
    metadata: Mapping[str, Any]

    @classmethod
    def of(cls, fields: Any) -> RemoteDocument:
        """From R2R's JSON."""
        metadata = mapping_in(fields, "metadata")
        size = fields.get("size_in_bytes")
        return cls(
            id=uuid_in(fields, "id"),
            collections=uuids_in(fields, "collection_ids"),
            title=text_in(fields, "title"),
            status=text_in(fields, "ingestion_status").lower(),
            failure=text_in(metadata, "failure"),
            kind=text_in(fields, "document_type"),
            size=size if isinstance(size, int) and size >= 0 else 0,
            created_at=moment_in(fields, "created_at"),
            updated_at=moment_in(fields, "updated_at"),
            own=own_in(metadata),
            metadata=strangers_metadata(metadata),
        )


@dataclass(frozen=True, slots=True)
class RemoteChunk:
    """A chunk at R2R: found, cited, or read."""

    id: str
    document: str
    collections: tuple[str, ...]
    text: str
    score: float
    order: int
    """Its place in the document, from 0."""
    page: int | None
    own: Mapping[str, Any] | None
    metadata: Mapping[str, Any]

    @classmethod
    def of(cls, fields: Any) -> RemoteChunk:
        """From R2R's JSON."""
        metadata = mapping_in(fields, "metadata")
        score, order, page = fields.get("score"), metadata.get("chunk_order"), metadata.get("page_number")
        return cls(
            id=uuid_in(fields, "id"),
            document=uuid_in(fields, "document_id"),
            collections=uuids_in(fields, "collection_ids"),
            text=_untitled(text_in(fields, "text"), metadata),
            score=float(score) if isinstance(score, int | float) else 0.0,
            order=order if isinstance(order, int) else 0,
            page=page if isinstance(page, int) and page > 0 else None,
            own=own_in(metadata),
            metadata=strangers_metadata(metadata),
        )


def _untitled(text: str, metadata: Mapping[str, Any]) -> str:
    """The text without the title that R2R puts above what a search finds."""
    return text.removeprefix(f"Document Title: {metadata.get('title')}\n\nText: ") if "title" in metadata else text


_R2R_KEYS = frozenset(
    "version chunk_order document_type associated_query semantic_rank full_text_rank collection_ids title page_number "
    "failure".split()
)
"""Of metadata: what R2R itself puts there."""


def own_in(metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Our own notes, if they are such: every value of the kind that it should be, since others can write them too."""
    own = metadata.get(OWN)
    if not isinstance(own, dict) or not text_in(own, "name"):
        return None
    moment = moment_in(own, "indexed_at").isoformat(timespec="milliseconds")
    return {
        **{name: text_in(own, name) for name in _TEXTS},
        **{name: _whole(own.get(name)) for name in ("size", "chunks")},
        "indexed_at": moment,
        "metadata": mapping_in(own, "metadata"),
    }


_TEXTS = ("name", "title", "version", "digest", "source", "media_type", "page_kind")


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**53 else 0


def strangers_metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """What others have noted on a document."""
    return {key: value for key, value in metadata.items() if key not in _R2R_KEYS and key != OWN}


def results_of(answer: Any) -> Any:
    """What R2R's envelope holds."""
    if not isinstance(answer, dict) or "results" not in answer:
        raise unusable("it has no results")
    return answer["results"]


def rows_of(answer: Any) -> tuple[list[dict[str, Any]], int]:
    """A page of a list, and how many there are in all."""
    rows = results_of(answer)
    total = answer.get("total_entries")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise unusable("its results are no list")
    return rows, total if isinstance(total, int) else len(rows)


def chunks_in(results: Any) -> Iterator[RemoteChunk]:
    """The chunks that a search found."""
    found = results.get("chunk_search_results") if isinstance(results, dict) else None
    if found is None:
        return
    if not isinstance(found, list):
        raise unusable("its chunks are no list")
    yield from map(RemoteChunk.of, found)


def uuid_in(fields: Any, name: str) -> str:
    """An id, in the one way in which we write it."""
    try:
        return str(UUID(fields[name]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise unusable(f"{name} is no id") from error


def uuids_in(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Ids; none where R2R gives nothing."""
    value = fields.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise unusable(f"{name} is no list")
    return tuple(uuid_in({name: each}, name) for each in value)


def text_in(fields: Mapping[str, Any], name: str) -> str:
    """A text; empty where R2R gives nothing."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def mapping_in(fields: Any, name: str) -> Mapping[str, Any]:
    """An object; empty where R2R gives nothing."""
    value = fields.get(name) if isinstance(fields, dict) else None
    return value if isinstance(value, dict) else {}


def moment_in(fields: Mapping[str, Any], name: str) -> datetime:
    """A time, in UTC; the beginning of time where R2R gives none."""
    try:
        moment = datetime.fromisoformat(text_in(fields, name))
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def unusable(why: str) -> EngineError:
    """R2R's answer is not what it should be."""
    return EngineError(f"R2R gave an answer that cannot be used: {why}. Check that r2r.api_url is an R2R server.")
