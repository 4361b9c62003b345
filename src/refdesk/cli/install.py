"""`refdesk install` and `uninstall`: edit a client's settings after showing a diff. `refdesk init` writes new files."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from refdesk.cli.arguments import Misuse
from refdesk.cli.client_setup import CLIENTS, DEFAULT_NAME, ClientSetup, DeskTarget, Local, Remote
from refdesk.cli.error_report import ExitCode
from refdesk.cli.load_config import load_settings
from refdesk.cli.running_desk import probe_desk
from refdesk.cli.settings_files import FileChange, read_text
from refdesk.cli.terminal import confirm, print_json, print_message, print_result, sanitize
from refdesk.config.loading import FILE_NAME
from refdesk.config.template import render_template
from refdesk.config.types import has_scheme
from refdesk.downstream.files.servers_file import LOOPBACK

TEMPORARY_FOLDERS = ("/uv/archive-v", "/uv/environments-v", "/uv/builds-v", "/pipx/.cache/")
"""Folders of temporary environments: a path into one of them is gone after the next cleanup."""

NEXT_STEPS = """\
Next: `refdesk add docs/` adds your documents,
      `refdesk serve` starts the server, with its console at {console}, and
      `refdesk install claude-code` configures a client to use it."""


def install(arguments: SimpleNamespace) -> int:
    """Run `refdesk install`."""
    client, path = _resolve_client(arguments)
    target = _resolve_target(arguments)
    change = client.plan_install(path, arguments.name, target, is_shared=arguments.scope == "project")
    use = f"uses Refdesk at {target.url}" if isinstance(target, Remote) else "starts Refdesk itself"
    code = _apply(change, arguments, f"{client.title} now {use}")
    if code == ExitCode.OK and not arguments.json and not arguments.dry_run:
        _print_next_steps(client, target, arguments.scope)
    return code


def uninstall(arguments: SimpleNamespace) -> int:
    """Run `refdesk uninstall`."""
    client, path = _resolve_client(arguments)
    change = client.plan_uninstall(path, arguments.name)
    if change is None:
        return _print_unchanged(
            path, f"{client.title} has no server named {arguments.name!r} in {path}", arguments.json
        )
    return _apply(change, arguments, f"{client.title} no longer uses {arguments.name!r}")


def _resolve_client(arguments: SimpleNamespace) -> tuple[ClientSetup, Path]:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", arguments.name):
        raise Misuse("--name: must be 1 to 64 letters, digits, hyphens or underscores")
    client = CLIENTS[arguments.client]
    return client, client.find_path(arguments.scope, Path(os.path.expanduser("~")), Path.cwd(), sys.platform)


def _resolve_target(arguments: SimpleNamespace) -> DeskTarget:
    """Return what the client should connect to: a URL, or a command that it starts; raise Misuse if it can't."""
    config = load_settings(arguments)
    if not arguments.stdio:
        url = _check_url(arguments.url or config.own_url)
        if arguments.key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", arguments.key_env):
            raise Misuse("--key-env: not the name of an environment variable; give its name, not the key")
        return Remote(_add_project(url, arguments), arguments.key_env)
    if arguments.key_env:
        raise Misuse("--key-env: cannot be used with --stdio, which needs no key")
    if arguments.project:
        raise Misuse("--project: cannot be used with --stdio; set `project` in the configuration")
    # A client starts Refdesk in any folder, so paths are absolute.
    paths = {"--config": arguments.config, "--data": arguments.data}
    options = [word for option, path in paths.items() if path for word in (option, str(Path(path).absolute()))]
    return Local((*find_program(), "serve", "--stdio", *options))


def find_program() -> tuple[str, ...]:
    """Return a command that starts this installation from anywhere, even after a temporary environment is gone."""
    here = Path(sys.executable).absolute()
    if any(folder in here.as_posix() for folder in TEMPORARY_FOLDERS):
        return "uvx", "refdesk"
    script = here.with_name("refdesk")
    return (str(script),) if script.is_file() else (str(here), "-m", "refdesk")


def _check_url(url: str) -> str:
    if not has_scheme(url, "http", "https"):
        raise Misuse(f"--url: {url!r} is not a URL such as http://127.0.0.1:8001/mcp")
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise Misuse("--url: must not contain a user or password, which would be stored; use --key-env")
    return url if parts.path.strip("/") else f"{url.rstrip('/')}/mcp"


def _add_project(url: str, arguments: SimpleNamespace) -> str:
    """Return the URL with the current project: the given one, or this folder if the file is the project's."""
    project, parts = arguments.project, urlsplit(url)
    if project is not None and (not project.strip() or not project.isprintable()):
        raise Misuse("--project: not a printable name or path")
    if project is None and arguments.scope == "project" and "project" not in parse_qs(parts.query):
        # Folders of one name differ by their path. On another machine it says nothing: people have it in other places.
        project = Path.cwd().as_posix() if parts.hostname in LOOPBACK else Path.cwd().name
    if not project:
        return url
    query = urlencode({"project": project}, safe="/", quote_via=quote)
    return parts._replace(query=f"{parts.query}&{query}" if parts.query else query).geturl()


def _apply(change: FileChange, arguments: SimpleNamespace, done: str) -> int:
    """Show the diff, ask for confirmation unless `--yes` is given, and write the change."""
    if change.is_empty:
        return _print_unchanged(change.path, f"{change.path} is up to date", arguments.json)
    if not arguments.json:
        change.print_diff()
    if not arguments.dry_run and not arguments.yes:
        if arguments.json or not sys.stdin.isatty():
            raise Misuse(
                "nothing was written: confirmation needs a terminal; use --yes to write, or --dry-run to preview"
            )
        if not confirm(f"Write this to {sanitize(str(change.path))}?", sys.stderr):
            print_message("nothing was written")
            return ExitCode.FAILED
    backup = None if arguments.dry_run else change.write()
    if arguments.json:
        facts = {"file": str(change.path), "changed": not arguments.dry_run, "difference": change.diff()}
        print_json({**facts, "backup": str(backup) if backup else None})
    elif not arguments.dry_run:
        backup_note = f" The previous version is in {backup.name}." if backup else ""
        print(f"{done}.{backup_note}")
    return ExitCode.OK


def _print_unchanged(path: Path, sentence: str, as_json: bool) -> int:
    facts = {"file": str(path), "changed": False, "difference": [], "backup": None}
    print_result(facts, f"{sentence}; nothing to do.", as_json)
    return ExitCode.OK


def _print_next_steps(client: ClientSetup, target: DeskTarget, scope: str) -> None:
    if todo := client.next_steps.get(scope):
        print(f"Next: {todo}.")
    print(f"To verify: {client.check}.")
    if isinstance(target, Remote):
        if target.key_variable and not os.environ.get(target.key_variable):
            print_message(f"{target.key_variable} is not set here; start {client.title} with it set")
        if probe_desk(target.url) is None:
            print_message(f"no server answers at {target.url} yet; `refdesk serve` starts one")


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
    return client.plan_install(path, DEFAULT_NAME, Remote(load_settings(settings).own_url), is_shared=True)


def _is_conflict(change: FileChange) -> bool:
    """Whether content would be lost. Adding Refdesk to a .mcp.json that lists other servers loses none."""
    if change.before is None:
        return False
    if change.path.name != ".mcp.json":
        return True
    return CLIENTS["claude-code"].read_entry(change.path, change.before, DEFAULT_NAME) is not None
