"""Recipes: where documentation is published and installed, and how to recognize pages and versions.

Those included with Refdesk are in `recipes.toml`. No network access.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources

from pydantic import ConfigDict, TypeAdapter

_STRICT = ConfigDict(extra="forbid")

INDEX = "index"
"""Name, without suffix, of a folder's index page."""


@dataclass(frozen=True, slots=True)
class ReleasePage:
    """Release list: a page that links to the archives."""

    __pydantic_config__ = _STRICT

    url: str
    """May contain `{version}`."""
    pattern: str
    """Link pattern with one group, the release."""
    default: str
    """Value of `{version}` when none is requested."""

    def parse_releases(self, text: str, version: str) -> Sequence[str]:
        """Return the releases linked on the page."""
        return re.findall(self.pattern, text)


@dataclass(frozen=True, slots=True)
class VersionsFile:
    """Release list: a JSON file with `major`, `latestMinor` and `supported` per version."""

    __pydantic_config__ = _STRICT

    url: str
    default: str = ""

    def parse_releases(self, text: str, version: str) -> Sequence[str]:
        """Return the releases of a version, or the latest one of each supported version.

        Raises ValueError for other JSON.
        """
        listed = json.loads(text)
        if not isinstance(listed, list):
            raise ValueError("no list")
        entries = [entry for entry in listed if isinstance(entry, dict)]
        return [f"{entry['major']}.{entry['latestMinor']}" for entry in entries if version or entry.get("supported")]


@dataclass(frozen=True, slots=True)
class Archive:
    """File with all pages. `{version}` and `{release}` in its URL are substituted."""

    __pydantic_config__ = _STRICT

    url: str
    folder: str
    """Pattern of the folder with the pages, which may be inside a top-level folder named after the archive."""
    checksum: str = ""
    """Suffix added to the archive's URL to get its SHA-256 file, if one is published."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Named documentation set."""

    __pydantic_config__ = _STRICT

    name: str
    title: str
    home: str
    """Base URL of the pages; a page's path is appended. May contain `{version}`."""
    suffix: str = ".html"
    """File suffix of pages."""
    excluded: tuple[str, ...] = ()
    """Path patterns of pages that only list others."""
    archives: tuple[Archive, ...] = ()
    """In order of preference."""
    newest: ReleasePage | VersionsFile | None = None
    """Release list, or None if there are no releases."""
    release: str = ""
    """Pattern with one group that finds the release on the index page. Empty if there are no releases."""
    version: str = r"\d+"
    """Pattern of the part of a release that is the version. Each version has its own collection."""
    installed: tuple[str, ...] = ()
    """Glob patterns, relative to the root, of folders where system packages install the pages."""
    package: str = ""
    """Debian package that installs the pages."""
    has_bare_urls: bool = False
    """Whether page URLs have no suffix and end with a slash."""

    def is_page(self, path: str) -> bool:
        """Whether a file is a page to import."""
        return path.endswith(self.suffix) and not any(fnmatchcase(path, pattern) for pattern in self.excluded)

    def build_url(self, path: str, version: str) -> str:
        """Return the URL of a page."""
        home = self.home.format(version=version)
        if not self.has_bare_urls:
            return home + path
        stem = path.removesuffix(self.suffix)
        folder = "" if stem == INDEX else stem.removesuffix(f"/{INDEX}") + "/"
        return home + folder

    def name_collection(self, version: str) -> str:
        """Return the collection name for a version, or the recipe's name for unversioned documentation."""
        return f"{self.name}-{version}" if version else self.name

    def parse_version(self, release: str) -> str:
        """Return the version of a release: 17 for 17.2."""
        found = re.match(self.version, release)
        return found[0] if found else ""

    def find_release(self, index: bytes) -> str:
        """Return the release stated on the index page, or an empty string."""
        found = re.search(self.release, index.decode("utf-8", "replace")) if self.release else None
        return found[1] if found else ""


def version_key(release: str) -> tuple[int, ...]:
    """Return a release as a tuple of numbers for sorting, so that 3.9 comes before 3.13."""
    return tuple(int(part) for part in re.findall(r"\d+", release))


@cache
def _load_recipes() -> Mapping[str, Recipe]:
    """Return the recipes included with Refdesk, by name."""
    text = resources.files(__package__).joinpath("recipes.toml").read_text("utf-8")
    return TypeAdapter(Mapping[str, Recipe]).validate_python(tomllib.loads(text))


def names() -> list[str]:
    """Return the sorted names of all recipes."""
    return sorted(_load_recipes())


def find(name: str) -> Recipe | None:
    """Return the recipe with this name, ignoring case, or None."""
    return _load_recipes().get(name.lower())
