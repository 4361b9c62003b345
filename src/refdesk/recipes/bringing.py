"""Bringing documentation in by its recipe, and keeping it fresh."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.config import ConvertConfig
from refdesk.documents.fetch import Progress
from refdesk.engines.base import Engine, FileSource, FolderSync, NewDocument
from refdesk.errors import CannotConvert, CannotFetch
from refdesk.recipes.archives import Page
from refdesk.recipes.installed import find_installed
from refdesk.recipes.keeping import KeptPages, Record
from refdesk.recipes.published import newest_release, open_site, published
from refdesk.recipes.recipe import INDEX, Recipe
from refdesk.validation import shortened

FOLDER = "recipes"
"""Beneath the data folder: the pages that were brought in, a folder for each version."""

SYSTEM = Path("/")
"""Below which packages install documentation."""


@dataclass(frozen=True, slots=True)
class Brought:
    """What bringing documentation in came to; documents by their ids. They are taken on, and not read yet."""

    collection: str
    """The id of the collection that holds it."""
    version: str
    """What searches say and filter by, such as 17; empty where the documentation has no versions."""
    release: str
    """What it is exactly, such as 17.2."""
    source: str
    """The address of the archive, or the folder that a package installed."""
    new: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: int
    removed: tuple[str, ...]
    note: str = ""
    """A sentence for the person, where something else was taken than was asked for first."""


async def bring_in(
    recipe: Recipe,
    engine: Engine,
    tenant: TenantId,
    settings: ConvertConfig,
    data: Path,
    *,
    version: str = "",
    collection: str = "",
    metadata: Mapping[str, Any] | None = None,
    offline: bool = False,
    progress: Progress | None = None,
    system: Path = SYSTEM,
) -> Brought:
    """Fetch documentation, or ask whether what is here is still the newest, and have the engine take it on.

    Without a version it is the newest one. What its project publishes goes first; when that cannot be reached, or with
    `offline`, it is what the system has installed, and never another version than the one that is asked for. It goes
    into `collection`, or one that is named after the recipe and the version; every page is given `metadata` and its
    own `url`. `data` is the data folder, and `progress` is told of the download. Raises CannotFetch, or CannotConvert
    for an archive that is broken, unsafe or of another version; then everything stays as it was.
    """
    _require_version(recipe, version)
    shelf = _Shelf(recipe, data / FOLDER, system)
    note = ""
    if offline or not recipe.archives:
        kept = await to_thread.run_sync(shelf.take_installed, version)
    else:
        try:
            kept = await shelf.take_published(version, settings, progress)
        except CannotFetch as away:
            kept = await to_thread.run_sync(shelf.take_installed_instead, version, away)
            note = f"What is installed on this machine was taken, because nothing could be fetched: {away.detail}"
    return await _hand_over(shelf, kept, engine, tenant, collection, metadata or {}, note)


def _require_version(recipe: Recipe, version: str) -> None:
    """Refuse what cannot be a version here, rather than bring in another one for it."""
    if version and not recipe.release:
        raise CannotFetch(f"{recipe.title} comes in one edition, without versions; leave the version out.")
    nearest = recipe.version_of(version)
    if nearest != version:
        hint = f" Did you mean {nearest}?" if nearest else ""
        raise CannotFetch(f"{shortened(version)!r} is no version of {recipe.title}.{hint}")


@dataclass(frozen=True, slots=True)
class _Shelf:
    """Where the pages of a recipe are kept, and where they come from."""

    recipe: Recipe
    folder: Path
    system: Path

    def kept(self, version: str) -> KeptPages:
        return KeptPages(self.folder / self.recipe.collection_of(version))

    async def take_published(self, version: str, settings: ConvertConfig, progress: Progress | None) -> KeptPages:
        """The newest release that the project publishes of a version."""
        async with open_site(settings) as fetcher:
            release = await newest_release(self.recipe, version, fetcher)
            kept = self.kept(self.recipe.version_of(release))
            before = await to_thread.run_sync(kept.record)
            async with published(self.recipe, release, before, fetcher, progress) as found:
                if found.file is not None:
                    await to_thread.run_sync(self._replace, kept, found.pages(self.recipe), found.record)
        return kept

    def take_installed(self, version: str) -> KeptPages:
        """The release that the system has installed of a version."""
        found = find_installed(self.recipe, version, self.system)
        kept = self.kept(self.recipe.version_of(found.release))
        self._replace(kept, found.pages(self.recipe), Record(str(found.folder), found.release))
        return kept

    def take_installed_instead(self, version: str, away: CannotFetch) -> KeptPages:
        """The release that is installed, unless there is none, or one that was fetched would give way to it."""
        try:
            found = find_installed(self.recipe, version, self.system)
        except CannotFetch as missing:
            raise CannotFetch(f"{away.detail} {missing.detail}") from away
        before = self.kept(self.recipe.version_of(found.release)).record()
        if before is not None and before.url.startswith(("http://", "https://")):
            raise CannotFetch(f"{away.detail} What was fetched before, {before.release}, stays as it is.") from away
        return self.take_installed(version)

    def _replace(self, kept: KeptPages, pages: Iterable[Page], record: Record) -> None:
        kept.replace(pages, self._checked(kept, record))

    def _checked(self, kept: KeptPages, record: Record) -> Callable[[Path], Record]:
        """That the pages are of the version that is wanted, by their own word; and which release that is."""

        def check(staged: Path) -> Record:
            release = self.recipe.release_in(kept.first(f"{INDEX}{self.recipe.suffix}", staged))
            if self.recipe.version_of(release) != self.recipe.version_of(record.release):
                said = release or "no release"
                raise CannotConvert(f"{record.url} holds {said} where {record.release} was wanted; nothing was taken.")
            return Record(record.url, release, record.etag, record.last_modified)

        return check


async def _hand_over(
    shelf: _Shelf,
    kept: KeptPages,
    engine: Engine,
    tenant: TenantId,
    name: str,
    metadata: Mapping[str, Any],
    note: str,
) -> Brought:
    """Make the collection hold the kept pages."""
    recipe, record = shelf.recipe, await to_thread.run_sync(kept.record)
    if record is None:
        raise CannotFetch(f"{kept.folder} was changed meanwhile. Run it again.")
    version = recipe.version_of(record.release)
    about = " ".join(filter(None, (recipe.title, record.release)))
    collection = await engine.create_collection(
        tenant, name or recipe.collection_of(version), description=about, version=version
    )
    documents = [
        NewDocument(
            FileSource(kept.pages / path, path),
            collection.id,
            {**metadata, "url": recipe.url_of(path, version)},
            version,
        )
        for path in await to_thread.run_sync(kept.paths)
    ]
    done = await engine.sync_folder(tenant, collection.id, kept.pages, documents)
    return _brought(collection.id, version, record, done, note)


def _brought(collection: str, version: str, record: Record, done: FolderSync, note: str) -> Brought:
    return Brought(
        collection,
        version,
        record.release,
        record.url,
        tuple(done.new),
        tuple(done.changed),
        done.unchanged,
        tuple(done.removed),
        note,
    )
