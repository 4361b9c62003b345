"""`refdesk check`: validate the configuration."""

from __future__ import annotations

import os
from types import SimpleNamespace

from refdesk.cli.load_config import load_settings
from refdesk.cli.terminal import print_json, print_message
from refdesk.config.rules import require_support
from refdesk.config.setting_keys import describe_settings
from refdesk.downstream.files.servers_file import load_servers

MAX_COLUMN_WIDTH = 60
"""Characters. A longer cell, such as an MCP server, shifts only its own row."""


def check(arguments: SimpleNamespace) -> None:
    """Run `refdesk check`; with `--show`, print every setting with its value and source."""
    config = load_settings(arguments, serves=True)
    require_support(config)
    found = load_servers(config, os.environ)
    disabled = [f"{name}: {one.problem}; the server is disabled" for name, one in found.servers.items() if one.problem]
    for warning in (*config.warnings, *map(str, found.warnings), *disabled):
        print_message(warning)
    settings = describe_settings(config)
    if arguments.json:
        rows = [{"key": key, "value": value, "source": source} for key, value, source in settings]
        print_json(rows if arguments.show else {"status": "ok"})
    elif arguments.show:
        widths = [min(max(len(row[column]) for row in settings), MAX_COLUMN_WIDTH) for column in (0, 1)]
        for key, value, source in settings:
            print(f"{key:<{widths[0]}}  {value:<{widths[1]}}  {source}")
    else:
        print("The configuration is valid.")
