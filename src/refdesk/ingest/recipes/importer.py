"""Import and refresh of documentation by recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.config import ConvertConfig
from refdesk.documents.fetch import Progress
from refdesk.engines.base import Engine, FileSource, NewDocument
from refdesk.errors import CannotConvert, CannotFetch
from refdesk.ingest.recipes.archives import Page, read_folder
from refdesk.ingest.recipes.page_store import PageSource, PageStore
from refdesk.ingest.recipes.published import find_newest_release, open_published, open_site
from refdesk.ingest.recipes.recipe import INDEX, Recipe, version_key
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
    if version and not recipe.release:
        raise CannotFetch(f"{recipe.title} has no versions. Omit the version.")
    nearest = recipe.parse_version(version)
    if nearest != version:
        # Another version is never imported instead.
        hint = f" Did you mean {nearest}?" if nearest else ""
        raise CannotFetch(f"{shorten(version)!r} isn't a version of {recipe.title}.{hint}")
    source_pages = _RecipePages(recipe, data / RECIPES_FOLDER, system)
    note = ""
    if offline or not recipe.archives:
        store = await to_thread.run_sync(source_pages.copy_installed, version)
    else:
        try:
            store = await source_pages.fetch_published(version, settings, progress)
        except CannotFetch as fetch_error:
            store = await to_thread.run_sync(source_pages.copy_installed, version, fetch_error)
            note = f"The download failed, so the installed documentation was imported: {fetch_error.detail}"
    source = await to_thread.run_sync(store.read_source)
    if source is None:
        raise CannotFetch(f"{store.folder} was changed meanwhile. Run it again.")
    version = recipe.parse_version(source.release)
    about = " ".join(filter(None, (recipe.title, source.release)))
    created = await engine.create_collection(
        tenant, collection or recipe.name_collection(version), description=about, version=version
    )
    documents = [
        NewDocument(
            FileSource(store.pages / path, path),
            created.id,
            {**(metadata or {}), "url": recipe.build_url(path, version)},
            version,
        )
        for path in await to_thread.run_sync(store.list_paths)
    ]
    synced = await engine.sync_folder(tenant, created.id, store.pages, documents)
    new, changed, removed = tuple(synced.new), tuple(synced.changed), tuple(synced.removed)
    return RecipeImport(created.id, version, source.release, source.url, new, changed, synced.unchanged, removed, note)


@dataclass(frozen=True, slots=True)
class _RecipePages:
    """Sources and local stores of a recipe's pages."""

    recipe: Recipe
    folder: Path
    system: Path

    def get_store(self, release: str) -> PageStore:
        return PageStore(self.folder / self.recipe.name_collection(self.recipe.parse_version(release)))

    async def fetch_published(self, version: str, settings: ConvertConfig, progress: Progress | None) -> PageStore:
        """Download the newest published release of a version."""
        async with open_site(settings) as fetcher:
            release = await find_newest_release(self.recipe, version, fetcher)
            store = self.get_store(release)
            previous = await to_thread.run_sync(store.read_source)
            async with open_published(self.recipe, release, previous, fetcher, progress) as found:
                if found is not None:
                    await to_thread.run_sync(self._replace, store, *found)
        return store

    def copy_installed(self, version: str, fetch_error: CannotFetch | None = None) -> PageStore:
        """Copy the installed release of a version. After a failed download, it never replaces a downloaded one."""
        try:
            found = self._find_installed(version)
        except CannotFetch as missing:
            if fetch_error is None:
                raise
            raise CannotFetch(f"{fetch_error.detail} {missing.detail}") from fetch_error
        store = self.get_store(found.release)
        previous = store.read_source()
        if fetch_error is not None and previous is not None and previous.url.startswith(("http://", "https://")):
            raise CannotFetch(
                f"{fetch_error.detail} The copy downloaded earlier, {previous.release}, is unchanged."
            ) from fetch_error
        self._replace(store, found, read_folder(Path(found.url), self.recipe.suffix))
        return store

    def _find_installed(self, version: str) -> PageSource:
        """Return the newest installed release of a version, or of any version.

        Raises CannotFetch that lists what is installed.
        """
        recipe, found = self.recipe, list[PageSource]()
        for folder in (folder for pattern in recipe.installed for folder in self.system.glob(pattern)):
            index = folder / f"{INDEX}{recipe.suffix}"
            if index.is_file():
                release = recipe.find_release(index.read_bytes())
                if release or not recipe.release:
                    found.append(PageSource(str(folder), release))
        matching = [one for one in found if not version or recipe.parse_version(one.release) == version]
        if matching:
            return max(matching, key=lambda one: version_key(one.release))
        if found:
            releases = ", ".join(sorted({one.release for one in found}, key=version_key))
            raise CannotFetch(f"{recipe.title} is installed here in {releases}, not in {version}.")
        hint = f" On Debian and Ubuntu, apt install {recipe.package} installs it." if recipe.package else ""
        raise CannotFetch(f"{recipe.title} is not installed on this machine.{hint}")

    def _replace(self, store: PageStore, source: PageSource, files: Iterable[Page]) -> None:
        """Replace the stored pages, if the index page states the expected version."""

        def check(staged: Path) -> PageSource:
            release = self.recipe.find_release(store.read_page(f"{INDEX}{self.recipe.suffix}", staged))
            if self.recipe.parse_version(release) != self.recipe.parse_version(source.release):
                said = release or "no release"
                raise CannotConvert(f"{source.url} has {said} instead of {source.release}, so nothing was imported.")
            return replace(source, release=release)

        store.replace((file for file in files if self.recipe.is_page(file[0])), check)
