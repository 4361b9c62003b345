"""How our names are written at R2R, and read back. Pure.

R2R has one owner for everything, the service account. Whose a collection is stands in its name: the tenant `default`
has those without a mark, any other tenant those with its own. What is noted below the line of a description is ours.
A chunk's place in its document (section, page, headings) is its first line, since R2R keeps nothing else for a chunk.
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
_MARKED = re.compile(r"(.*) · refdesk:([\w.%~-]+)", re.DOTALL | re.ASCII)
_VERSIONED = re.compile(r"(.*?)\s*\[refdesk version ([^\]\n]*)\]\s*", re.DOTALL)
_PLACE = re.compile(r"§([^\s:]+)(?: p(\d+)-(\d+))?(?: #([^\s:]+))?(?:: (.*))?")
_UNSAFE = re.compile(r"[\x00\ud800-\udfff]")

MAX_TITLE = 200
"""Characters of a title as R2R shows it."""


def marked_name(tenant: TenantId, name: str) -> str:
    """A collection's name at R2R; no two tenants' names are ever the same there."""
    if tenant == DEFAULT_TENANT and not _MARKED.fullmatch(name):
        return name
    return f"{name} · refdesk:{quote(tenant, safe='', errors='surrogatepass')}"


def read_name(marked: str) -> tuple[TenantId, str]:
    """Whose collection it is, and what its owner calls it."""
    match = _MARKED.fullmatch(marked)
    if match is None:
        return DEFAULT_TENANT, marked
    return TenantId(unquote(match[2], errors="surrogatepass")), match[1]


def marked_description(description: str, version: str) -> str:
    """A collection's description at R2R, with the version of what is documented."""
    return f"{description}\n\n[refdesk version {quote(version, safe=' ')}]".strip() if version else description


def read_description(marked: str) -> tuple[str, str]:
    """A collection's description, and the version of what is documented."""
    match = _VERSIONED.fullmatch(marked)
    return (match[1], unquote(match[2])) if match else (marked, "")


def document_uuid(tenant: TenantId, collection: str, name: str, digest: str) -> str:
    """The id at R2R of what a document is in one state; known before it is sent, and the same for the same."""
    return str(uuid5(_NAMESPACE, orjson.dumps([_ascii(tenant), collection, _ascii(name), digest]).decode()))


def _ascii(text: str) -> str:
    return quote(text, safe="/", errors="surrogatepass")


def is_uuid(text: str) -> bool:
    """Whether a text is an id of R2R's, in its usual form."""
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


def without_unsafe(text: str) -> str:
    """A text without what R2R's database does not take: NUL, and halves of characters."""
    return _UNSAFE.sub(" ", text)


def all_without_unsafe(value: Any) -> Any:
    """The same for every text in a value of JSON."""
    match value:
        case str():
            return without_unsafe(value)
        case dict():
            return {without_unsafe(key): all_without_unsafe(each) for key, each in value.items()}
        case list():
            return [all_without_unsafe(each) for each in value]
    return value


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a chunk stands in its document."""

    section: str
    path: tuple[str, ...] = ()
    first_page: int | None = None
    last_page: int | None = None
    anchors: tuple[str, ...] = ()

    def line(self) -> str:
        """As it is written above a chunk's text: `§food p3-3: Foxes › Food`."""
        pages = f" p{self.first_page}-{self.last_page}" if self.first_page else ""
        anchors = f" #{','.join(quote(each, safe='') for each in self.anchors)}" if any(self.anchors) else ""
        path = f": {' › '.join(map(_written, self.path))}" if self.path else ""
        return f"§{self.section}{pages}{anchors}{path}"

    @classmethod
    def read(cls, line: str) -> Spot | None:
        """From such a line; None when it is none."""
        match = _PLACE.fullmatch(line)
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


def _written(title: str) -> str:
    """A title on one line, in which the sign that stands between titles does not stand by itself."""
    return re.sub(r"[\\›]", r"\\\g<0>", " ".join(title.split()))


def sent_text(chunks: Iterable[Chunk]) -> str:
    """A document as R2R is to cut it: a blank line between two chunks, and none within one."""
    return "\n\n".join(_sent_chunk(chunk) for chunk in chunks)


def _sent_chunk(chunk: Chunk) -> str:
    spot = Spot(chunk.section, chunk.path, chunk.first_page, chunk.last_page, chunk.anchors)
    text = f"{spot.line()}\n{chunk.text.strip()}"
    # A blank in an empty line means the same to whoever reads it, and keeps R2R from cutting there.
    return re.sub(r"\n(?=\n)", "\n ", without_unsafe(text))


def read_chunk(text: str) -> tuple[Spot, str]:
    """Where a chunk of ours stands, and its text."""
    first, _, rest = text.partition("\n")
    spot = Spot.read(first)
    if spot is None:
        return Spot("start"), text
    return spot, re.sub(r"\n (?=\n)", "\n", rest)


def free_slug(slug: str, taken: Sequence[str] | set[str]) -> str:
    """The slug, numbered when it is taken."""
    number, free = 1, slug
    while free in taken:
        number += 1
        free = f"{slug}-{number}"
    return free
