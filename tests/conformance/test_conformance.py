"""The official conformance suite, run in full against the product's own door."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.clients.npm import CACHE, FAILED, Unavailable, reachable_npm
from tests.processes import run

ROOT = Path(__file__).parents[2]
CANNOT_INSTALL = 3


@pytest.mark.anyio
@pytest.mark.node
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_every_scored_scenario_of_both_revisions_passes() -> None:
    if not (CACHE / "conformance" / "installed").exists():
        try:
            await reachable_npm("@modelcontextprotocol/conformance")
        except Unavailable as why:
            pytest.skip(str(why))
    ended = await run(ROOT / "scripts" / "conformance", cwd=ROOT, env=os.environ, seconds=590)
    if ended.code == CANNOT_INSTALL:
        pytest.skip(FAILED)
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
