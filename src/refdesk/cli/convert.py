"""`refdesk convert`: one's own files, folders and web pages to Markdown, HTML or JSON, in this process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from refdesk.cli.inputs import Failure, documents_under, is_url, opened, page_range
from refdesk.cli.progress import ProgressBar
from refdesk.cli.settings import load_settings
from refdesk.cli.terminal import say
from refdesk.config import Config
from refdesk.documents.conversions import Conversions, Export, Wanted, open_conversions
from refdesk.errors import CannotOpen, ToolFailure
from refdesk.telemetry import Metrics

SUFFIX = {"markdown": ".md", "html": ".html", "json": ".json"}


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to convert, and where it goes; None is standard output."""

    source: str
    target: Path | None


def convert(arguments: Namespace) -> int:
    """`refdesk convert`."""
    config = load_settings(arguments)
    found = [one for source in arguments.sources for one in _found(source)]
    failures = [one for one in found if isinstance(one, Failure)]
    tasks = list(_tasks(arguments, [one for one in found if not isinstance(one, Failure)]))
    if not found:
        raise CannotOpen("There is no document in what was named.")
    wanted = Wanted(page_range(arguments.pages))
    results = [_told(failure) for failure in failures]
    results += asyncio.run(_convert_all(config, tasks, arguments.to, wanted))
    if arguments.json:
        print(json.dumps(results, indent=2, ensure_ascii=False))
    else:
        print("".join(result.get("content", "") for result in results), end="")
    return 1 if any("error" in result for result in results) else 0


def _told(failure: Failure) -> dict[str, Any]:
    say(f"{failure.name}: {failure.cause}")
    return {"source": failure.name, "error": failure.cause}


def _tasks(arguments: Namespace, found: Sequence[tuple[str, PurePath]]) -> Iterator[Task]:
    """What there is to do; several things need a folder to go to."""
    output = Path(arguments.output) if arguments.output else None
    is_folder = len(found) > 1 or (output is not None and output.is_dir()) or any(map(os.path.isdir, arguments.sources))
    if not is_folder:
        if output is not None and os.path.realpath(output) == os.path.realpath(arguments.sources[0]):
            raise CannotOpen(f"{output} is what is to be converted; name another file with -o.")
        yield from (Task(source, output) for source, _ in found)
        return
    if output is None:
        raise CannotOpen("Several documents do not go to standard output; name a folder with -o.")
    yield from _into_folder(found, output, SUFFIX[arguments.to])


def _found(source: str) -> Iterator[tuple[str, PurePath] | Failure]:
    """Each document that a source stands for, with its path below what was named; or what cannot be looked at."""
    if is_url(source):
        parts = urlsplit(source)
        yield source, PurePath(PurePath(parts.path).name or parts.netloc)
    elif os.path.isdir(source):
        found, left_out = documents_under(Path(source))
        yield from ((str(one.path), PurePath(one.relative)) for one in found)
        yield from (Failure(os.path.join(source, one.relative), one.reason) for one in left_out)
    else:
        yield source, PurePath(PurePath(source).name)


def _into_folder(found: Sequence[tuple[str, PurePath]], folder: Path, suffix: str) -> Iterator[Task]:
    """Each to a name of its own; none of what is converted is written over."""
    taken = {os.path.realpath(source) for source, _ in found}
    for source, path in found:
        target = next(name for name in _names(folder / path, suffix) if os.path.realpath(name) not in taken)
        taken.add(os.path.realpath(target))
        yield Task(source, target)


def _names(path: Path, suffix: str) -> Iterator[Path]:
    """`guide.pdf` goes to `guide.md`, or else to `guide.pdf.md`, or else to `guide.pdf-2.md`, and so on."""
    yield path.with_suffix(suffix)
    yield path.with_name(path.name + suffix)
    yield from (path.with_name(f"{path.name}-{number}{suffix}") for number in count(2))


async def _convert_all(config: Config, tasks: Sequence[Task], to: Export, wanted: Wanted) -> list[dict[str, Any]]:
    bar = ProgressBar(len(tasks))
    turns = asyncio.Semaphore(config.convert.workers)
    async with open_conversions(config.convert, config.data_path, Metrics()) as conversions:

        async def run(task: Task) -> dict[str, Any]:
            async with turns:
                try:
                    return await _convert_one(conversions, task, to, wanted, bar)
                except ToolFailure as failure:
                    bar.clear()
                    where = "" if PurePath(task.source).name in failure.detail else f"{task.source}: "
                    print(f"refdesk: {where}{failure.detail}", file=sys.stderr)
                    return {"source": task.source, "error": failure.detail}
                finally:
                    bar.finish(task.source)

        try:
            return await asyncio.gather(*map(run, tasks))
        finally:
            bar.clear()


async def _convert_one(
    conversions: Conversions, task: Task, to: Export, wanted: Wanted, bar: ProgressBar
) -> dict[str, Any]:
    async def progress(done: float, total: float | None, doing: str) -> None:
        bar.advance(task.source, done / total if total else 0.0, doing)

    if is_url(task.source):
        data, facts = await conversions.fetch_and_export(task.source, to, wanted, progress)
    else:
        with opened(Path(task.source)) as file:
            data, facts = await conversions.convert_and_export(file, to, wanted, progress)
    bar.clear()
    for warning in facts["warnings"]:
        print(f"refdesk: {task.source}: {warning}", file=sys.stderr)
    return {"source": task.source, **_written(task.target, data), **facts}


def _written(target: Path | None, data: bytes) -> dict[str, str]:
    """Where the outcome is: in its file, or here."""
    if target is None:
        return {"content": data.decode("utf-8", "replace")}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    except OSError as error:
        raise CannotOpen(f"{target} cannot be written: {error.strerror or error}.") from None
    return {"target": str(target)}
