"""`refdesk init`: write a commented refdesk.yaml and a .mcp.json into this folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from refdesk.cli.exit_codes import ExitCode
from refdesk.cli.load_config import load_settings
from refdesk.cli.setup.changes import FileChange, read_text
from refdesk.cli.setup.clients import CLIENTS, Remote
from refdesk.cli.terminal import print_json, print_message
from refdesk.config.loading import FILE_NAME
from refdesk.config.template import render_template

SERVER_NAME = "refdesk"

NEXT_STEPS = """\
Next: `refdesk add docs/` adds your documents,
      `refdesk serve` starts the server, with its console at {console}, and
      `refdesk install claude-code` configures a client to use it."""


def init(arguments: SimpleNamespace) -> int:
    """Run `refdesk init`. Existing files with other content are shown and kept, unless `--force` is given."""
    path = Path(arguments.config) if arguments.config else Path.cwd() / FILE_NAME
    planned = [FileChange(path, read_text(path), render_template(), is_shared=True), _plan_mcp_json(arguments)]
    changes = [change for change in planned if not change.is_empty]
    conflicts = [change for change in changes if _is_conflict(change) and not arguments.force]
    if not arguments.json:
        for change in changes if arguments.dry_run else conflicts:
            change.print_diff()
    written = [] if arguments.dry_run else [change for change in changes if change not in conflicts]
    for change in written:
        change.write()
    code = ExitCode.FAILED if conflicts and not arguments.dry_run else ExitCode.OK
    if arguments.json:
        facts = {"written": [str(one.path) for one in written], "left": [str(one.path) for one in conflicts]}
        print_json({**facts, "dry_run": arguments.dry_run})
        return code
    for change in written:
        print(f"{'Changed' if change.before is not None else 'Wrote'} {change.path}")
    for change in conflicts:
        print_message(f"{change.path} exists and differs; --force overwrites it as shown above")
    if not conflicts and not arguments.dry_run:
        console = load_settings(arguments).own_url.removesuffix("/mcp") + "/console"
        print(NEXT_STEPS.format(console=console) if written else "Both files are up to date; nothing to do.")
    return code


def _plan_mcp_json(arguments: SimpleNamespace) -> FileChange:
    client = CLIENTS["claude-code"]
    path = Path.cwd() / ".mcp.json"
    # A configuration file that doesn't exist yet can't be loaded.
    settings = SimpleNamespace(config=arguments.config, data=arguments.data)
    if arguments.config and not Path(arguments.config).exists():
        settings.config = None
    return client.plan_install(path, SERVER_NAME, Remote(load_settings(settings).own_url), is_shared=True)


def _is_conflict(change: FileChange) -> bool:
    """Whether content would be lost. Adding Refdesk to a .mcp.json that lists other servers loses none."""
    if change.before is None:
        return False
    if change.path.name != ".mcp.json":
        return True
    return CLIENTS["claude-code"].read_entry(change.path, change.before, SERVER_NAME) is not None
