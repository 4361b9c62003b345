"""`refdesk convert`: convert files, folders and web pages to Markdown, HTML or JSON, in this process."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from refdesk.cli.arguments import Misuse
from refdesk.cli.load_config import load_settings
from refdesk.cli.terminal import ProgressBar, print_json, print_message
from refdesk.config.models import Config
from refdesk.documents.conversions import ConversionOptions, Export, File, open_conversions
from refdesk.documents.convert.source import PageRange
from refdesk.documents.file_names import clean_name
from refdesk.documents.files import open_local_file
from refdesk.errors import CannotOpen, ToolFailure
from refdesk.ingest.sources import SourceFailure, is_url, list_folder
from refdesk.telemetry.metrics import Metrics

SUFFIXES = {"markdown": ".md", "html": ".html", "json": ".json"}


async def convert(arguments: SimpleNamespace) -> int:
    """Run `refdesk convert`."""
    config = load_settings(arguments)
    found = [one for source in arguments.sources for one in _find_sources(source)]
    failures = [one for one in found if isinstance(one, SourceFailure)]
    tasks = _choose_targets(arguments, [one for one in found if not isinstance(one, SourceFailure)])
    if not found:
        raise CannotOpen("No documents found in the given sources.")
    options = ConversionOptions(parse_page_range(arguments.pages))
    for failure in failures:
        print_message(f"{failure.name}: {failure.cause}")
    results: list[dict[str, Any]] = [{"source": one.name, "error": one.cause} for one in failures]
    results += await _convert_all(config, tasks, arguments.to, options)
    if arguments.json:
        print_json(results)
    else:
        print("".join(result.get("content", "") for result in results), end="")
    return 1 if any("error" in result for result in results) else 0


def _find_sources(source: str) -> Iterator[tuple[str, PurePath] | SourceFailure]:
    """Yield each document of a source with its path relative to the source, or a failure."""
    if is_url(source):
        parts = urlsplit(source)
        yield source, PurePath(PurePath(parts.path).name or parts.netloc)
    elif os.path.isdir(source):
        listing = list_folder(Path(source))
        yield from ((str(one.path), PurePath(one.name)) for one in listing.sources)
        yield from (SourceFailure(os.path.join(source, one.relative), one.reason) for one in listing.skipped)
    else:
        yield source, PurePath(PurePath(source).name)


def _choose_targets(arguments: SimpleNamespace, found: Sequence[tuple[str, PurePath]]) -> list[tuple[str, Path | None]]:
    """Return the target of each source; None is standard output. Several sources need an output folder.

    In a folder, targets are unique, and no source file is overwritten.
    """
    output = Path(arguments.output) if arguments.output else None
    is_folder = len(found) > 1 or (output is not None and output.is_dir()) or any(map(os.path.isdir, arguments.sources))
    if not is_folder:
        if output is not None and os.path.realpath(output) == os.path.realpath(arguments.sources[0]):
            raise CannotOpen(f"{output} is the file to convert; choose another output file with -o.")
        return [(source, output) for source, _ in found]
    if output is None:
        raise CannotOpen("Several documents need an output folder; name one with -o.")
    used_paths = {os.path.realpath(source) for source, _ in found}
    tasks: list[tuple[str, Path | None]] = []
    for source, path in found:
        names = _iter_targets(output / path, SUFFIXES[arguments.to])
        target = next(name for name in names if os.path.realpath(name) not in used_paths)
        used_paths.add(os.path.realpath(target))
        tasks.append((source, target))
    return tasks


def _iter_targets(path: Path, suffix: str) -> Iterator[Path]:
    """Yield target names for `guide.pdf`: `guide.md`, `guide.pdf.md`, `guide.pdf-2.md` and so on."""
    yield path.with_suffix(suffix)
    yield path.with_name(path.name + suffix)
    yield from (path.with_name(f"{path.name}-{number}{suffix}") for number in count(2))


async def _convert_all(
    config: Config, tasks: Sequence[tuple[str, Path | None]], to: Export, options: ConversionOptions
) -> list[dict[str, Any]]:
    bar = ProgressBar(len(tasks))
    slots = asyncio.Semaphore(config.convert.workers)
    async with open_conversions(config.convert, config.data_path, Metrics()) as conversions:

        async def run(source: str, target: Path | None) -> dict[str, Any]:
            async def progress(done: float, total: float | None, activity: str) -> None:
                bar.advance(source, done / total if total else 0.0, activity)

            async with slots:
                try:
                    if is_url(source):
                        data, facts = await conversions.fetch_and_export(source, to, options, progress)
                    else:
                        with open_file(Path(source)) as file:
                            data, facts = await conversions.convert_and_export(file, to, options, progress)
                    bar.clear()
                    for warning in facts["warnings"]:
                        print_message(f"{source}: {warning}")
                    return {"source": source, **_write_output(target, data), **facts}
                except ToolFailure as failure:
                    bar.clear()
                    where = "" if PurePath(source).name in failure.detail else f"{source}: "
                    print_message(f"{where}{failure.detail}")
                    return {"source": source, "error": failure.detail}
                finally:
                    bar.finish(source)

        try:
            return await asyncio.gather(*(run(source, target) for source, target in tasks))
        finally:
            bar.clear()


def _write_output(target: Path | None, data: bytes) -> dict[str, str]:
    """Write the output to the target file, or return it as content."""
    if target is None:
        return {"content": data.decode("utf-8", "replace")}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    except OSError as error:
        raise CannotOpen(f"{target} cannot be written: {error.strerror or error}.") from None
    return {"target": str(target)}


@contextmanager
def open_file(path: Path) -> Iterator[File]:
    """Open a local file for conversion."""
    try:
        opened = open_local_file(path)
    except OSError as error:
        raise CannotOpen(f"{path} cannot be opened: {error.strerror or error}.") from None
    with opened:
        yield File(opened.fd, clean_name(opened.name) or "document", opened.size)


def parse_page_range(text: str | None) -> PageRange | None:
    """Parse `3` or `3-7`."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", text)
    pages = PageRange(int(match[1]), int(match[2] or match[1])) if match else None
    if pages is None or not 1 <= pages.first <= pages.last:
        raise Misuse("--pages: must be a page or a range such as 3-7, counted from 1")
    return pages
