"""Refdesk itself, its settings, its data folder and its console."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from refdesk.cli.checks.finding import Finding, Situation, fail, ok, warn
from refdesk.config import require_support
from refdesk.errors import ConfigError
from refdesk.version import __version__

EXTRAS = {"ocr": "rapidocr", "redis": "redis", "otel": "opentelemetry-sdk", "sentry": "sentry-sdk"}
"""What can be installed besides, and the package by which it is known to be, which nothing else brings."""

LITTLE_SPACE = 1_073_741_824
NO_SPACE = 104_857_600
"""Bytes free on the disk: a large documentation set takes some hundred megabytes, and a full disk stops all of it."""

PAGES = Path(__file__).parents[2] / "console" / "pages"


def python(situation: Situation) -> Sequence[Finding]:
    """What Refdesk runs on."""
    there = [extra for extra, package in EXTRAS.items() if _is_installed(package)]
    missing = [extra for extra in EXTRAS if extra not in there]
    words = f"Refdesk {__version__} on Python {platform.python_version()}"
    extras = f"extras {', '.join(there)}" if there else "no extras"
    left = f"; not installed: {', '.join(missing)} (pip install 'refdesk[{missing[0]}]')" if missing else ""
    return [ok(f"{words} with {extras}{left}")]


def _is_installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def config(situation: Situation) -> Sequence[Finding]:
    """Whether a server could start with it."""
    file = situation.config_file
    where = str(file) if file else "no configuration file, which is fine; `refdesk init` writes one"
    if situation.problems:
        told = [fail(problem, _mend(file)) for problem in situation.problems]
        return [*told, warn("the checks below are of the defaults", "mend the configuration, then look again")]
    try:
        require_support(situation.config)
    except ConfigError as error:
        return [fail(problem, "install what is missing, or switch it off") for problem in error.problems]
    return [ok(where), *(warn(one, "take it out, or correct it") for one in situation.config.warnings)]


def _mend(file: Path | None) -> str:
    if file is None:
        return "mend the environment variables that it names"
    return f"edit {file}" if file.exists() else "name one that is there; `refdesk init` writes one to begin with"


def data(situation: Situation) -> Sequence[Finding]:
    """Whether documents can be kept."""
    return list(_folder(situation.config.data_path))


def _folder(folder: Path) -> Iterator[Finding]:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        yield fail(f"{there} is no folder", "name another one with --data or REFDESK_DATA")
        return
    if not os.access(there, os.W_OK | os.X_OK):
        yield fail(
            f"{there} cannot be written to",
            f"give yourself the right to write to {folder}, or name another folder with --data",
        )
        return
    owner = there.stat().st_uid
    if there == folder and hasattr(os, "geteuid") and owner not in (os.geteuid(), 0):
        yield warn(
            f"{folder} belongs to user {owner}, not to you", f"run as that user, or: chown -R {os.geteuid()} {folder}"
        )
    free = shutil.disk_usage(there).free
    text = f"{folder}{'' if there == folder else ', to be made when it is needed'}, {free / 1e9:,.1f} GB free"
    if free < NO_SPACE:
        yield fail(text, "make room on the disk; nothing more can be brought in")
    elif free < LITTLE_SPACE:
        yield warn(text, "make room on the disk before you bring in much")
    else:
        yield ok(text)


def console(situation: Situation) -> Sequence[Finding]:
    """Whether its pages are there."""
    if not (PAGES / "index.html").is_file():
        return [
            fail(
                "the pages of the console are not installed",
                "install Refdesk anew: pip install --force-reinstall refdesk",
            )
        ]
    where = situation.config.own_url.removesuffix("/mcp") + "/console"
    running = situation.desk is not None and situation.desk.is_refdesk
    return [ok(f"at {where}" if running else f"at {where} once `refdesk serve` runs")]
