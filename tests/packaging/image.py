"""The image, built by buildah and run without a daemon: in namespaces of its own, as its configuration says.

The run keeps to what a container engine would give it: the image's user, environment and entry point, a root file
system that cannot be written, a volume on /data, a tmpfs on /tmp, no capability, no way to new privileges. It shares
the network of the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.npm import Unavailable
from tests.packaging.programs import ROOT
from tests.processes import Ended, run
from tests.waiting import PATIENCE_SECONDS

BASE = "docker.io/library/python:3.13-slim-trixie"
TAG = "localhost/refdesk:test"
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_BUILD_SECONDS = 900

MAKE_BASE = """
set -eu
mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates trixie "$1/base.tar"
container=$(buildah $2 from scratch)
buildah $2 add --quiet "$container" "$1/base.tar" / >/dev/null
buildah $2 copy --quiet "$container" "$3" "$3" >/dev/null
buildah $2 run "$container" -- sh -c 'rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
  ln -s /usr/bin/python3 /usr/local/bin/python3; ln -s python3 /usr/local/bin/python'
buildah $2 config --env PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --env UV_SYSTEM_CERTS=true \
  --env PIP_CERT="$3" --env SSL_CERT_FILE="$3" "$container"
buildah $2 commit --quiet "$container" "$4" >/dev/null
"""
"""What stands for the official base where no registry can be reached: Debian and its Python, under the same name."""

ENTER = """
set -eu
root=$1 volume=$2 user=$3
shift 3
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t tmpfs tmpfs "$root/tmp"
mount --bind "$volume" "$root/data"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
exec chroot "$root" setpriv --reuid="${user%:*}" --regid="${user#*:}" --clear-groups --no-new-privs \
  --bounding-set=-all --inh-caps=-all env --chdir=/data -i "$@"
"""


@dataclass(frozen=True)
class Image:
    """A built image: its root file system and its configuration."""

    root: Path
    config: dict[str, Any]

    def command(self, volume: Path, arguments: tuple[str, ...], settings: dict[str, str]) -> list[str]:
        """What starts a container; without arguments, as the image itself would."""
        given = [*self.config["Env"], *(f"{name}={value}" for name, value in settings.items())]
        inside = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        entered = ["sh", "-c", ENTER, "sh", str(self.root), str(volume), self.config["User"]]
        return [*inside, *entered, *given, *(arguments or (*self.config["Entrypoint"], *self.config["Cmd"]))]

    async def run(self, volume: Path, *arguments: str, **settings: str) -> Ended:
        """Run a container to its end."""
        return await run(*self.command(volume, arguments, settings), cwd=volume, env=os.environ)


@dataclass
class Container:
    """A container that serves."""

    process: asyncio.subprocess.Process
    url: str = ""

    def inner(self, name: str) -> int:
        """The number, as this machine counts, of the process of this name in the container."""
        (only,) = (pid for pid in _below(self.process.pid) if _name(pid) == name)
        return only

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Tell its first process to stop, as an engine does; answers the exit code. With it, all others end."""
        os.kill(self.inner("tini"), how)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.process.wait()


@asynccontextmanager
async def serving(image: Image, volume: Path, **settings: str) -> AsyncIterator[Container]:
    """The image as it starts by itself, until it is ready; killed at the end if it still runs."""
    command = image.command(volume, (), settings)
    process = await asyncio.create_subprocess_exec(*command, cwd=volume, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    container = Container(process)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not container.url:
                entry = json.loads(await process.stderr.readline())
                container.url = entry.get("endpoint", "").removesuffix("/mcp").replace("0.0.0.0", "127.0.0.1")
        yield container
    finally:
        if process.returncode is None:
            await container.stop(signal.SIGKILL)


@asynccontextmanager
async def built_image(folder: Path) -> AsyncIterator[Image]:
    """Build it from the Dockerfile; raises `Unavailable` where that cannot be."""
    missing = [name for name in ("buildah", "mmdebstrap", "unshare", "setpriv") if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        raise Unavailable(f"it needs root and {', '.join(missing) or 'nothing more'}")
    store = ["--root", str(folder / "store"), "--runroot", str(folder / "run")]
    if (await _buildah(store, "pull", "--quiet", BASE, seconds=60, must=False)).code != 0:
        await _must("sh", "-c", MAKE_BASE, "sh", str(folder), " ".join(store), str(BUNDLE), BASE)
    await _buildah(store, "bud", "--format", "docker", "--pull-never", "--network", "host", "--tag", TAG, str(ROOT))
    about = json.loads((await _buildah(store, "inspect", "--type", "image", TAG)).out)
    container = (await _buildah(store, "from", "--pull-never", TAG)).out.strip()
    root = Path((await _buildah(store, "mount", container)).out.strip())
    try:
        yield Image(root, about["Docker"]["config"])
    finally:
        await _buildah(store, "umount", container)


async def _buildah(store: list[str], *arguments: str, seconds: float = _BUILD_SECONDS, must: bool = True) -> Ended:
    if must:
        return await _must("buildah", *store, *arguments)
    env = os.environ | {"BUILDAH_ISOLATION": "chroot"}
    return await run("buildah", *store, *arguments, cwd=ROOT, env=env, seconds=seconds)


async def _must(*command: str) -> Ended:
    env = os.environ | {"BUILDAH_ISOLATION": "chroot"}
    ended = await run(*command, cwd=ROOT, env=env, seconds=_BUILD_SECONDS)
    assert ended.code == 0, f"{ended.out[-2000:]}\n{ended.err[-2000:]}"
    return ended


def _below(pid: int) -> list[int]:
    """The processes that a process has started, and those have, and so on."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [each for child in children for each in _below(child)]


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
