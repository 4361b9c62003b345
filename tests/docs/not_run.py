"""Why a command of a page is not run by the tests: a closed list, and what is checked of such a command instead."""

from __future__ import annotations

import contextlib
import io
import json
import re
import tomllib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import click
import yaml

from refdesk.cli.parser import cli, parse
from tests.docs.blocks import ROOT

LONG = "takes minutes"
FOREVER = "runs until it is stopped"
INTERNET = "needs the Internet"
PACKAGES = "needs a package registry"
DOCKER = "needs a Docker daemon"
CLUSTER = "needs a Kubernetes cluster"
MACHINE = "changes the machine, or needs another one"
PROGRAM = "needs another party's program or account"
R2R = "needs an R2R server"
MODEL = "needs a model that Refdesk does not carry"
MISSING = "needs a program that is not installed here"
PATTERN = "has a place to fill in"

REASONS = {LONG, FOREVER, INTERNET, PACKAGES, DOCKER, CLUSTER, MACHINE, PROGRAM, R2R, MODEL, MISSING, PATTERN}

OPTIONAL = ("git", "sqlite3", "unzip", "wget")
"""Programs that are run where they are installed; elsewhere `given.leave_behind` writes the files they would."""

PROGRAMS = {
    **dict.fromkeys(["docker", "podman"], DOCKER),
    **dict.fromkeys(["kubectl", "helm", "kind", "minikube"], CLUSTER),
    **dict.fromkeys(["sudo", "systemctl", "journalctl", "apt-get", "apt", "dpkg-deb", "ssh", "scp", "brew"], MACHINE),
    **dict.fromkeys(["uv", "uvx", "pip", "pip3", "pipx", "npm", "npx"], PACKAGES),
    **dict.fromkeys(["claude", "gemini", "codex", "code", "cursor", "qmd", "ollama", "docs-mcp-server"], PROGRAM),
    **dict.fromkeys(OPTIONAL, MISSING),
    **dict.fromkeys(["caddy", "nginx"], MACHINE),
}
"""Programs that stand-ins take the place of, and why."""

SCRIPTS = {
    "serve": FOREVER,
    "setup": PACKAGES,
    "test": LONG,
    "test-r2r": LONG,
    "conformance": LONG,
    "demo": LONG,
    "build": PACKAGES,
    "sbom": PACKAGES,
    "docs": LONG,
    "screenshots": LONG,
}
"""Of the scripts of the repository, those that stand-ins take the place of."""


def why(words: Sequence[str]) -> str:
    """The reason why a stand-in has taken the place of this command; raises `KeyError` when there is none."""
    program = Path(words[0]).name
    if program == "refdesk":
        return INTERNET if any(map(_is_abroad, words)) else FOREVER
    if program == "curl":
        return INTERNET
    if program in ("python", "python3"):
        return LONG
    return SCRIPTS[program] if words[0].startswith("scripts/") else PROGRAMS[program]


def check(words: Sequence[str]) -> str | None:
    """What is wrong with a command that is not run, as far as can be said without running it."""
    program, arguments = Path(words[0]).name, list(words[1:])
    if program == "refdesk":
        return _refdesk(arguments)
    if words[0].startswith("scripts/"):
        return _script(program, arguments)
    if program == "curl":
        return _curl(arguments)
    if program in ("uv", "uvx", "pip", "pipx"):
        return _installed(program, arguments)
    if program in ("python", "python3"):
        return _program(arguments)
    if program == "docker" and arguments[:1] == ["compose"]:
        return _compose(arguments[1:])
    return None


def _refdesk(arguments: Sequence[str]) -> str | None:
    """Whether our own parser takes it."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            parse(arguments)
    except click.UsageError as error:
        return error.format_message()
    except click.exceptions.Exit as ended:  # after --help and --version
        return said.getvalue() if ended.exit_code else None
    return None


def _script(name: str, arguments: Sequence[str]) -> str | None:
    if not (ROOT / "scripts" / name).is_file():
        return f"there is no scripts/{name}"
    return _refdesk(["serve", *arguments]) if name == "serve" else None


def _curl(arguments: Sequence[str]) -> str | None:
    """Whether it has an address, and whether what it sends is JSON where it says so."""
    if not any("://" in word for word in arguments):
        return "curl without an address"
    for option, value in pairwise(arguments):
        if option == "-d" and value.startswith("{"):
            try:
                json.loads(value)
            except ValueError as error:
                return f"no JSON: {error}"
    return None


def _installed(program: str, arguments: Sequence[str]) -> str | None:
    """Whether extras exist, and what is run by `uv run` or `uvx` can be."""
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"])
    named = {extra for word in arguments for extra in re.findall(r"refdesk\[([\w,-]+)\]", word)}
    named |= {value for option, value in pairwise(arguments) if option == "--extra"}
    unknown = {extra for names in named for extra in names.split(",")} - extras
    if unknown:
        return f"no such extra: {unknown}"
    if program == "uv" and "python" in arguments:
        return _program(arguments[arguments.index("python") + 1 :])
    if program == "uvx" or arguments[:1] == ["run"]:
        return _refdesk(arguments[arguments.index("refdesk") + 1 :]) if "refdesk" in arguments else None
    return None


def _program(arguments: Sequence[str]) -> str | None:
    """Whether a Python program of the repository is there and knows the options it is given."""
    if not arguments or arguments[0].startswith("-"):
        return None
    path = ROOT / arguments[0]
    if not path.is_file():
        return f"there is no {arguments[0]}"
    source = path.read_text("utf-8")
    unknown = [word for word in arguments[1:] if word.startswith("--") and f'"{word}"' not in source]
    return f"{arguments[0]} has no {unknown}" if unknown else None


def _compose(arguments: Sequence[str]) -> str | None:
    """Whether the profiles and services that are named are in the file."""
    files = sorted(ROOT.glob("compose.y*ml")) + sorted(ROOT.glob("deploy/**/compose.y*ml"))
    if not files:
        return "there is no compose.yaml"
    services = yaml.safe_load(files[0].read_text("utf-8"))["services"]
    profiles = {profile for service in services.values() for profile in service.get("profiles", [])}
    named = {value for option, value in pairwise(arguments) if option == "--profile"}
    return f"no such profile: {named - profiles}" if named - profiles else None


def options_of_inline(text: str) -> list[str]:
    """What is wrong with the `refdesk …` commands that stand in running text, where only a part may be written out."""
    wrong = []
    for command in re.findall(r"`(?:\.venv/bin/)?refdesk ([a-z][^`\n]*)`", text):
        known = _known_options(command.split())
        if known is None:
            wrong.append(f"refdesk {command}: no such command")
            continue
        given = re.findall(r"(?<![\w-])--[a-z][\w-]*", command.partition(" -- ")[0])
        wrong += [f"refdesk {command}: no {option}" for option in given if option not in known]
    return wrong


def _known_options(words: Sequence[str]) -> set[str] | None:
    """The options of a command and its actions; `None` when there is no such command."""
    command: click.Command = cli
    known = {"--help"}
    for number, word in enumerate(words):
        known |= {name for param in command.params for name in param.opts}
        if not isinstance(command, click.Group) or not re.fullmatch(r"[a-z][a-z-]*", word):
            break
        below = command.get_command(click.Context(command), word)
        if below is None:
            return None if number == 0 else known
        command = below
    return known | {name for param in command.params for name in param.opts}


def _is_abroad(word: str) -> bool:
    """Whether it is an address on another machine."""
    if not word.startswith(("http://", "https://")):
        return False
    return urlsplit(word).hostname not in ("127.0.0.1", "localhost")
