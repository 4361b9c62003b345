"""Documentation from where its project publishes it: which release is the newest, and its pages in one download."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO

from anyio import to_thread

from refdesk.config import ConvertConfig
from refdesk.documents.fetch import Fetched, Fetcher, FetchRules, Progress, open_fetcher
from refdesk.documents.scratch import in_thread
from refdesk.documents.ssrf import parse_networks
from refdesk.errors import CannotConvert, CannotFetch, CannotReach
from refdesk.recipes.archives import Page, pages_of_archive
from refdesk.recipes.keeping import Record
from refdesk.recipes.recipe import Archive, Recipe, in_order

MAX_ARCHIVE_BYTES = 200_000_000
"""The sources of PostgreSQL are 25 MB, the pages of Python 10 MB."""

ARCHIVE_SECONDS = 900.0
"""The least time that a download may take, unless the settings give more: 10 MB over a slow line."""

MAX_LIST_BYTES = 5_000_000
"""Of a page that names releases, or a checksum."""

_SHA256 = re.compile(r"\b[0-9a-fA-F]{64}\b")


@dataclass(frozen=True, slots=True)
class Published:
    """What a site has: an archive that was fetched, or, without a file, that the one we have is still good."""

    archive: Archive
    record: Record
    file: IO[bytes] | None

    def pages(self, recipe: Recipe) -> Iterator[Page]:
        """The pages that are worth finding."""
        if self.file is None:
            return
        for path, data in pages_of_archive(self.file, self.archive.inside):
            if recipe.takes(path):
                yield path, data


@asynccontextmanager
async def open_site(settings: ConvertConfig) -> AsyncIterator[Fetcher]:
    """A way to the sites that recipes name, under the rules for all downloads.

    Their robots.txt is not asked: a person names the documentation, and two or three files are fetched of a site.
    """
    rules = FetchRules(
        allow=parse_networks(settings.allow_networks),
        max_bytes=MAX_ARCHIVE_BYTES,
        seconds=max(settings.fetch_timeout_seconds, ARCHIVE_SECONDS),
        respect_robots=False,
    )
    async with open_fetcher(rules) as fetcher:
        yield fetcher


async def newest_release(recipe: Recipe, version: str, fetcher: Fetcher) -> str:
    """The newest release of a version, or of all when none is asked for; empty where there are no releases."""
    if recipe.newest is None:
        return ""
    url = recipe.newest.url.format(version=version or recipe.newest.default)
    text = await _text(fetcher, url)
    try:
        named = recipe.newest.releases(text, version)
    except (ValueError, KeyError, TypeError) as error:
        raise CannotFetch(f"{url} does not list releases as it used to, so the newest one is not known.") from error
    released = [release for release in named if re.fullmatch(r"\d+(\.\d+)*", release)]
    fitting = [release for release in released if not version or recipe.version_of(release) == version]
    if not fitting:
        there = ", ".join(sorted({recipe.version_of(release) for release in released}, key=in_order)) or "none"
        raise CannotFetch(f"{url} names no version {version or 'at all'} of {recipe.title}. Versions there: {there}.")
    return max(fitting, key=in_order)


@asynccontextmanager
async def published(
    recipe: Recipe, release: str, kept: Record | None, fetcher: Fetcher, progress: Progress | None
) -> AsyncIterator[Published]:
    """The archive of a release, fetched and compared with its checksum; or that it is the one that is kept."""
    version = recipe.version_of(release)
    archive, url, fetched = await _first_there(recipe, version, release, kept, fetcher, progress)
    async with in_thread(lambda: fetched.file) as file:
        if fetched.not_modified and kept is not None:
            yield Published(archive, kept, None)
            return
        await _compare(url, archive, file, fetcher)
        yield Published(archive, Record(url, release, fetched.etag, fetched.last_modified), file)


async def _first_there(
    recipe: Recipe, version: str, release: str, kept: Record | None, fetcher: Fetcher, progress: Progress | None
) -> tuple[Archive, str, Fetched]:
    """The first of the recipe's archives that the site has."""
    missing: CannotFetch | None = None
    for archive in recipe.archives:
        url = archive.url.format(version=version, release=release)
        known = kept if kept is not None and kept.url == url else Record(url)
        try:
            fetched = await fetcher.fetch(url, etag=known.etag, last_modified=known.last_modified, progress=progress)
        except CannotReach:
            raise
        except CannotFetch as failure:
            missing = missing or failure
        else:
            return archive, url, fetched
    raise missing or CannotFetch(f"{recipe.title} is not published as an archive.")


async def _compare(url: str, archive: Archive, file: IO[bytes], fetcher: Fetcher) -> None:
    """Refuse an archive that is not the one whose checksum is published beside it."""
    if not archive.checksum:
        return
    try:
        text = await _text(fetcher, url + archive.checksum)
    except CannotReach:
        raise
    except CannotFetch:
        return  # not every archive has one
    stated = _SHA256.search(text)
    actual = await to_thread.run_sync(_digest, file)
    if stated is None or stated[0].lower() != actual:
        raise CannotConvert(f"{url} is not what its published checksum says; nothing of it was taken. Try again.")


async def _text(fetcher: Fetcher, url: str) -> str:
    fetched = await fetcher.fetch(url)
    async with in_thread(lambda: fetched.file) as file:
        return (await to_thread.run_sync(file.read, MAX_LIST_BYTES)).decode("utf-8", "replace")


def _digest(file: IO[bytes]) -> str:
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # an IO is read like any file
    file.seek(0)
    return digest
