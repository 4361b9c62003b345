"""Documentation published by its project: newest release and download of its archive."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import IO

from anyio import to_thread

from refdesk.config import ConvertConfig
from refdesk.documents.fetch import Fetcher, FetchRules, Progress, open_fetcher
from refdesk.documents.scratch import in_thread
from refdesk.documents.ssrf import parse_networks
from refdesk.errors import CannotConvert, CannotFetch, CannotReach
from refdesk.ingest.recipes.archives import Page, read_archive
from refdesk.ingest.recipes.page_store import PageSource
from refdesk.ingest.recipes.recipe import Archive, Recipe, version_key

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
