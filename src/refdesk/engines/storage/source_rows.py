"""Mapping of document sources to rows and ids."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from refdesk.documents.model import slug_of
from refdesk.engines.base import ConvertedSource, FileSource, Source, TextSource, UrlSource
from refdesk.errors import CannotFetch
from refdesk.validation import shorten

MAX_DOCUMENT_ID = 500
"""Maximum length in characters. A longer path keeps its end, which distinguishes documents."""

_URI = "file://"


@dataclass(frozen=True, slots=True)
class SourceRow:
    """Columns of a document's row that describe its source."""

    name: str
    kind: str
    source: str
    title: str
    root: str = ""
    given: bytes | None = None
    digest: str = ""
    """SHA-256 of `given`, if known before reading."""

    @classmethod
    def from_source(cls, source: Source) -> SourceRow:
        """Build the row of a source."""
        match source:
            case FileSource(path, name, root):
                return cls(name, "file", _encode_path(path), path.name, str(root) if root else "")
            case UrlSource(url):
                return cls(derive_name(url), "url", url, url)
            case ConvertedSource(handle, name):
                return cls(name, "shelf", handle, name)
            case TextSource(title, text, name):
                body = _add_title(text, title).encode("utf-8", "replace")
                return cls(name or slug_of(title) or "text", "text", "", title, "", body, sha256(body).hexdigest())


def _add_title(text: str, title: str) -> str:
    """Return a Markdown text with its title: as its heading, or as front matter if it begins with another one."""
    if not text.lstrip().startswith("# "):
        return f"# {title}\n\n{text}"
    heading = text.lstrip().partition("\n")[0].strip("#*= \t\r")
    if heading == title.strip("#*= \t\r"):
        return text
    printable = "".join(character if character.isprintable() else " " for character in title)
    return f"---\ntitle: {json.dumps(printable, ensure_ascii=False)}\n---\n{text}"


def _encode_path(path: Path) -> str:
    """Return a path as text, or as a file URI if it isn't valid Unicode."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return path.absolute().as_uri()
    return str(path)


def decode_path(source: str) -> Path:
    """Decode a path written by `_encode_path`."""
    return Path(os.fsdecode(unquote_to_bytes(source.removeprefix(_URI)))) if source.startswith(_URI) else Path(source)


def escape_invalid(name: str) -> str:
    """Escape bytes of a name that aren't valid Unicode, so that names stay distinct."""
    return name.encode("utf-8", "backslashreplace").decode()


def derive_name(url: str) -> str:
    """Return the path in its collection of a document fetched from a URL: host and path."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError as error:
        raise CannotFetch(f"{shorten(url)!r} is not a valid URL: {error}.") from error
    path = parts.path.strip("/") or "index"
    query = f"-{sha256(parts.query.encode()).hexdigest()[:8]}" if parts.query else ""
    return f"{parts.hostname or 'web'}{port}/{path}{query}"


def make_document_id(collection: str, name: str) -> str:
    """Return a document's id from its path in the collection. A path that has to be changed gets a digest appended."""
    path = "/".join(part for part in escape_invalid(name).split("/") if part not in ("", ".", "..")) or "document"
    clean = _sanitize(path)[-MAX_DOCUMENT_ID:]
    suffix = "" if clean == path else f"-{sha256(path.encode()).hexdigest()[:8]}"
    return f"{collection}/{clean}{suffix}"


def pick_free(id: str, taken: Container[str]) -> str:
    """Return the id, with a number appended if it is taken."""
    number, free = 1, id
    while free in taken:
        number += 1
        free = f"{id}-{number}"
    return free


def is_below(id: str, collection: str, names: Sequence[str]) -> bool:
    """Whether a document has one of these paths in its collection, or is in one of these folders."""
    return any(
        name == "."
        or id == make_document_id(collection, name)
        or id.startswith(f"{collection}/{_sanitize(escape_invalid(name))}/")
        for name in names
    )


def _sanitize(name: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f#]", "-", name)


def read_stamp(path: Path) -> str:
    """Return the stamp of a file, or an empty string if it can't be read."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return format_stamp(found)


def format_stamp(found: os.stat_result) -> str:
    """Return a file's stamp, which changes whenever the file is written."""
    return f"{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}:{found.st_ino}"
