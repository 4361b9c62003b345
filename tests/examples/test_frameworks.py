"""The agent frameworks that others write, each in an environment that uv makes from what the example says it needs."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.examples.running import EXAMPLES, run_program
from tests.processes import Server, environment, run

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]

MAKING_SECONDS = 90
"""For an environment: a few seconds where the packages are known, and more than this is not worth the wait."""


@pytest.fixture
def uv() -> str:
    found = shutil.which("uv", path=f"{os.environ['PATH']}:{ROOT / '.cache/uv/bin'}")  # where scripts/setup puts it
    if found is None:
        pytest.skip("uv is not installed, which makes the environments of these examples")
    return found


@pytest.mark.parametrize("name", ["langchain_tools.py", "llamaindex_tools.py", "openai_agents.py"])
async def test_an_agent_of_the_framework_searches_the_desk(name: str, uv: str, server: Server, home: Path) -> None:
    script = str(EXAMPLES / "frameworks" / name)
    settings = uv_settings()
    await make_environment(uv, script, home, settings)
    out = await run_program(
        uv, "run", "--quiet", "--python", sys.executable, "--script", script,
        home=home, REFDESK_URL=server.url, **settings,
    )  # fmt: skip
    assert "tools: search_documentation" in out
    assert "Source: refdesk/how-to/require-api-keys.md" in out


async def make_environment(uv: str, script: str, home: Path, settings: dict[str, str]) -> None:
    """Install what the example needs, or skip and say why that cannot be done here."""
    command = (uv, "sync", "--quiet", "--python", sys.executable, "--script", script)
    try:
        made = await run(*command, cwd=home, env=environment(home, **settings), seconds=MAKING_SECONDS)
    except TimeoutError:
        pytest.skip(f"its packages could not be installed within {MAKING_SECONDS} seconds")
    if made.code != 0:
        assert "unexpected argument" not in made.err, made.err
        pytest.skip(f"its packages cannot be installed: {made.err.strip()[:300]}")


def uv_settings() -> dict[str, str]:
    """The cache and the index of whoever runs the tests, so that nothing is downloaded twice."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_CERT_"))}
    cache = os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache/uv"))
    return {**kept, "UV_CACHE_DIR": cache, "UV_SYSTEM_CERTS": "true"}
