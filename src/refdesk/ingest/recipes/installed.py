"""Documentation installed by system packages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from refdesk.errors import CannotFetch
from refdesk.ingest.recipes.archives import Page, read_folder
from refdesk.ingest.recipes.recipe import INDEX, Recipe, version_key


@dataclass(frozen=True, slots=True)
class InstalledPages:
    """Pages of one installed release."""

    folder: Path
    release: str

    def read_pages(self, recipe: Recipe) -> Iterator[Page]:
        """Yield the pages the recipe includes."""
        return ((path, data) for path, data in read_folder(self.folder, recipe.suffix) if recipe.is_page(path))


def find_installed(recipe: Recipe, version: str, root: Path) -> InstalledPages:
    """Return the newest installed release of a version, or of any version.

    Raises CannotFetch that lists what is installed.
    """
    found = list(_iterate_installed(recipe, root))
    matching = [one for one in found if not version or recipe.parse_version(one.release) == version]
    if matching:
        return max(matching, key=lambda one: version_key(one.release))
    if found:
        releases = ", ".join(sorted({one.release for one in found}, key=version_key))
        raise CannotFetch(f"{recipe.title} is installed here in {releases}, not in {version}.")
    hint = f" On Debian and Ubuntu, apt install {recipe.package} installs it." if recipe.package else ""
    raise CannotFetch(f"{recipe.title} is not installed on this machine.{hint}")


def _iterate_installed(recipe: Recipe, root: Path) -> Iterator[InstalledPages]:
    for pattern in recipe.installed:
        for folder in root.glob(pattern):
            index = folder / f"{INDEX}{recipe.suffix}"
            if index.is_file():
                release = recipe.find_release(index.read_bytes())
                if release or not recipe.release:
                    yield InstalledPages(folder, release)
