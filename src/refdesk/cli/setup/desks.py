"""Resolves what a client should connect to: a URL, or a command that it starts."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

from refdesk.cli.arguments import Misuse
from refdesk.cli.setup.clients import DeskTarget, Local, Remote
from refdesk.config import Config

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

TEMPORARY_FOLDERS = ("/uv/archive-v", "/uv/environments-v", "/uv/builds-v", "/pipx/.cache/")
"""Folders of temporary environments: a path into one of them is gone after the next cleanup."""


def resolve_target(arguments: SimpleNamespace, config: Config) -> DeskTarget:
    """Return the target that the options select; raise Misuse if no client could use it."""
    if arguments.stdio:
        if arguments.key_env:
            raise Misuse("--key-env: cannot be used with --stdio, which needs no key")
        return Local((*find_program(), "serve", "--stdio", *_build_path_options(arguments)))
    return Remote(_check_url(arguments.url or config.own_url), _check_variable(arguments.key_env))


def find_program() -> tuple[str, ...]:
    """Return a command that starts this installation from anywhere, even after a temporary environment is gone."""
    here = Path(sys.executable).absolute()
    if any(folder in here.as_posix() for folder in TEMPORARY_FOLDERS):
        return "uvx", "refdesk"
    script = here.with_name("refdesk")
    return (str(script),) if script.is_file() else (str(here), "-m", "refdesk")


def _build_path_options(arguments: SimpleNamespace) -> list[str]:
    """Return `--config` and `--data` as absolute paths, if given: a client starts Refdesk in any folder."""
    paths = {"--config": arguments.config, "--data": arguments.data}
    return [word for option, path in paths.items() if path for word in (option, str(Path(path).absolute()))]


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise Misuse(f"--url: {url!r} is not a URL such as http://127.0.0.1:8001/mcp")
    if parts.username or parts.password:
        raise Misuse("--url: must not contain a user or password, which would be stored; use --key-env")
    return url if parts.path.strip("/") else f"{url.rstrip('/')}/mcp"


def _check_variable(name: str | None) -> str | None:
    if name is not None and not _VARIABLE.fullmatch(name):
        raise Misuse("--key-env: not the name of an environment variable; give its name, not the key")
    return name
