"""What R2R stores and returns: encoding of names, descriptions and chunks, and parsing of responses. Pure functions.

In R2R, the service account owns everything. The tenant of a collection is part of its name: unmarked collections belong
to the tenant `default`, others to the tenant in the mark. The version is in the last line of a description. A chunk's
position in its document (section, page, headings) is its first line, since R2R stores nothing else for a chunk.

Of a response, only the fields that are used are parsed, and validated. Everything else, such as password hashes and
embeddings, is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote
from uuid import NAMESPACE_URL, UUID, uuid5

import orjson

from refdesk.calls import DEFAULT_TENANT, TenantId
from refdesk.documents.model import Chunk
from refdesk.errors import EngineError

_NAMESPACE = uuid5(NAMESPACE_URL, "https://refdesk.dev/r2r")
_MARKED_NAME = re.compile(r"(.*) · refdesk:([\w.%~-]+)", re.DOTALL | re.ASCII)
_VERSIONED_DESCRIPTION = re.compile(r"(.*?)\s*\[refdesk version ([^\]\n]*)\]\s*", re.DOTALL)
_POSITION_LINE = re.compile(r"§([^\s:]+)(?: p(\d+)-(\d+))?(?: #([^\s:]+))?(?:: (.*))?")
_UNSAFE = re.compile(r"[\x00\ud800-\udfff]")

MAX_TITLE = 200
"""Maximum length of a title in R2R."""


def encode_name(tenant: TenantId, name: str) -> str:
    """Return a collection's name in R2R, which is unique among tenants."""
    if tenant == DEFAULT_TENANT and not _MARKED_NAME.fullmatch(name):
        return name
    return f"{name} · refdesk:{quote(tenant, safe='', errors='surrogatepass')}"


def decode_name(marked: str) -> tuple[TenantId, str]:
    """Return the tenant and name of a collection."""
    match = _MARKED_NAME.fullmatch(marked)
    if match is None:
        return DEFAULT_TENANT, marked
    return TenantId(unquote(match[2], errors="surrogatepass")), match[1]


def encode_description(description: str, version: str) -> str:
    """Return a collection's description in R2R, including the version."""
    return f"{description}\n\n[refdesk version {quote(version, safe=' ')}]".strip() if version else description


def decode_description(marked: str) -> tuple[str, str]:
    """Return a collection's description and version."""
    match = _VERSIONED_DESCRIPTION.fullmatch(marked)
    return (match[1], unquote(match[2])) if match else (marked, "")


def make_document_uuid(tenant: TenantId, collection: str, name: str, digest: str) -> str:
    """Return the R2R id of one version of a document. Deterministic, so it is known before sending."""
    return str(uuid5(_NAMESPACE, orjson.dumps([_quote(tenant), collection, _quote(name), digest]).decode()))


def _quote(text: str) -> str:
    return quote(text, safe="/", errors="surrogatepass")


def is_uuid(text: str) -> bool:
    """Whether a text is a UUID in canonical form."""
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


def strip_unsafe(text: str) -> str:
    """Replace characters that R2R's database rejects: NUL and surrogates."""
    return _UNSAFE.sub(" ", text)


def strip_unsafe_values(value: Any) -> Any:
    """Apply `strip_unsafe` to all texts in a JSON value."""
    match value:
        case str():
            return strip_unsafe(value)
        case dict():
            return {strip_unsafe(key): strip_unsafe_values(each) for key, each in value.items()}
        case list():
            return [strip_unsafe_values(each) for each in value]
    return value


def format_position(chunk: Chunk) -> str:
    """Return the line written above a chunk's text: `§food p3-3: Foxes › Food`."""
    pages = f" p{chunk.first_page}-{chunk.last_page}" if chunk.first_page else ""
    anchors = f" #{','.join(quote(each, safe='') for each in chunk.anchors)}" if any(chunk.anchors) else ""
    # Each title is on one line, with the separator escaped.
    titles = [re.sub(r"[\\›]", r"\\\g<0>", " ".join(title.split())) for title in chunk.path]
    return f"§{chunk.section}{pages}{anchors}{': ' if titles else ''}{' › '.join(titles)}"


def encode_chunks(chunks: Iterable[Chunk]) -> str:
    """Join chunks with blank lines, where R2R splits the text, and without blank lines inside chunks."""
    texts = (strip_unsafe(f"{format_position(chunk)}\n{chunk.text.strip()}") for chunk in chunks)
    # A space on an empty line has no meaning in Markdown, and keeps R2R from splitting there.
    return "\n\n".join(re.sub(r"\n(?=\n)", "\n ", text) for text in texts)


def decode_chunk(number: int, text: str) -> Chunk:
    """Return a chunk ingested from here, without its number of tokens."""
    first_line, _, rest = text.partition("\n")
    match = _POSITION_LINE.fullmatch(first_line)
    if match is None:
        return Chunk(f"c{number}", text, (), "start", None, None, 0)
    section, first, last, anchors, path = match.groups()
    return Chunk(
        id=f"c{number}",
        text=re.sub(r"\n (?=\n)", "\n", rest),
        path=tuple(re.sub(r"\\(.)", r"\1", title) for title in path.split(" › ")) if path else (),
        section=section,
        first_page=int(first) if first else None,
        last_page=int(last) if last else None,
        tokens=0,
        anchors=tuple(map(unquote, anchors.split(","))) if anchors else (),
    )


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
