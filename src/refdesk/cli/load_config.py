"""Loads the configuration for a command from its options, and opens Refdesk with it."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from refdesk.config.dotenv import FILE_NAME, DotEnv, read_dotenv
from refdesk.config.loading import find_config_file, load
from refdesk.config.models import Config

if TYPE_CHECKING:
    from refdesk.app import Desk

_OPTIONS = {
    "data": "data_dir",
    "host": "server.host",
    "port": "server.port",
    "workers": "server.workers",
    "toolsets": "toolsets",
    "allow_anonymous": "server.allow_anonymous",
}


def load_settings(arguments: SimpleNamespace, *, serves: bool = False) -> Config:
    """Load the configuration for a command. `serves` enables the access rules for serving other callers."""
    dotenv = _apply_dotenv(Path.cwd() / FILE_NAME)
    path = Path(arguments.config) if arguments.config else find_config_file(Path.cwd(), os.environ)
    options = {setting: getattr(arguments, option, None) for option, setting in _OPTIONS.items()}
    overrides = {setting: value for setting, value in options.items() if value is not None}
    return load(path, os.environ, overrides, serves=serves, dotenv=dotenv)


@cache
def _apply_dotenv(path: Path) -> DotEnv:
    """Set the variables of a `.env` file that the environment lacks, and return these."""
    found = read_dotenv(path)
    missing = {name: value for name, value in found.variables.items() if name not in os.environ}
    os.environ.update(missing)
    return DotEnv(missing, found.faults)


def open_local_desk(arguments: SimpleNamespace) -> AbstractAsyncContextManager[Desk]:
    """Open Refdesk in this process for a command, without its downstream servers."""
    from refdesk.app import open_desk

    return open_desk(load_settings(arguments), servers=False)
