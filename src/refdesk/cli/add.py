"""`refdesk add`: ingest documents and report which are new, changed, unchanged, removed or failed."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from types import SimpleNamespace
from typing import Any

from refdesk.calls import LOCAL
from refdesk.cli.arguments import Misuse
from refdesk.cli.error_report import ExitCode
from refdesk.cli.load_config import load_settings
from refdesk.cli.recipes import add_documentation_sets
from refdesk.cli.terminal import ProgressBar, print_message, sanitize
from refdesk.config.models import Config
from refdesk.config.rules import require_support
from refdesk.engines.base import IN_PROGRESS, DocumentStatus
from refdesk.ingest.folder_watch import changes
from refdesk.ingest.ingest_pipeline import open_pipeline
from refdesk.ingest.ingester import Ingester, IngestOutcome
from refdesk.ingest.sources import (
    MAX_FILES,
    STANDARD_INPUT,
    DocumentationSet,
    DocumentDefaults,
    Folder,
    ResolvedSource,
    resolve_sources,
)
from refdesk.telemetry.extras import open_reports
from refdesk.telemetry.log import Log, iter_secrets
from refdesk.telemetry.metrics import Metrics

SETTLE_SECONDS = 0.5
"""Quiet time before a watched folder is rescanned: saving a file or a checkout writes many files in a row."""


def add(arguments: SimpleNamespace) -> int:
    """Run `refdesk add`."""
    config = load_settings(arguments)
    defaults = DocumentDefaults(arguments.version, parse_metadata(arguments.metadata))
    sources = resolve_sources(
        arguments.sources,
        collection=arguments.collection,
        ignore=arguments.ignore,
        title=arguments.title,
        standard_input=_read_standard_input() if STANDARD_INPUT in arguments.sources else "",
        notify=print_message,
    )
    if arguments.watch and not any(isinstance(source, Folder) for source in sources):
        raise Misuse("--watch: name a folder; single documents are not watched")
    try:
        return asyncio.run(_add(config, arguments, defaults, sources))
    except KeyboardInterrupt:
        if arguments.watch:
            return 0
        print_message("stopped waiting; queued documents are indexed by a running server or the next refdesk add")
        return ExitCode.INTERRUPTED


def _read_standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Misuse("standard input must be text in UTF-8") from None


async def _add(
    config: Config, arguments: SimpleNamespace, defaults: DocumentDefaults, sources: Sequence[ResolvedSource]
) -> int:
    require_support(config)
    async with AsyncExitStack() as stack:
        log = stack.enter_context(closing(Log("warning", config.logging.format, config.logging.file)))
        log.mask_secrets(iter_secrets(config))
        log.report = await stack.enter_async_context(open_reports(config.monitoring.sentry))
        pipeline = await stack.enter_async_context(open_pipeline(config, log, Metrics()))
        ingester = Ingester(pipeline.engine, LOCAL.tenant, defaults, _show_progress, wait=not arguments.no_wait)
        sets = [source for source in sources if isinstance(source, DocumentationSet)]
        try:
            outcome = await ingester.ingest(sources)
            if sets:
                outcome += await add_documentation_sets(sets, config, ingester, arguments)
        finally:
            ProgressBar(0).clear()
        _print_outcome(outcome, arguments.json, one_line=arguments.watch)
        if arguments.watch:
            folders = [source for source in sources if isinstance(source, Folder)]
            await asyncio.gather(*(_watch(ingester, folder, arguments.json) for folder in folders))
        elif arguments.no_wait and (outcome.new or outcome.changed):
            print_message("queued for a running server or the next refdesk add; see refdesk documents --status pending")
    return 1 if outcome.failed else 0


def _show_progress(statuses: Sequence[DocumentStatus]) -> None:
    """Draw the progress bar: documents are converted first, then embedded. Erase it at the end."""
    unfinished = [status for status in statuses if status.status in IN_PROGRESS]
    bar = ProgressBar(len(statuses))
    if not unfinished:
        bar.clear()
        return
    unread = sum(status.status != "embedding" for status in unfinished)
    chunks, embedded = (sum(counts) for counts in zip(*((s.chunks, s.embedded) for s in statuses), strict=True))
    done = len(statuses) - len(unfinished)
    fraction = (done + sum(status.progress for status in unfinished)) / len(statuses)
    activity = f"converting; {unread:,} left" if unread else f"{embedded:,} of {chunks:,} chunks embedded"
    bar.update(done, fraction, activity)


async def _watch(ingester: Ingester, folder: Folder, as_json: bool) -> None:
    if not as_json:
        print_message(f"watching {folder.path}; press Ctrl-C to stop")
    events = changes(folder.path, settle_seconds=SETTLE_SECONDS, max_files=MAX_FILES, ignore=folder.ignore)
    async for _ in events:
        outcome = await ingester.sync_folder(folder)
        if not outcome.is_empty():
            _print_outcome(outcome, as_json, one_line=True)


def _print_outcome(outcome: IngestOutcome, as_json: bool, *, one_line: bool) -> None:
    """Print the failures and the summary, flushed for programs that read along."""
    for failure in (*outcome.warnings, *outcome.failed):
        print_message(f"{failure.name}: {failure.cause}")
    report = json.dumps(outcome.to_dict(), indent=None if one_line else 2, ensure_ascii=False)
    print(report if as_json else sanitize(outcome.summary()), flush=True)


def parse_metadata(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse `name=value` pairs. Numbers, booleans and lists keep their type, so that filters compare them as such."""
    resolved: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise Misuse(f"--metadata: write {pair!r} as name=value")
        try:
            parsed = json.loads(value, parse_constant=str)
        except ValueError:
            parsed = None
        resolved[name] = parsed if isinstance(parsed, bool | int | float | list) else value
    return resolved
