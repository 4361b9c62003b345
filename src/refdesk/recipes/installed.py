"""Documentation that a package of the system has installed on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from refdesk.errors import CannotFetch
from refdesk.recipes.archives import Page, pages_of_folder
from refdesk.recipes.recipe import INDEX, Recipe, in_order


@dataclass(frozen=True, slots=True)
class Installed:
    """Pages of one release, in a folder."""

    folder: Path
    release: str

    def pages(self, recipe: Recipe) -> Iterator[Page]:
        """The pages that are worth finding."""
        return ((path, data) for path, data in pages_of_folder(self.folder, recipe.suffix) if recipe.takes(path))


def find_installed(recipe: Recipe, version: str, root: Path) -> Installed:
    """The newest release of a version that is installed, or of any; raises CannotFetch with what is there instead."""
    there = list(_installed(recipe, root))
    fitting = [one for one in there if not version or recipe.version_of(one.release) == version]
    if fitting:
        return max(fitting, key=lambda one: in_order(one.release))
    if there:
        releases = ", ".join(sorted({one.release for one in there}, key=in_order))
        raise CannotFetch(f"{recipe.title} is installed here in {releases}, not in {version}.")
    hint = f" On Debian and Ubuntu, apt install {recipe.package} puts it there." if recipe.package else ""
    raise CannotFetch(f"{recipe.title} is not installed on this machine.{hint}")


def _installed(recipe: Recipe, root: Path) -> Iterator[Installed]:
    for pattern in recipe.installed:
        for folder in root.glob(pattern):
            index = folder / f"{INDEX}{recipe.suffix}"
            if index.is_file():
                release = recipe.release_in(index.read_bytes())
                if release or not recipe.release:
                    yield Installed(folder, release)
