"""`refdesk add`: documents in, to be searched; with what was new, what changed, and what failed and why."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from collections.abc import Sequence

from refdesk.app import open_desk
from refdesk.calls import LOCAL
from refdesk.cli.exit_codes import Exit
from refdesk.cli.ingest import Intake, Outcome
from refdesk.cli.inputs import MAX_FILES
from refdesk.cli.parser.arguments import Misuse
from refdesk.cli.recipes import bring_in_sets
from refdesk.cli.settings import load_settings
from refdesk.cli.sources import STANDARD_INPUT, DocumentationSet, Folder, Label, Named, metadata, named
from refdesk.cli.terminal import printable, say
from refdesk.config import Config
from refdesk.documents.watching import changes

SETTLE_SECONDS = 0.5
"""How long a watched folder has to be still: an editor that saves, or a checkout, writes many files in a row."""


def add(arguments: Namespace) -> int:
    """`refdesk add`."""
    config = load_settings(arguments)
    label = Label(arguments.version, metadata(arguments.metadata))
    things = named(
        arguments.sources,
        collection=arguments.collection,
        ignore=arguments.ignore,
        title=arguments.title,
        standard_input=_standard_input() if STANDARD_INPUT in arguments.sources else "",
    )
    if arguments.watch and not any(isinstance(thing, Folder) for thing in things):
        raise Misuse("--watch: name a folder; single documents are not watched")
    try:
        return asyncio.run(_add(config, arguments, label, things))
    except KeyboardInterrupt:
        if arguments.watch:
            return 0
        say("stopped waiting; nothing that was taken on is lost, and a server or the next refdesk add goes on with it")
        return Exit.INTERRUPTED


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Misuse("standard input must be text in UTF-8") from None


async def _add(config: Config, arguments: Namespace, label: Label, things: Sequence[Named]) -> int:
    async with open_desk(config, servers=False) as desk:
        intake = Intake(desk.engine, LOCAL.tenant, label, waits=not arguments.no_wait)
        outcome = await intake.bring_in(things)
        sets = [thing for thing in things if isinstance(thing, DocumentationSet)]
        if sets:
            outcome += await bring_in_sets(sets, config, intake, arguments)
        _tell(outcome, arguments.json, one_line=arguments.watch)
        if arguments.watch:
            folders = [thing for thing in things if isinstance(thing, Folder)]
            await asyncio.gather(*(_watch(intake, folder, arguments.json) for folder in folders))
        elif arguments.no_wait and (outcome.new or outcome.changed):
            say("it is brought in by the server, or by the next refdesk add; see refdesk documents --status pending")
    return 1 if outcome.failed else 0


async def _watch(intake: Intake, folder: Folder, as_json: bool) -> None:
    if not as_json:
        say(f"watching {folder.path}; Ctrl-C ends it")
    settled = changes(folder.path, settle_seconds=SETTLE_SECONDS, max_files=MAX_FILES, ignore=folder.ignore)
    async for _ in settled:
        outcome = await intake.update(folder)
        if not outcome.is_nothing():
            _tell(outcome, as_json, one_line=True)


def _tell(outcome: Outcome, as_json: bool, *, one_line: bool) -> None:
    """The summary, and each failure with its cause; flushed, for who reads along."""
    for failure in outcome.failed:
        say(f"{failure.name}: {failure.cause}")
    report = json.dumps(outcome.as_json(), indent=None if one_line else 2, ensure_ascii=False)
    print(report if as_json else printable(outcome.sentence()), flush=True)
