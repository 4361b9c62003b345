"""The command that installs an optional extra."""

from __future__ import annotations

import os.path
from pathlib import Path

SETUP = "scripts/setup"


def build_install_command(extra: str, root: Path = Path(__file__).parents[3]) -> str:
    """Return the command that installs an extra: in a checkout at `root`, its setup script."""
    if os.path.isfile(root / SETUP):
        return f"{SETUP} --extra {extra}"
    return f"pip install 'refdesk[{extra}]'"
