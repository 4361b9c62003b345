"""Recipes for well-known documentation, added by name: `refdesk add postgresql`.

A recipe says where a project publishes its documentation and where system packages install it. `names` and `find` list
and look up recipes. `bring_in` downloads the pages, stores them in the data folder and passes them to the engine.
Running it again refreshes the collection: only changed pages are downloaded and indexed.


    recipe = find("postgresql")
    result = await bring_in(recipe, desk.engine, LOCAL.tenant, config.convert, config.data_path, version="17")
    # then wait for result.new and result.changed, as for any documents
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from refdesk.ingest.recipes.builtin import RECIPES
from refdesk.ingest.recipes.recipe import Archive, Recipe, ReleasePage, VersionsFile

if TYPE_CHECKING:
    from refdesk.ingest.recipes.importer import RecipeImport as RecipeImport
    from refdesk.ingest.recipes.importer import bring_in as bring_in

__all__ = ["Archive", "Recipe", "RecipeImport", "ReleasePage", "VersionsFile", "bring_in", "find", "names"]


def names() -> list[str]:
    """Return the sorted names of all recipes."""
    return sorted(RECIPES)


def find(name: str) -> Recipe | None:
    """Return the recipe with this name, ignoring case, or None."""
    return RECIPES.get(name.lower())


def __getattr__(name: str) -> object:
    # Imported lazily, so that commands that only list names don't load the HTTP client.
    if name in {"RecipeImport", "bring_in"}:
        from refdesk.ingest.recipes import importer

        return getattr(importer, name)
    raise AttributeError(f"module 'refdesk.ingest.recipes' has no attribute {name!r}")
