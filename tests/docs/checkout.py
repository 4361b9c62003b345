"""A copy of the checkout that nobody has set up yet, in which the scripts of the repository are run for real."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.clients.npm import Unavailable
from tests.docs.blocks import ROOT
from tests.packaging.programs import uv
from tests.processes import environment, run

FOLDERS = ("src", "scripts", "docs", "benchmarks", "examples", "deploy", "plugins", ".claude-plugin")
FILES = (
    "pyproject.toml", "uv.lock", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE",
    "mkdocs.yml", "gemini-extension.json", "compose.yaml", "Dockerfile",
)  # fmt: skip

SECONDS = 100.0
"""For a script that installs everything: from a cache it takes a few, and without one the commands are only checked."""


PASSED_ON = ("UV_", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""What a company's proxy and its certificates need, and where packages are kept: beginnings of variables."""


def for_packages() -> dict[str, str]:
    """The environment that uv needs to find packages in a home that has none, those for development left out."""
    cache = {"UV_CACHE_DIR": str(Path.home() / ".cache" / "uv"), "UV_SYSTEM_CERTS": "true", "UV_NO_PROGRESS": "1"}
    cache["UV_NO_DEV"] = "1"
    return cache | {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}


async def fresh_checkout(folder: Path) -> Path | None:
    """The copy, set up by its own script; `None` where uv or the packages cannot be had."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy2(ROOT / name, folder / name)
    try:
        path = f"{uv().parent}:{os.environ['PATH']}"
    except Unavailable:
        return None
    env = environment(folder, **for_packages()) | {"PATH": path}
    try:
        ended = await run(folder / "scripts" / "setup", cwd=folder, env=env, seconds=SECONDS)
    except TimeoutError:
        return None
    return folder if ended.code == 0 else None
