"""What a recipe says: where documentation is published and installed, and how its pages and versions are known.

Only data, and what follows from it without a network or a disk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

INDEX = "index"
"""The name, without its suffix, of the page that stands for its folder."""


@dataclass(frozen=True, slots=True)
class NamedOnPage:
    """The newest release is the one whose archive a page links to."""

    url: str
    """May hold `{version}`."""
    pattern: str
    """Of a link; its only group is the release."""
    default: str
    """What `{version}` is when none is asked for."""

    def releases(self, text: str, version: str) -> Sequence[str]:
        """The releases that the page names."""
        return re.findall(self.pattern, text)


@dataclass(frozen=True, slots=True)
class VersionsFile:
    """A JSON file lists `major` and `latestMinor` of each version, and which of them are `supported`."""

    url: str
    default: str = ""

    def releases(self, text: str, version: str) -> Sequence[str]:
        """The releases of a version, or the last of each supported one; ValueError for another kind of file."""
        listed = json.loads(text)
        if not isinstance(listed, list):
            raise ValueError("no list")
        entries = [entry for entry in listed if isinstance(entry, dict)]
        return [f"{entry['major']}.{entry['latestMinor']}" for entry in entries if version or entry.get("supported")]


@dataclass(frozen=True, slots=True)
class Archive:
    """One file that holds all pages; `{version}` and `{release}` in its address are filled in."""

    url: str
    inside: str
    """The folder of the pages, as a pattern; it may lie in one that is named after the archive."""
    checksum: str = ""
    """What is added to the address of the archive for that of its SHA-256, where one is published."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Documentation that is known by its name."""

    name: str
    title: str
    home: str
    """Where a reader finds the pages; a page's own path is added. May hold `{version}`."""
    suffix: str = ".html"
    """How the names of pages end."""
    left_out: tuple[str, ...] = ()
    """Pages that only list others, as patterns of their paths."""
    archives: tuple[Archive, ...] = ()
    """In the order in which they are tried."""
    newest: NamedOnPage | VersionsFile | None = None
    """How the newest release is found; None where there are no releases."""
    release: str = ""
    """How the index page states its release: a pattern with one group. Empty where there are no releases."""
    version: str = r"\d+"
    """The part of a release that makes a version, whose documentation is a collection of its own: a pattern."""
    installed: tuple[str, ...] = ()
    """Folders in which packages of the system put the pages, as patterns below the root of the disk."""
    package: str = ""
    """The Debian package that does so."""
    bare_urls: bool = False
    """Whether a page's address is its path without the suffix and with a slash."""

    def takes(self, path: str) -> bool:
        """Whether a file below the pages' folder is a page that is worth finding."""
        return path.endswith(self.suffix) and not any(fnmatchcase(path, pattern) for pattern in self.left_out)

    def url_of(self, path: str, version: str) -> str:
        """Where a reader finds a page."""
        home = self.home.format(version=version)
        if not self.bare_urls:
            return home + path
        stem = path.removesuffix(self.suffix)
        folder = "" if stem == INDEX else stem.removesuffix(f"/{INDEX}") + "/"
        return home + folder

    def collection_of(self, version: str) -> str:
        """The name of the collection for a version; documentation without versions has one."""
        return f"{self.name}-{version}" if version else self.name

    def version_of(self, release: str) -> str:
        """The version that a release belongs to: 17 for 17.2."""
        found = re.match(self.version, release)
        return found[0] if found else ""

    def release_in(self, index: bytes) -> str:
        """The release that the index page says it documents; empty when it says none."""
        found = re.search(self.release, index.decode("utf-8", "replace")) if self.release else None
        return found[1] if found else ""


def in_order(release: str) -> tuple[int, ...]:
    """A release as numbers, so that 3.9 comes before 3.13."""
    return tuple(int(part) for part in re.findall(r"\d+", release))
