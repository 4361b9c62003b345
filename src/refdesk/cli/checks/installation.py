"""Checks of the installation, configuration, data folder and console."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from refdesk.cli.checks.finding import CheckContext, Finding, fail, ok, warn
from refdesk.config import require_support
from refdesk.errors import ConfigError
from refdesk.version import __version__

EXTRAS = {"ocr": "rapidocr", "redis": "redis", "otel": "opentelemetry-sdk", "sentry": "sentry-sdk"}
"""Extras, each with a package that only this extra installs."""

LOW_SPACE = 1_073_741_824
CRITICAL_SPACE = 104_857_600
"""Free bytes on the disk. A large documentation set takes some hundred megabytes, and a full disk stops all writes."""

PAGES = Path(__file__).parents[2] / "console" / "pages"


def check_python(context: CheckContext) -> Sequence[Finding]:
    """Report the versions and the installed extras."""
    installed = [extra for extra, package in EXTRAS.items() if _is_installed(package)]
    missing = [extra for extra in EXTRAS if extra not in installed]
    versions = f"Refdesk {__version__} on Python {platform.python_version()}"
    extras = f"extras {', '.join(installed)}" if installed else "no extras"
    hint = f"; not installed: {', '.join(missing)} (pip install 'refdesk[{missing[0]}]')" if missing else ""
    return [ok(f"{versions} with {extras}{hint}")]


def _is_installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def check_config(context: CheckContext) -> Sequence[Finding]:
    """Check whether a server could start with the configuration."""
    file = context.config_file
    where = str(file) if file else "no configuration file, which is optional; `refdesk init` writes one"
    if context.problems:
        fix = "fix the environment variables that it names"
        if file is not None:
            fix = f"edit {file}" if file.exists() else "name an existing file; `refdesk init` writes one to start from"
        failures = [fail(problem, fix) for problem in context.problems]
        return [*failures, warn("the other checks use the defaults", "fix the configuration, then run this again")]
    try:
        require_support(context.config)
    except ConfigError as error:
        return [fail(problem, "install what is missing, or disable it") for problem in error.problems]
    return [ok(where), *(warn(one, "remove or correct it") for one in context.config.warnings)]


def check_data(context: CheckContext) -> Sequence[Finding]:
    """Check whether the data folder can be written to."""
    return list(_check_folder(context.config.data_path))


def _check_folder(folder: Path) -> Iterator[Finding]:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        yield fail(f"{existing} is not a folder", "choose another one with --data or REFDESK_DATA")
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        yield fail(
            f"{existing} is not writable",
            f"make {folder} writable, or choose another folder with --data",
        )
        return
    owner = existing.stat().st_uid
    if existing == folder and hasattr(os, "geteuid") and owner not in (os.geteuid(), 0):
        yield warn(f"{folder} belongs to user {owner}", f"run as that user, or: chown -R {os.geteuid()} {folder}")
    free = shutil.disk_usage(existing).free
    text = f"{folder}{'' if existing == folder else ', created when needed'}, {free / 1e9:,.1f} GB free"
    if free < CRITICAL_SPACE:
        yield fail(text, "free disk space; no more documents can be added")
    elif free < LOW_SPACE:
        yield warn(text, "free disk space before you add more documents")
    else:
        yield ok(text)


def check_console(context: CheckContext) -> Sequence[Finding]:
    """Check whether the console's pages are installed."""
    if not (PAGES / "index.html").is_file():
        return [fail("the pages of the console are missing", "reinstall: pip install --force-reinstall refdesk")]
    where = context.config.own_url.removesuffix("/mcp") + "/console"
    running = context.desk is not None and context.desk.is_refdesk
    return [ok(f"at {where}" if running else f"at {where} once `refdesk serve` runs")]
