"""How a row says where a document comes from, and what it is called: by its place in its collection."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from refdesk.documents.model import slug_of
from refdesk.engines.base import FileSource, ShelfSource, Source, TextSource, UrlSource
from refdesk.engines.storage.rows import digest_of
from refdesk.errors import CannotFetch
from refdesk.validation import shortened

MAX_DOCUMENT_ID = 500
"""Characters; a longer path keeps its end, which tells documents apart."""

_URI = "file://"


@dataclass(frozen=True, slots=True)
class Asked:
    """A document that is asked for, as its row says it."""

    name: str
    kind: str
    source: str
    title: str
    root: str = ""
    given: bytes | None = None
    digest: str = ""
    """Of what is given, where that is known before it is read."""

    @classmethod
    def of(cls, source: Source) -> Asked:
        """The row of a source."""
        match source:
            case FileSource(path, name, root):
                return cls(name, "file", _written(path), path.name, str(root) if root else "")
            case UrlSource(url):
                return cls(_name_of_url(url), "url", url, url)
            case ShelfSource(handle, name):
                return cls(name, "shelf", handle, name)
            case TextSource(title, text, name):
                body = _titled(title, text).encode("utf-8", "replace")
                return cls(name or slug_of(title) or "text", "text", "", title, "", body, digest_of(body))


def _titled(title: str, text: str) -> str:
    """A text under its title, which is also its first heading."""
    return text if text.lstrip().startswith("# ") else f"# {title}\n\n{text}"


def _written(path: Path) -> str:
    """A path as text; one whose bytes are no text, as its URI."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return path.absolute().as_uri()
    return str(path)


def path_of(source: str) -> Path:
    """The path that `_written` wrote."""
    return Path(os.fsdecode(unquote_to_bytes(source.removeprefix(_URI)))) if source.startswith(_URI) else Path(source)


def as_text(name: str) -> str:
    """A name whose bytes may be no text, told apart from every other."""
    return name.encode("utf-8", "backslashreplace").decode()


def _name_of_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError as error:
        raise CannotFetch(f"{shortened(url)!r} is not a valid URL: {error}.") from error
    path = parts.path.strip("/") or "index"
    query = f"-{digest_of(parts.query.encode())[:8]}" if parts.query else ""
    return f"{parts.hostname or 'web'}{port}/{path}{query}"


def document_id(collection: str, name: str) -> str:
    """The id of a document from its path within its collection; a path that cannot be kept as it is gets a digest."""
    given = "/".join(part for part in as_text(name).split("/") if part not in ("", ".", "..")) or "document"
    clean = _clean(given)[-MAX_DOCUMENT_ID:]
    told_apart = "" if clean == given else f"-{digest_of(given.encode())[:8]}"
    return f"{collection}/{clean}{told_apart}"


def is_beneath(id: str, collection: str, names: Sequence[str]) -> bool:
    """Whether a document has one of these names within its collection, or one that begins with such a folder's."""
    return any(
        name == "." or id == document_id(collection, name) or id.startswith(f"{collection}/{_clean(as_text(name))}/")
        for name in names
    )


def _clean(name: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f#]", "-", name)


def stamp_of(path: Path) -> str:
    """What a glance at a file shows; empty when there is none to glance at."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return stamp_from(found)


def stamp_from(found: os.stat_result) -> str:
    """A file's stamp: it differs whenever the file was written."""
    return f"{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}:{found.st_ino}"
