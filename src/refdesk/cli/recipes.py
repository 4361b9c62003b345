"""Documentation sets by their names: `refdesk recipes` lists them, and `refdesk add NAME` brings one in."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from refdesk.cli.exit_codes import Exit
from refdesk.cli.ingest import Intake, Outcome
from refdesk.cli.inputs import Failure
from refdesk.cli.progress import ProgressBar
from refdesk.cli.sources import DocumentationSet
from refdesk.cli.terminal import print_table, say
from refdesk.config import Config
from refdesk.errors import ToolFailure
from refdesk.recipes import Brought, Recipe, bring_in, find, names


def recipes(arguments: Namespace) -> int:
    """`refdesk recipes`."""
    found = [recipe for name in names() if (recipe := find(name)) is not None]
    if arguments.json:
        print(json.dumps([_facts(recipe) for recipe in found], indent=2, ensure_ascii=False))
        return Exit.DONE
    print_table(("NAME", "DEBIAN PACKAGE", "TITLE"), [(one.name, one.package or "-", one.title) for one in found])
    print("`refdesk add NAME` brings one in, and brings it up to date when it is there.")
    return Exit.DONE


def _facts(recipe: Recipe) -> dict[str, Any]:
    return {"name": recipe.name, "title": recipe.title, "home": recipe.home, "package": recipe.package}


async def bring_in_sets(
    sets: Sequence[DocumentationSet], config: Config, intake: Intake, arguments: Namespace
) -> Outcome:
    """Each of them, fetched or from what is installed; one that cannot be had does not keep the others out."""
    outcome = Outcome()
    for one in sets:
        recipe = find(one.name)
        assert recipe is not None
        try:
            brought = await _bring_in(recipe, config, intake, arguments)
        except ToolFailure as failure:
            outcome += Outcome(failed=(Failure(one.name, failure.detail),))
        else:
            _tell(recipe, brought)
            outcome += Outcome(brought.new, brought.changed, brought.unchanged, brought.removed)
    return await intake.settled(outcome)


async def _bring_in(recipe: Recipe, config: Config, intake: Intake, arguments: Namespace) -> Brought:
    bar = ProgressBar(1)

    async def progress(done: float, total: float | None, doing: str) -> None:
        bar.advance(recipe.name, done / total if total else 0.0, doing)

    try:
        return await bring_in(
            recipe,
            intake.engine,
            intake.tenant,
            config.convert,
            config.data_path,
            version=intake.label.version,
            collection=arguments.collection or "",
            metadata=intake.label.metadata,
            offline=arguments.offline,
            progress=progress,
        )
    finally:
        bar.clear()


def _tell(recipe: Recipe, brought: Brought) -> None:
    if brought.note:
        say(brought.note)
    release = f" {brought.release}" if brought.release else ""
    say(f"{recipe.title}{release} from {brought.source}, in the collection {brought.collection!r}")
