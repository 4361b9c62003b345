"""Loads the configuration for a command from its options."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

from refdesk.config import Config, find_config_file, load

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
    path = Path(arguments.config) if arguments.config else find_config_file(Path.cwd(), os.environ)
    options = {setting: getattr(arguments, option, None) for option, setting in _OPTIONS.items()}
    overrides = {setting: value for setting, value in options.items() if value is not None}
    return load(path, os.environ, overrides, serves=serves)
