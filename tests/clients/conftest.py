"""What the tests with real clients share: a server process for each file, and programs from npm for all of them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.npm import CACHE, Packages, Unavailable, suitable_node
from tests.processes import Ended, Server, environment, run, running_server

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """Refdesk as a process of its own."""
    async with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@dataclass(frozen=True)
class Node:
    """Node.js with the official JavaScript clients beside it."""

    program: Path
    packages: Packages

    async def script(self, name: str, *arguments: str, home: Path) -> Ended:
        """Run one of our scripts, from the folder of the packages that it imports."""
        return await self.run(self.packages.folder / name, *arguments, home=home)

    async def run(self, path: Path, *arguments: str, home: Path) -> Ended:
        """Run any JavaScript program."""
        return await run(self.program, path, *arguments, cwd=home, env=environment(home))


@pytest.fixture(scope="session")
async def node() -> Node:
    packages = Packages(HERE / "node", CACHE / "clients")
    try:
        return Node(await suitable_node(packages), packages)
    except Unavailable as why:
        pytest.skip(str(why))


async def installed_client(name: str, size: str) -> Packages:
    """Return the packages of a large client; skip the test unless they are installed or asked for."""
    packages = Packages(HERE / name, CACHE / f"clients-{name}")
    switch = f"REFDESK_TEST_{name.upper()}"
    if not packages.are_installed() and os.environ.get(switch) != "1":
        pytest.skip(f"{name} is not installed ({size}; {switch}=1 installs it)")
    try:
        await packages.install()
    except Unavailable as why:
        pytest.skip(str(why))
    return packages
