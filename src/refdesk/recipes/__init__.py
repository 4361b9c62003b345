"""Well-known documentation, brought in by its name: `refdesk add postgresql`.

A recipe says where a project publishes its documentation and where packages of the system install it. `names` and
`find` tell which there are; `bring_in` fetches one, keeps its pages in the data folder and hands them to the engine.
Done again it is a refresh: the site is asked whether anything changed, and only pages that did are read anew.

    recipe = find("postgresql")
    brought = await bring_in(recipe, desk.engine, LOCAL.tenant, config.convert, config.data_path, version="17")
    # then wait for brought.new and brought.changed, as for any documents
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from refdesk.recipes.known import RECIPES
from refdesk.recipes.recipe import Archive, NamedOnPage, Recipe, VersionsFile

if TYPE_CHECKING:
    from refdesk.recipes.bringing import Brought as Brought
    from refdesk.recipes.bringing import bring_in as bring_in

__all__ = ["Archive", "Brought", "NamedOnPage", "Recipe", "VersionsFile", "bring_in", "find", "names"]


def names() -> list[str]:
    """The names of all recipes, in order."""
    return sorted(RECIPES)


def find(name: str) -> Recipe | None:
    """The recipe of this name, in whatever case it is written; None when there is none."""
    return RECIPES.get(name.lower())


def __getattr__(name: str) -> object:
    # Loaded on first use, so that a command line that only asks for names does not pay for downloads.
    if name in {"Brought", "bring_in"}:
        from refdesk.recipes import bringing

        return getattr(bringing, name)
    raise AttributeError(f"module 'refdesk.recipes' has no attribute {name!r}")
