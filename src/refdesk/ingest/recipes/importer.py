"""Import and refresh of documentation by recipe."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.config.models import ConvertConfig
from refdesk.documents.fetch import Fetcher, FetchRules, Progress, open_fetcher
from refdesk.documents.scratch import in_thread
from refdesk.documents.ssrf import parse_networks
from refdesk.engines.base import Engine, FileSource, FolderSync, NewDocument
from refdesk.errors import CannotConvert, CannotFetch, CannotReach
from refdesk.ingest.recipes.pages import Page, PageSource, PageStore, read_archive, read_folder
from refdesk.ingest.recipes.recipe import INDEX, Archive, Recipe, version_key
from refdesk.validation import shorten

RECIPES_FOLDER = "recipes"
"""Subfolder of the data folder with the downloaded pages, one folder per version."""

SYSTEM_ROOT = Path("/")
"""Root below which system packages install documentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeImport(FolderSync):
    """Result of importing a recipe."""

    collection: str
    """Id of the collection."""
    version: str
    """Version shown in search results and used in filters, such as 17. Empty for unversioned documentation."""
    release: str
    """Exact release, such as 17.2."""
    source: str
    """URL of the archive, or the folder of the installed package."""
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
    name = collection or recipe.name_collection(version)
    created = await engine.create_collection(tenant, name, description=about, version=version)
    documents = []
    for path in await to_thread.run_sync(store.list_paths):
        about_page = {**(metadata or {}), "url": recipe.build_url(path, version)}
        documents.append(NewDocument(FileSource(store.pages / path, path), created.id, about_page, version))
    synced = await engine.sync_folder(tenant, created.id, store.pages, documents)
    return RecipeImport(
        **asdict(synced), collection=created.id, version=version, release=source.release, source=source.url, note=note
    )


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


MAX_ARCHIVE_BYTES = 200_000_000
"""The PostgreSQL sources are 25 MB, the Python pages 10 MB."""

ARCHIVE_SECONDS = 900.0
"""Minimum download timeout, unless the settings allow more: 10 MB over a slow line."""

MAX_LIST_BYTES = 5_000_000
"""Maximum size of a release list or checksum file."""

_SHA256 = re.compile(r"\b[0-9a-fA-F]{64}\b")


@asynccontextmanager
async def open_site(settings: ConvertConfig) -> AsyncIterator[Fetcher]:
    """Open a fetcher for recipe sites, under the general download rules.

    robots.txt is not checked: a person names the documentation, and only two or three files are fetched per site.
    """
    rules = FetchRules(
        allow=parse_networks(settings.allow_networks),
        max_bytes=MAX_ARCHIVE_BYTES,
        seconds=max(settings.fetch_timeout_seconds, ARCHIVE_SECONDS),
        respect_robots=False,
    )
    async with open_fetcher(rules) as fetcher:
        yield fetcher


async def find_newest_release(recipe: Recipe, version: str, fetcher: Fetcher) -> str:
    """Return the newest release of a version, or of all versions. Empty if the recipe has no releases."""
    if recipe.newest is None:
        return ""
    url = recipe.newest.url.format(version=version or recipe.newest.default)
    text = await _fetch_text(fetcher, url)
    try:
        listed = recipe.newest.parse_releases(text, version)
    except (ValueError, KeyError, TypeError) as error:
        raise CannotFetch(f"{url} does not list releases as it used to, so the newest one is not known.") from error
    released = [release for release in listed if re.fullmatch(r"\d+(\.\d+)*", release)]
    matching = [release for release in released if not version or recipe.parse_version(release) == version]
    if not matching:
        available = (
            ", ".join(sorted({recipe.parse_version(release) for release in released}, key=version_key)) or "none"
        )
        raise CannotFetch(
            f"{url} names no version {version or 'at all'} of {recipe.title}. Versions there: {available}."
        )
    return max(matching, key=version_key)


@asynccontextmanager
async def open_published(
    recipe: Recipe, release: str, current: PageSource | None, fetcher: Fetcher, progress: Progress | None
) -> AsyncIterator[tuple[PageSource, Iterator[Page]] | None]:
    """Download the first archive of a release that exists, and verify its checksum.

    Yields its source and files, or None if the stored copy is current.
    """
    version, first_error = recipe.parse_version(release), None
    for archive in recipe.archives:
        url = archive.url.format(version=version, release=release)
        previous = current if current is not None and current.url == url else PageSource(url)
        try:
            fetched = await fetcher.fetch(
                url, etag=previous.etag, last_modified=previous.last_modified, progress=progress
            )
            break
        except CannotReach:
            raise
        except CannotFetch as failure:
            first_error = first_error or failure
    else:
        raise first_error or CannotFetch(f"{recipe.title} is not published as an archive.")
    async with in_thread(lambda: fetched.file) as file:
        if fetched.not_modified and current is not None:
            yield None
            return
        await _verify_checksum(url, archive, file, fetcher)
        source = PageSource(url, release, fetched.etag, fetched.last_modified)
        yield source, read_archive(file, archive.folder)


async def _verify_checksum(url: str, archive: Archive, file: IO[bytes], fetcher: Fetcher) -> None:
    """Reject an archive that doesn't match its published checksum."""
    if not archive.checksum:
        return
    try:
        text = await _fetch_text(fetcher, url + archive.checksum)
    except CannotReach:
        raise
    except CannotFetch:
        return  # not every archive has a checksum
    published_digest = _SHA256.search(text)
    actual = await to_thread.run_sync(_hash_file, file)
    if published_digest is None or published_digest[0].lower() != actual:
        raise CannotConvert(f"{url} doesn't match its published checksum, so nothing was imported. Try again.")


async def _fetch_text(fetcher: Fetcher, url: str) -> str:
    fetched = await fetcher.fetch(url)
    async with in_thread(lambda: fetched.file) as file:
        return (await to_thread.run_sync(file.read, MAX_LIST_BYTES)).decode("utf-8", "replace")


def _hash_file(file: IO[bytes]) -> str:
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # an IO is read like any file
    file.seek(0)
    return digest
