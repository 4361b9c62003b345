"""Sources of documents: files, folders, URLs, text, JSON Lines and documentation sets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refdesk.documents.file_names import clean_name
from refdesk.documents.ssrf import parse_url
from refdesk.engines.base import FileSource, NewDocument, Source, TextSource, UrlSource
from refdesk.errors import CannotFetch
from refdesk.ingest.folder_walk import SkippedPath, walk
from refdesk.ingest.recipes.recipe import find, names
from refdesk.validation import nearest_name, shorten

STANDARD_INPUT = "-"

RECIPE_PREFIX = "recipe:"
"""Prefix that selects a documentation set where a file has the same name."""

DEFAULT_COLLECTION = "default"
"""Collection for single documents when none is given."""

MAX_TITLE_LENGTH = 80
"""Characters of a text's first line used as its title."""

MAX_FILES = 1_000_000
"""Files per folder. More than that is probably a whole disk named by mistake."""


@dataclass(frozen=True, slots=True)
class SourceFailure:
    """A source that can't be used, and why."""

    name: str
    cause: str


@dataclass(frozen=True, slots=True)
class DocumentDefaults:
    """Version and metadata given to every document of one command."""

    version: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def build_document(self, source: Source, collection: str, extra: Mapping[str, Any] | None = None) -> NewDocument:
        """Build a document. The command's metadata overrides the document's own."""
        return NewDocument(source, collection, {**(extra or {}), **self.metadata}, self.version)


@dataclass(frozen=True, slots=True)
class FolderListing:
    """The documents of a folder and the paths that can't be read."""

    sources: Sequence[FileSource]
    skipped: Sequence[SkippedPath]
    unseen: Sequence[str]
    """Names of the skipped paths, whose documents stay in the collection."""


