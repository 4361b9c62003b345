"""What the tests of packaging share: the wheel, an environment that holds nothing else, and programs that check."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.npm import Unavailable
from tests.packaging.programs import INSTALL_SECONDS, ROOT, install_programs, run_uv
from tests.processes import Ended, Server, environment, run
from tests.waiting import PATIENCE_SECONDS

INSTALLING = {"programs", "wheel", "installed"}
"""Fixtures that install packages: the first test that uses one waits for it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow the tests that may have to install packages the time for it."""
    for item in items:
        is_ours = item.path.is_relative_to(ROOT / "tests" / "packaging")
        if is_ours and not INSTALLING.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(2 * INSTALL_SECONDS))


@pytest.fixture(scope="session")
async def programs() -> Path:
    """The folder with the programs that look at our files."""
    try:
        return await install_programs()
    except Unavailable as why:
        pytest.skip(str(why))


@pytest.fixture(scope="session")
async def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, as a release has it."""
    folder = tmp_path_factory.mktemp("dist")
    try:
        await run_uv("build", "--quiet", "--wheel", "--python", sys.executable, "--out-dir", folder)
    except Unavailable as why:
        pytest.skip(str(why))
    (built,) = folder.glob("*.whl")
    return built


@dataclass(frozen=True)
class Installation:
    """The wheel in an environment without anything else, and a home that nobody has lived in."""

    bin: Path
    home: Path

    async def __call__(self, *arguments: str | Path, **more: str) -> Ended:
        """Run `refdesk` to its end."""
        env = environment(self.home, REFDESK_DATA=str(self.home / "data"), **more)
        return await run(self.bin / "refdesk", *arguments, cwd=self.home, env=env)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Server]:
        """A `refdesk serve` on a free port, which has to stop in order."""
        process = await asyncio.create_subprocess_exec(
            self.bin / "refdesk", "serve", "--port", "0", "--data", str(self.home / "served"),
            env=environment(self.home), cwd=self.home, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stderr is not None
        server = Server(process)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not server.url:
                    server.note(await process.stderr.readline())
            yield server
            await server.stop()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.fixture(scope="session")
async def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel alone: no extras, nothing for development."""
    folder = tmp_path_factory.mktemp("alone")
    try:
        await run_uv("venv", "--quiet", "--python", sys.executable, folder / "venv")
        await run_uv("pip", "install", "--quiet", "--python", folder / "venv" / "bin" / "python", wheel)
    except Unavailable as why:
        pytest.skip(str(why))
    return Installation(folder / "venv" / "bin", folder)
