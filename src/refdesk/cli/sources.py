"""What a person names to be brought in, as documents for the engine: files, folders, URLs, text, lines of JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refdesk import recipes
from refdesk.cli.inputs import Failure, documents_under, is_url
from refdesk.cli.parser.arguments import Misuse
from refdesk.cli.terminal import say
from refdesk.documents.file_names import clean_name
from refdesk.documents.folders import LeftOut
from refdesk.engines.base import FileSource, NewDocument, Source, TextSource
from refdesk.errors import CannotFetch
from refdesk.tools.ingestion import url_source
from refdesk.validation import nearest_name

STANDARD_INPUT = "-"

RECIPE = "recipe:"
"""Before the name of a documentation set, where a file has that name too."""

DEFAULT_COLLECTION = "default"
"""Where single documents go when no collection is named."""

LONGEST_TITLE = 80
"""Characters of a text's first line that make its title when none is given."""


@dataclass(frozen=True, slots=True)
class Label:
    """What every document of one command is given."""

    version: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def document(self, source: Source, collection: str, own: Mapping[str, Any] | None = None) -> NewDocument:
        """A document from this source; its own metadata stand beside what all are given, and give way to it."""
        return NewDocument(source, collection, {**(own or {}), **self.metadata}, self.version)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that a collection is to be in step with."""

    path: Path
    collection: str
    ignore: tuple[str, ...] = ()

    def documents(self, collection: str, label: Label) -> tuple[list[NewDocument], list[LeftOut]]:
        """Its documents as they are now, and what could not be looked at."""
        found, left_out = documents_under(self.path, self.ignore)
        return [label.document(self.file(one.path, one.relative), collection) for one in found], left_out

    def file(self, path: Path, name: str) -> FileSource:
        """A file of this folder, which is not read once it leads out of it."""
        return FileSource(path, name, self.path)

    def failure(self, left_out: LeftOut) -> Failure:
        """What could not be looked at, for the one who named the folder."""
        return Failure(str(self.path / left_out.relative), left_out.reason)


@dataclass(frozen=True, slots=True)
class Objects:
    """A file that holds one document a line, as JSON."""

    path: Path
    collection: str

    def documents(self, collection: str, label: Label) -> Iterator[NewDocument | Failure]:
        """Its documents, one at a time, or what is wrong with a line."""
        try:
            with self.path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield self._document(line, f"{self.path}, line {number}", collection, label)
        except OSError as error:
            yield Failure(str(self.path), f"It cannot be read: {error.strerror or error}.")

    def _document(self, line: bytes, place: str, collection: str, label: Label) -> NewDocument | Failure:
        try:
            row = json.loads(line)
        except ValueError as error:
            return Failure(place, f"This is no JSON: {error}.")
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            return Failure(place, 'This is no object with a "text".')
        name = str(row.pop("_id", row.pop("id", "")))
        text, title = row.pop("text"), str(row.pop("title", "") or "")
        more = row.pop("metadata", None)
        own = {**row, **more} if isinstance(more, dict) else row
        return label.document(TextSource(title or _first_line(text), text, name), collection, own)


@dataclass(frozen=True, slots=True)
class Single:
    """One document."""

    source: Source
    collection: str

    def documents(self, collection: str, label: Label) -> Iterator[NewDocument | Failure]:
        """It alone."""
        yield label.document(self.source, collection)


@dataclass(frozen=True, slots=True)
class DocumentationSet:
    """Well-known documentation, which a recipe says how to get."""

    name: str


Named = Folder | Objects | Single | DocumentationSet | Failure


def named(
    sources: Sequence[str], *, collection: str | None, ignore: Sequence[str], title: str | None, standard_input: str
) -> list[Named]:
    """What each of the words on the command line stands for."""
    single = collection or DEFAULT_COLLECTION
    found: list[Named] = []
    for source in sources:
        path = Path(source)
        if source == STANDARD_INPUT:
            found.append(_text(standard_input, title, single))
        elif is_url(source):
            found.append(_url(source, single))
        elif (known := _documentation_set(source)) is not None:
            found.append(known)
        elif path.is_dir():
            folder = path.resolve()
            found.append(Folder(folder, collection or folder.name or DEFAULT_COLLECTION, tuple(ignore)))
        else:
            found.append(_file(path, collection))
    return found


def _documentation_set(source: str) -> Named | None:
    """A set that is named as one, or by a word that is no file; a file of the same name wins, and that is said."""
    name = source.removeprefix(RECIPE)
    recipe = recipes.find(name)
    if source != name and recipe is None:
        nearest = nearest_name(name.lower(), recipes.names())
        hint = f"did you mean {nearest}?" if nearest else f"there are {', '.join(recipes.names())}"
        return Failure(source, f"There is no documentation set of this name; {hint}")
    if recipe is None:
        return None
    if source == name and os.path.lexists(source):
        say(f"{source} is taken for the file or folder of that name; {RECIPE}{recipe.name} is {recipe.title}")
        return None
    return DocumentationSet(recipe.name)


def _text(text: str, title: str | None, collection: str) -> Named:
    if not text.strip():
        return Failure(STANDARD_INPUT, "There is no text on standard input.")
    return Single(TextSource(title or _first_line(text), text), collection)


def _url(url: str, collection: str) -> Named:
    try:
        return Single(url_source(url), collection)
    except CannotFetch as failure:
        return Failure(url, failure.detail)


def _file(path: Path, collection: str | None) -> Named:
    try:
        # As it will be read: a link leads where it leads now.
        path.stat()
    except OSError as error:
        return Failure(str(path), f"It cannot be opened: {error.strerror or error}.")
    if not path.is_file():
        return Failure(str(path), "It is neither a file nor a folder.")
    if path.suffix.lower() == ".jsonl":
        return Objects(path, collection or path.stem)
    source = FileSource(Path(os.path.abspath(path)), clean_name(path.name) or "document")
    return Single(source, collection or DEFAULT_COLLECTION)


def _first_line(text: str) -> str:
    lines = (line.strip("#*= \t\r") for line in text.splitlines())
    return next((line[:LONGEST_TITLE] for line in lines if line), "Untitled")


def metadata(pairs: Sequence[str]) -> dict[str, Any]:
    """`name=value` pairs; a value that is a number, true or false is that, so that filters compare it as such."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise Misuse(f"--metadata: write {pair!r} as name=value")
        found[name] = _typed(value)
    return found


def _typed(value: str) -> Any:
    try:
        parsed = json.loads(value, parse_constant=str)
    except ValueError:
        return value
    return parsed if isinstance(parsed, (bool, int, float, list)) else value