def list_folder(
    folder: Path,
    *,
    base: Path | None = None,
    root: Path | None = None,
    ignore: Sequence[str] = (),
    max_files: int = MAX_FILES,
    can_read: Callable[[Path], bool] = lambda _: True,
) -> FolderListing:
    """List the documents of a folder, named relative to `base` and confined to `root`, by default the folder itself."""
    base, root = base or folder, root or folder
    prefix = "" if base == folder else f"{folder.relative_to(base).as_posix()}/"
    sources: list[FileSource] = []
    skipped: list[SkippedPath] = []
    for found in walk(folder, ignore=ignore, max_files=max_files):
        if isinstance(found, SkippedPath):
            skipped.append(found)
        elif can_read(found.path):
            sources.append(FileSource(found.path, prefix + found.relative, root))
    unseen = [(folder / path.relative).relative_to(base).as_posix() for path in skipped]
    return FolderListing(sources, skipped, unseen)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder to sync a collection with."""

    path: Path
    collection: str
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JsonLinesFile:
    """A JSON Lines file with one document per line."""

    path: Path
    collection: str

    def iter_documents(self, collection: str, defaults: DocumentDefaults) -> Iterator[NewDocument | SourceFailure]:
        """Yield the documents one at a time, or a failure for an invalid line."""
        try:
            with self.path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield self._parse_line(line, f"{self.path}, line {number}", collection, defaults)
        except OSError as error:
            yield SourceFailure(str(self.path), f"It can't be read: {error.strerror or error}.")

    def _parse_line(
        self, line: bytes, origin: str, collection: str, defaults: DocumentDefaults
    ) -> NewDocument | SourceFailure:
        try:
            row = json.loads(line)
        except ValueError as error:
            return SourceFailure(origin, f"Invalid JSON: {error}.")
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            return SourceFailure(origin, 'Not an object with a "text".')
        name = str(row.pop("_id", row.pop("id", "")))
        text, title = row.pop("text"), str(row.pop("title", "") or "")
        more = row.pop("metadata", None)
        extra = {**row, **more} if isinstance(more, dict) else row
        return defaults.build_document(TextSource(title or _derive_title(text), text, name), collection, extra)


@dataclass(frozen=True, slots=True)
class SingleDocument:
    """A single document."""

    source: Source
    collection: str

    def iter_documents(self, collection: str, defaults: DocumentDefaults) -> Iterator[NewDocument | SourceFailure]:
        """Yield the document."""
        yield defaults.build_document(self.source, collection)


@dataclass(frozen=True, slots=True)
class DocumentationSet:
    """A documentation set that has a recipe."""

    name: str


ResolvedSource = Folder | JsonLinesFile | SingleDocument | DocumentationSet | SourceFailure


def is_url(text: str) -> bool:
    """Whether the source is an HTTP URL."""
    return re.match(r"https?://", text, re.IGNORECASE) is not None


def build_url_source(url: str) -> UrlSource:
    """Return a URL source; raise CannotFetch if the URL can never be fetched."""
    # A percent sign in the host, which a stray bracket is escaped to, is never valid.
    if "%" in (parse_url(url).raw_host or ""):
        raise CannotFetch(f"{shorten(url)!r} is not a valid URL. Give one such as https://example.com/guide.")
    return UrlSource(url)


def resolve_sources(
    sources: Sequence[str],
    *,
    collection: str | None,
    ignore: Sequence[str],
    title: str | None,
    standard_input: str,
    notify: Callable[[str], None],
) -> list[ResolvedSource]:
    """Resolve each source by its name. `notify` is called with messages about ambiguous names."""
    single = collection or DEFAULT_COLLECTION
    resolved: list[ResolvedSource] = []
    for source in sources:
        path = Path(source)
        if source == STANDARD_INPUT:
            text = TextSource(title or _derive_title(standard_input), standard_input)
            is_empty = not standard_input.strip()
            resolved.append(
                SourceFailure(source, "Standard input is empty.") if is_empty else SingleDocument(text, single)
            )
        elif is_url(source):
            try:
                resolved.append(SingleDocument(build_url_source(source), single))
            except CannotFetch as failure:
                resolved.append(SourceFailure(source, failure.detail))
        elif (known := _resolve_documentation_set(source, notify)) is not None:
            resolved.append(known)
        elif path.is_dir():
            folder = path.resolve()
            resolved.append(Folder(folder, collection or folder.name or DEFAULT_COLLECTION, tuple(ignore)))
        else:
            resolved.append(_resolve_file(path, collection))
    return resolved


def _resolve_documentation_set(source: str, notify: Callable[[str], None]) -> ResolvedSource | None:
    """Return the named documentation set. A file of the same name takes precedence, with a message."""
    name = source.removeprefix(RECIPE_PREFIX)
    recipe = find(name)
    if source != name and recipe is None:
        nearest = nearest_name(name.lower(), names())
        hint = f"did you mean {nearest}?" if nearest else f"there are {', '.join(names())}"
        return SourceFailure(source, f"Unknown documentation set; {hint}")
    if recipe is None:
        return None
    if source == name and os.path.lexists(source):
        notify(f"adding the file or folder {source}; {RECIPE_PREFIX}{recipe.name} is {recipe.title}")
        return None
    return DocumentationSet(recipe.name)


def _resolve_file(path: Path, collection: str | None) -> ResolvedSource:
    try:
        # Follows symbolic links, as reading the file will.
        path.stat()
    except OSError as error:
        return SourceFailure(str(path), f"It can't be opened: {error.strerror or error}.")
    if not path.is_file():
        return SourceFailure(str(path), "It is neither a file nor a folder.")
    if path.suffix.lower() == ".jsonl":
        return JsonLinesFile(path, collection or path.stem)
    source = FileSource(Path(os.path.abspath(path)), clean_name(path.name) or "document")
    return SingleDocument(source, collection or DEFAULT_COLLECTION)


def _derive_title(text: str) -> str:
    lines = (line.strip("#*= \t\r") for line in text.splitlines())
    return next((line[:MAX_TITLE_LENGTH] for line in lines if line), "Untitled")
