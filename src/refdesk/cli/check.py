"""`refdesk check`: is the configuration one that the server can start with?"""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace

from refdesk.cli.settings import load_settings
from refdesk.config import require_support, without_effect
from refdesk.downstream.files.servers_file import combined

WIDEST = 60
"""Characters of a column; what is longer, such as an MCP server, pushes aside what follows in its own line alone."""


def check(arguments: Namespace) -> int:
    """Print that all is well, or every problem; with `--show`, every setting with its value and source."""
    config = load_settings(arguments, serves=True)
    require_support(config)
    for warning in (*without_effect(config), *combined(config, os.environ).warnings):
        print(f"refdesk: {warning}", file=sys.stderr)
    settings = config.describe()
    if arguments.json:
        rows = [{"key": key, "value": value, "source": source} for key, value, source in settings]
        print(json.dumps(rows if arguments.show else {"status": "ok"}, indent=2, ensure_ascii=False))
    elif arguments.show:
        widths = [min(max(len(row[column]) for row in settings), WIDEST) for column in (0, 1)]
        for key, value, source in settings:
            print(f"{key:<{widths[0]}}  {value:<{widths[1]}}  {source}")
    else:
        print("The configuration is fine.")
    return 0
