"""The desk that a client is told of: at an address, or as a command that the client starts."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from pathlib import Path
from urllib.parse import urlsplit

from refdesk.cli.parser.arguments import Misuse
from refdesk.cli.setup.clients import Desk, Local, Remote
from refdesk.config import Config

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

PASSING_PLACES = ("/uv/archive-v", "/uv/environments-v", "/uv/builds-v", "/pipx/.cache/")
"""Folders of environments that are made for one run: a path into one of them is gone after the next clean-up."""


def desk_of(arguments: Namespace, config: Config) -> Desk:
    """What the options ask for; raises Misuse for what no client could use."""
    if arguments.stdio:
        if arguments.key_env:
            raise Misuse("--key-env: a desk that the client starts itself asks for no key; leave it out")
        return Local((*program(), "serve", "--stdio", *_places(arguments)))
    return Remote(_address(arguments.url or config.own_url), _variable(arguments.key_env))


def program() -> tuple[str, ...]:
    """The command that starts this Refdesk from anywhere, also after whatever started it now is gone."""
    here = Path(sys.executable).absolute()
    if any(place in here.as_posix() for place in PASSING_PLACES):
        return "uvx", "refdesk"
    script = here.with_name("refdesk")
    return (str(script),) if script.is_file() else (str(here), "-m", "refdesk")


def _places(arguments: Namespace) -> list[str]:
    """Where its configuration and data are, if that was said: a client starts it in a folder of its own choice."""
    given = {"--config": arguments.config, "--data": arguments.data}
    return [word for option, path in given.items() if path for word in (option, str(Path(path).absolute()))]


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise Misuse(f"--url: {url!r} is no address such as http://127.0.0.1:8001/mcp")
    if parts.username or parts.password:
        raise Misuse("--url: leave out the user and password, which would be written down; see --key-env")
    return url if parts.path.strip("/") else f"{url.rstrip('/')}/mcp"


def _variable(name: str | None) -> str | None:
    if name is not None and not _VARIABLE.fullmatch(name):
        raise Misuse("--key-env: this is no name of an environment variable; give its name, not the key")
    return name
