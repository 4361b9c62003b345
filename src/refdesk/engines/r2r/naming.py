"""Encoding of names, descriptions and chunks in R2R. Pure functions.

In R2R, the service account owns everything. The tenant of a collection is part of its name: unmarked collections belong
to the tenant `default`, others to the tenant in the mark. The version is in the last line of a description. A chunk's
position in its document (section, page, headings) is its first line, since R2R stores nothing else for a chunk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote
from uuid import NAMESPACE_URL, UUID, uuid5

import orjson

from refdesk.calls import DEFAULT_TENANT, TenantId
from refdesk.documents.model import Chunk

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


@dataclass(frozen=True, slots=True)
class ChunkPosition:
    """Position of a chunk in its document."""

    section: str
    path: tuple[str, ...] = ()
    first_page: int | None = None
    last_page: int | None = None
    anchors: tuple[str, ...] = ()

    def to_line(self) -> str:
        """Return the line written above a chunk's text: `§food p3-3: Foxes › Food`."""
        pages = f" p{self.first_page}-{self.last_page}" if self.first_page else ""
        anchors = f" #{','.join(quote(each, safe='') for each in self.anchors)}" if any(self.anchors) else ""
        path = f": {' › '.join(map(_escape_title, self.path))}" if self.path else ""
        return f"§{self.section}{pages}{anchors}{path}"

    @classmethod
    def from_line(cls, line: str) -> ChunkPosition | None:
        """Parse such a line, or return None."""
        match = _POSITION_LINE.fullmatch(line)
        if match is None:
            return None
        section, first, last, anchors, path = match.groups()
        return cls(
            section,
            tuple(re.sub(r"\\(.)", r"\1", title) for title in path.split(" › ")) if path else (),
            int(first) if first else None,
            int(last) if last else None,
            tuple(map(unquote, anchors.split(","))) if anchors else (),
        )


def _escape_title(title: str) -> str:
    """Return a title on one line, with the separator escaped."""
    return re.sub(r"[\\›]", r"\\\g<0>", " ".join(title.split()))


def encode_chunks(chunks: Iterable[Chunk]) -> str:
    """Join chunks with blank lines, where R2R splits the text, and without blank lines inside chunks."""
    return "\n\n".join(_encode_chunk(chunk) for chunk in chunks)


def _encode_chunk(chunk: Chunk) -> str:
    position = ChunkPosition(chunk.section, chunk.path, chunk.first_page, chunk.last_page, chunk.anchors)
    text = f"{position.to_line()}\n{chunk.text.strip()}"
    # A space on an empty line has no meaning in Markdown, and keeps R2R from splitting there.
    return re.sub(r"\n(?=\n)", "\n ", strip_unsafe(text))


def decode_chunk(text: str) -> tuple[ChunkPosition, str]:
    """Return the position and text of a chunk ingested from here."""
    first, _, rest = text.partition("\n")
    position = ChunkPosition.from_line(first)
    if position is None:
        return ChunkPosition("start"), text
    return position, re.sub(r"\n (?=\n)", "\n", rest)


def pick_free_slug(slug: str, taken: Sequence[str] | set[str]) -> str:
    """Return the slug, with a number appended if it is taken."""
    number, free = 1, slug
    while free in taken:
        number += 1
        free = f"{slug}-{number}"
    return free
