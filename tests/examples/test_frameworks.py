"""The agent frameworks that others write, each in an environment that uv makes from what the example says it needs."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.examples.running import EXAMPLES, ROOT, run_program
from tests.processes import Server, environment, run
from tests.programs import missing_reason

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(240)]

NAMES = ("langchain_tools.py", "llamaindex_tools.py", "openai_agents.py")

MAKING_SECONDS = 120
"""For all environments: a second where the packages are cached, and more than this is not worth the wait."""

NOT_INSTALLED = "packages of the framework examples cannot be installed (package index unreachable or slow)"


@pytest.fixture(scope="module")
def uv() -> str:
    found = shutil.which("uv", path=f"{os.environ['PATH']}:{ROOT / '.cache/uv/bin'}")  # where scripts/setup puts it
    if found is None:
        pytest.skip(missing_reason("uv"))
    return found


@pytest.fixture(scope="module")
async def settings(uv: str, home: Path) -> Mapping[str, str]:
    """The settings of uv with which every example finds its packages installed; skips where they cannot be."""
    settings = uv_settings()
    try:
        async with asyncio.timeout(MAKING_SECONDS):
            made = await asyncio.gather(*(make_environment(uv, name, home, settings) for name in NAMES))
    except TimeoutError:
        made = [False]
    if not all(made):
        pytest.skip(NOT_INSTALLED)
    return settings


@pytest.mark.parametrize("name", NAMES)
async def test_an_agent_of_the_framework_searches_the_desk(
    name: str, uv: str, settings: Mapping[str, str], server: Server, home: Path
) -> None:
    out = await run_program(
        uv, "run", "--offline", "--quiet", "--python", sys.executable, "--script", script(name),
        home=home, REFDESK_URL=server.url, **settings,
    )  # fmt: skip
    assert "tools: search_documentation" in out
    assert "Source: refdesk/how-to/require-api-keys.md" in out


def script(name: str) -> str:
    return str(EXAMPLES / "frameworks" / name)


async def make_environment(uv: str, name: str, home: Path, settings: Mapping[str, str]) -> bool:
    """Install what an example needs, from the cache without a network if possible; return whether it worked."""
    for options in (("--offline",), ()):
        command = (uv, "sync", "--quiet", *options, "--python", sys.executable, "--script", script(name))
        made = await run(*command, cwd=home, env=environment(home, **settings), seconds=MAKING_SECONDS)
        assert "unexpected argument" not in made.err, made.err
        if made.code == 0:
            return True
    return False


def uv_settings() -> dict[str, str]:
    """The cache and the index of whoever runs the tests, so that nothing is downloaded twice."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_CERT_"))}
    cache = os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache/uv"))
    return {**kept, "UV_CACHE_DIR": cache, "UV_SYSTEM_CERTS": "true"}
