"""From a command's options to the configuration."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from refdesk.config import Config, find, load

_OPTIONS = {
    "data": "data_dir",
    "host": "server.host",
    "port": "server.port",
    "workers": "server.workers",
    "toolsets": "toolsets",
    "allow_anonymous": "server.allow_anonymous",
}


def load_settings(arguments: Namespace, *, serves: bool = False) -> Config:
    """The configuration that a command runs with; `serves` means that it is one by which a desk lets others in."""
    path = Path(arguments.config) if arguments.config else find(Path.cwd(), os.environ)
    return load(path, os.environ, _overrides(arguments), serves=serves)


def _overrides(arguments: Namespace) -> dict[str, Any]:
    given = {setting: getattr(arguments, option, None) for option, setting in _OPTIONS.items()}
    return {setting: value for setting, value in given.items() if value is not None}
