"""What R2R stores and returns: encoding of names, descriptions and chunks, and parsing of responses. Pure functions.

In R2R, the service account owns everything. The tenant of a collection is part of its name: unmarked collections belong
to the tenant `default`, others to the tenant in the mark. The version is in the last line of a description. A chunk's
position in its document (section, page, headings) is its first line, since R2R stores nothing else for a chunk.

Of a response, only the fields that are used are parsed, and validated. Everything else, such as password hashes and
embeddings, is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote, unquote
from uuid import NAMESPACE_URL, UUID, uuid5

import orjson
from pydantic import (
    AfterValidator,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

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

_R2R_KEYS = frozenset(
    "version chunk_order document_type associated_query semantic_rank full_text_rank collection_ids title page_number "
    "failure".split()
)
"""Metadata keys set by R2R itself."""

EPOCH = datetime.fromtimestamp(0, UTC)


def parse_uuid(value: Any) -> str:
    """Return an id in canonical form."""
    try:
        return str(UUID(value))
    except (TypeError, AttributeError) as error:
        raise ValueError("not a text") from error


def parse_text(value: Any) -> str:
    """Return a text, empty if missing."""
    return value if isinstance(value, str) else ""


def parse_mapping(value: Any) -> dict[str, Any]:
    """Return an object, empty if missing."""
    return value if isinstance(value, dict) else {}


def parse_time(value: Any) -> datetime:
    """Return a time in UTC, or the epoch if missing."""
    try:
        moment = datetime.fromisoformat(parse_text(value))
    except ValueError:
        return EPOCH
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def extract_foreign_metadata(metadata: Any) -> dict[str, Any]:
    """Return the metadata set by other users."""
    own_keys = _R2R_KEYS | {METADATA_KEY}
    return {key: value for key, value in parse_mapping(metadata).items() if key not in own_keys}


def _fall_back(default: Any) -> WrapValidator:
    """Return a validator that counts an invalid value as missing."""

    def validate(value: Any, parse: ValidatorFunctionWrapHandler) -> Any:
        try:
            return parse(value)
        except ValidationError:
            return default

    return WrapValidator(validate)


Id = Annotated[str, PlainValidator(parse_uuid)]
Ids = Annotated[tuple[Id, ...], BeforeValidator(lambda value: () if value is None else value)]
Text = Annotated[str, PlainValidator(parse_text)]
Object = Annotated[dict[str, Any], PlainValidator(parse_mapping)]
Time = Annotated[datetime, PlainValidator(parse_time)]
Count = Annotated[int, Field(strict=True, ge=0, lt=2**53), _fall_back(0)]
ForeignMetadata = Annotated[dict[str, Any], PlainValidator(extract_foreign_metadata)]


class RemoteObject(BaseModel):
    """Object in a response. Only its ids have to be valid; other users can write the rest of it."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def from_json(cls, fields: Any) -> Self:
        """Parse R2R's JSON."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            problem = error.errors(include_input=False)[0]
        name, *_ = problem["loc"] or ("id",)
        raise make_unusable_error(f"{name} isn't {'a list' if problem['type'] == 'tuple_type' else 'an id'}")


class OwnMetadata(RemoteObject):
    """Refdesk's metadata of a document."""

    name: Annotated[str, Field(strict=True, min_length=1)]
    title: Text = ""
    version: Text = ""
    digest: Text = ""
    source: Text = ""
    media_type: Text = ""
    page_kind: Annotated[Literal["page", "slide", "sheet", "estimated"], _fall_back("page")] = "page"
    size: Count = 0
    chunks: Count = 0
    indexed_at: Time = EPOCH
    metadata: Object = {}


Own = Annotated[OwnMetadata | None, _fall_back(None)]
"""Refdesk's metadata; None for foreign documents."""


class RemoteCollection(RemoteObject):
    """Collection in R2R."""

    id: Id
    name: Text = ""
    description: Text = ""
    created_at: Time = EPOCH
    updated_at: Time = EPOCH


class RemoteDocument(RemoteObject):
    """Document in R2R, without its text."""

    id: Id
    collections: Ids = Field((), validation_alias="collection_ids")
    title: Text = ""
    status: Annotated[Text, AfterValidator(str.lower)] = Field("", validation_alias="ingestion_status")
    """R2R's ingestion status."""
    failure: Text = Field("", validation_alias=AliasPath("metadata", "failure"))
    kind: Text = Field("", validation_alias="document_type")
    """File extension, as stored by R2R."""
    size: Count = Field(0, validation_alias="size_in_bytes")
    created_at: Time = EPOCH
    updated_at: Time = EPOCH
    own: Own = Field(None, validation_alias=AliasPath("metadata", METADATA_KEY))
    metadata: ForeignMetadata = {}


class RemoteChunk(RemoteObject):
    """Chunk in R2R."""

    id: Id
    document: Id = Field(validation_alias="document_id")
    collections: Ids = Field((), validation_alias="collection_ids")
    title: Any = Field(None, validation_alias=AliasPath("metadata", "title"))
    stored_text: Text = Field("", validation_alias="text")
    score: Annotated[float, Field(strict=True), _fall_back(0.0)] = 0.0
    order: Count = Field(0, validation_alias=AliasPath("metadata", "chunk_order"))
    """Position in the document, from 0."""
    page: Annotated[Annotated[int, Field(strict=True, gt=0)] | None, _fall_back(None)] = Field(
        None, validation_alias=AliasPath("metadata", "page_number")
    )
    own: Own = Field(None, validation_alias=AliasPath("metadata", METADATA_KEY))
    metadata: ForeignMetadata = {}

    @property
    def text(self) -> str:
        """Text without the title, which R2R prepends to search results."""
        return self.stored_text.removeprefix(f"Document Title: {self.title}\n\nText: ")


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
    found = parse_mapping(results).get("chunk_search_results")
    if found is None:
        return
    if not isinstance(found, list):
        raise make_unusable_error("its chunks aren't a list")
    yield from map(RemoteChunk.from_json, found)


def make_unusable_error(why: str) -> EngineError:
    """Return the error for an invalid response."""
    return EngineError(f"R2R's response is invalid: {why}. Check that r2r.api_url is an R2R server.")
