"""Encoding of names, descriptions and chunks in R2R. Pure functions.

In R2R, the service account owns everything. The tenant of a collection is part of its name: unmarked collections belong
to the tenant `default`, others to the tenant in the mark. The version is in the last line of a description. A chunk's
position in its document (section, page, headings) is its first line, since R2R stores nothing else for a chunk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
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
