"""Import and refresh of documentation by recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.config import ConvertConfig
from refdesk.documents.fetch import Progress
from refdesk.engines.base import Engine, FileSource, NewDocument
from refdesk.errors import CannotConvert, CannotFetch
from refdesk.ingest.recipes.archives import Page
from refdesk.ingest.recipes.installed import find_installed
from refdesk.ingest.recipes.page_store import PageSource, PageStore
from refdesk.ingest.recipes.published import find_newest_release, open_published, open_site
from refdesk.ingest.recipes.recipe import INDEX, Recipe
from refdesk.validation import shorten

RECIPES_FOLDER = "recipes"
"""Subfolder of the data folder with the downloaded pages, one folder per version."""

SYSTEM_ROOT = Path("/")
"""Root below which system packages install documentation."""


@dataclass(frozen=True, slots=True)
class RecipeImport:
    """Result of importing a recipe. Documents are given by id; they are queued, not indexed yet."""

    collection: str
    """Id of the collection."""
    version: str
    """Version shown in search results and used in filters, such as 17. Empty for unversioned documentation."""
    release: str
    """Exact release, such as 17.2."""
    source: str
    """URL of the archive, or the folder of the installed package."""
    new: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: int
    removed: tuple[str, ...]
    note: str = ""
    """Message for the user if the source differs from the preferred one."""


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
    system: Path = SYSTEM_ROOT,
) -> RecipeImport:
    """Download documentation, or check that the stored copy is current, and pass it to the engine.

    Without `version`, the newest one is imported. The project's published archive is preferred. If it can't be
    downloaded, or with `offline`, the pages installed on the system are used, but never those of another version. Pages
    go into `collection`, by default one named after the recipe and version. Every page gets `metadata` and its own
    `url`. `data` is the data folder; `progress` reports the download.

    Raises CannotFetch, or CannotConvert for an archive that is broken, unsafe or of another version. Existing pages are
    then left unchanged.
    """
    _require_version(recipe, version)
    source_pages = _RecipePages(recipe, data / RECIPES_FOLDER, system)
    note = ""
    if offline or not recipe.archives:
        store = await to_thread.run_sync(source_pages.copy_installed, version)
    else:
        try:
            store = await source_pages.fetch_published(version, settings, progress)
        except CannotFetch as fetch_error:
            store = await to_thread.run_sync(source_pages.fall_back_to_installed, version, fetch_error)
            note = f"The download failed, so the installed documentation was imported: {fetch_error.detail}"
    return await _sync_collection(source_pages, store, engine, tenant, collection, metadata or {}, note)


def _require_version(recipe: Recipe, version: str) -> None:
    """Reject a string that can't be a version of this recipe, instead of importing another version."""
    if version and not recipe.release:
        raise CannotFetch(f"{recipe.title} has no versions. Omit the version.")
    nearest = recipe.parse_version(version)
    if nearest != version:
        hint = f" Did you mean {nearest}?" if nearest else ""
        raise CannotFetch(f"{shorten(version)!r} isn't a version of {recipe.title}.{hint}")


@dataclass(frozen=True, slots=True)
class _RecipePages:
    """Sources and local stores of a recipe's pages."""

    recipe: Recipe
    folder: Path
    system: Path

    def get_store(self, version: str) -> PageStore:
        return PageStore(self.folder / self.recipe.name_collection(version))

    async def fetch_published(self, version: str, settings: ConvertConfig, progress: Progress | None) -> PageStore:
        """Download the newest published release of a version."""
        async with open_site(settings) as fetcher:
            release = await find_newest_release(self.recipe, version, fetcher)
            store = self.get_store(self.recipe.parse_version(release))
            previous = await to_thread.run_sync(store.read_source)
            async with open_published(self.recipe, release, previous, fetcher, progress) as found:
                if found.file is not None:
                    await to_thread.run_sync(self._replace, store, found.read_pages(self.recipe), found.source)
        return store

    def copy_installed(self, version: str) -> PageStore:
        """Copy the installed release of a version."""
        found = find_installed(self.recipe, version, self.system)
        store = self.get_store(self.recipe.parse_version(found.release))
        self._replace(store, found.read_pages(self.recipe), PageSource(str(found.folder), found.release))
        return store

    def fall_back_to_installed(self, version: str, fetch_error: CannotFetch) -> PageStore:
        """Copy the installed release unless there is none, or it would replace a downloaded one."""
        try:
            found = find_installed(self.recipe, version, self.system)
        except CannotFetch as missing:
            raise CannotFetch(f"{fetch_error.detail} {missing.detail}") from fetch_error
        previous = self.get_store(self.recipe.parse_version(found.release)).read_source()
        if previous is not None and previous.url.startswith(("http://", "https://")):
            raise CannotFetch(
                f"{fetch_error.detail} The copy downloaded earlier, {previous.release}, is unchanged."
            ) from fetch_error
        return self.copy_installed(version)

    def _replace(self, store: PageStore, pages: Iterable[Page], source: PageSource) -> None:
        store.replace(pages, self._make_version_check(store, source))

    def _make_version_check(self, store: PageStore, source: PageSource) -> Callable[[Path], PageSource]:
        """Return a check that the index page states the expected version; it returns the stated release."""

        def check(staged: Path) -> PageSource:
            release = self.recipe.find_release(store.read_page(f"{INDEX}{self.recipe.suffix}", staged))
            if self.recipe.parse_version(release) != self.recipe.parse_version(source.release):
                said = release or "no release"
                raise CannotConvert(f"{source.url} has {said} instead of {source.release}, so nothing was imported.")
            return PageSource(source.url, release, source.etag, source.last_modified)

        return check


async def _sync_collection(
    source_pages: _RecipePages,
    store: PageStore,
    engine: Engine,
    tenant: TenantId,
    name: str,
    metadata: Mapping[str, Any],
    note: str,
) -> RecipeImport:
    """Sync the collection with the stored pages."""
    recipe, source = source_pages.recipe, await to_thread.run_sync(store.read_source)
    if source is None:
        raise CannotFetch(f"{store.folder} was changed meanwhile. Run it again.")
    version = recipe.parse_version(source.release)
    about = " ".join(filter(None, (recipe.title, source.release)))
    collection = await engine.create_collection(
        tenant, name or recipe.name_collection(version), description=about, version=version
    )
    documents = [
        NewDocument(
            FileSource(store.pages / path, path),
            collection.id,
            {**metadata, "url": recipe.build_url(path, version)},
            version,
        )
        for path in await to_thread.run_sync(store.list_paths)
    ]
    synced = await engine.sync_folder(tenant, collection.id, store.pages, documents)
    return RecipeImport(
        collection.id,
        version,
        source.release,
        source.url,
        tuple(synced.new),
        tuple(synced.changed),
        synced.unchanged,
        tuple(synced.removed),
        note,
    )
