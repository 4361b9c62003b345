"""Recipes for well-known documentation, added by name: `refdesk add postgresql`.

A recipe says where a project publishes its documentation and where system packages install it. `recipe` has the recipes
themselves. `bring_in` downloads the pages, stores them in the data folder and passes them to the engine. Running it
again refreshes the collection: only changed pages are downloaded and indexed.


    recipe = find("postgresql")
    result = await bring_in(recipe, desk.engine, LOCAL.tenant, config.convert, config.data_path, version="17")
    # then wait for result.new and result.changed, as for any documents
"""

from refdesk.ingest.recipes.importer import bring_in
from refdesk.ingest.recipes.recipe import Recipe

__all__ = ["Recipe", "bring_in"]
