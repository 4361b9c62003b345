"""Documentation sets: `refdesk recipes` lists them, and `refdesk add NAME` ingests one."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from refdesk.cli.terminal import ProgressBar, print_json, print_message, print_table
from refdesk.config.models import Config
from refdesk.errors import ToolFailure
from refdesk.ingest.ingester import Ingester, IngestOutcome
from refdesk.ingest.recipes.importer import RecipeImport, bring_in
from refdesk.ingest.recipes.recipe import Recipe, find, names
from refdesk.ingest.sources import DocumentationSet, SourceFailure


def recipes(arguments: SimpleNamespace) -> None:
    """Run `refdesk recipes`."""
    found = [recipe for name in names() if (recipe := find(name)) is not None]
    if arguments.json:
        facts = [{"name": one.name, "title": one.title, "home": one.home, "package": one.package} for one in found]
        print_json(facts)
    else:
        print_table(("NAME", "DEBIAN PACKAGE", "TITLE"), [(one.name, one.package or "-", one.title) for one in found])
        print("`refdesk add NAME` adds or updates a documentation set.")


async def add_documentation_sets(
    sets: Sequence[DocumentationSet], config: Config, ingester: Ingester, arguments: SimpleNamespace
) -> IngestOutcome:
    """Ingest documentation sets, fetched or from installed packages. A set that fails doesn't stop the others."""
    outcome = IngestOutcome()
    for item in sets:
        recipe = find(item.name)
        assert recipe is not None
        try:
            result = await _ingest_recipe(recipe, config, ingester, arguments)
        except ToolFailure as failure:
            outcome += IngestOutcome(failed=(SourceFailure(item.name, failure.detail),))
        else:
            if result.note:
                print_message(result.note)
            release = f" {result.release}" if result.release else ""
            print_message(f"{recipe.title}{release} from {result.source}, in the collection {result.collection!r}")
            outcome += IngestOutcome(result.new, result.changed, result.unchanged, result.removed)
    return await ingester.wait_until_indexed(outcome)


async def _ingest_recipe(
    recipe: Recipe, config: Config, ingester: Ingester, arguments: SimpleNamespace
) -> RecipeImport:
    bar = ProgressBar(1)

    async def progress(done: float, total: float | None, activity: str) -> None:
        bar.advance(recipe.name, done / total if total else 0.0, activity)

    try:
        return await bring_in(
            recipe,
            ingester.engine,
            ingester.tenant,
            config.convert,
            config.data_path,
            version=ingester.defaults.version,
            collection=arguments.collection or "",
            metadata=ingester.defaults.metadata,
            offline=arguments.offline,
            progress=progress,
        )
    finally:
        bar.clear()
