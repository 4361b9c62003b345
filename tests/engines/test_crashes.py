"""`kill -9` at any moment loses nothing that was acknowledged, and doubles nothing.

Six kills here; `REFDESK_CRASHES=100 pytest tests/engines/test_crashes.py` is the long run.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from fnmatch import fnmatch
from pathlib import Path
from random import Random

import anyio
import orjson
import pytest
from anyio import to_thread

from refdesk.config.models import ConvertConfig
from refdesk.documents.conversions import Conversions, open_conversions
from refdesk.engines.base import IN_PROGRESS, Listing
from refdesk.engines.embedded.engine import EmbeddedEngine
from refdesk.telemetry.metrics import Metrics
from tests.contracts.engine import ACME, found
from tests.engines.desks import OnDisk, engine_on, is_in_step
from tests.engines.ingesting import WHERE_TO_DIE
from tests.waiting import PATIENCE_SECONDS, eventually

CRASHES = int(os.environ.get("REFDESK_CRASHES", "6"))

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(100 * CRASHES)]

SEED = int(os.environ.get("REFDESK_CRASH_SEED", "20260101"))

MOST_NOTES = 60
"""Lines that a process may write to its journal before it is killed; each step of its work writes two."""

Known = dict[str, set[str | None]]
"""By document, the words that it may hold; None stands for its not being there."""


@pytest.fixture(scope="module")
async def conversions(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Conversions]:
    async with open_conversions(ConvertConfig(), tmp_path_factory.mktemp("conversions"), Metrics()) as conversions:
        yield conversions


async def kill_after(notes: int, data: Path, seed: int) -> None:
    """Run a process that ingests, and kill it once it has written so many lines to its journal."""
    process = await started(data, str(seed))
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        for _ in range(notes):
            assert await process.stdout.readline() == b"noted\n"
    process.send_signal(signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL


async def started(data: Path, *arguments: str) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "tests.engines.ingesting", str(data), *arguments]
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)


def known_from(journal: Path) -> Known:
    """What the documents must be like, from what was acknowledged and what was under way."""
    known: Known = {}
    about: dict[str, str | None] = {}
    for line in journal.read_bytes().splitlines() if journal.exists() else []:
        what, about_now = orjson.loads(line)
        # What was about to be done and never acknowledged may have happened or not.
        for id, word in _each(about, known) if what == "about" else ():
            known[id] = known.get(id, {None}) | {word}
        if what == "done":
            known |= {id: {word} for id, word in _each(about_now, known)}
        about = about_now if what == "about" else {}
    for id, word in _each(about, known):
        known[id] = known.get(id, {None}) | {word}
    return known


def _each(expected: dict[str, str | None], known: Known) -> list[tuple[str, str | None]]:
    return [
        (id, word)
        for pattern, word in expected.items()
        for id in ([one for one in known if fnmatch(one, pattern)] if pattern.endswith("*") else [pattern])
    ]


async def at_rest(engine: EmbeddedEngine, data: Path) -> None:
    """Wait until nothing is under way, and the indexes hold it all."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while statuses := (await engine.documents(ACME, Listing(statuses=IN_PROGRESS, limit=100)))[0]:
            await engine.wait(ACME, [status.id for status in statuses], seconds=5)
    await eventually(lambda: to_thread.run_sync(is_in_step, data))


async def require_all_of(data: Path, conversions: Conversions, known: Known) -> None:
    """Nothing acknowledged is lost, nothing is doubled, and what was removed stays so."""
    async with engine_on(data, conversions) as engine:
        await at_rest(engine, data)
        for id, words in known.items():
            if words == {None}:
                assert await engine.status(ACME, id) is None, f"{id} is back"
        for id, words in known.items():
            await require_one(engine, id, words)
    disk = OnDisk.read(data)
    disk.require_agreement()
    assert set(disk.documents) <= set(known)
    assert {stage for stage, _ in disk.documents.values()} <= {"success"}


async def require_one(engine: EmbeddedEngine, id: str, words: set[str | None]) -> None:
    document = await engine.read(ACME, id)
    if document is None:
        assert None in words, f"{id} is lost"
        return
    [word] = [word for word in words if word is not None and f"{word}one" in document.text]
    for part in ("one", "two"):
        hits = await found(engine, f"{word}{part}", mode="fulltext", limit=50)
        holding = [hit for hit in hits if f"{word}{part}" in hit.text]
        assert [hit.document.id for hit in holding] == [id]


async def test_kills_at_random_moments_lose_nothing(tmp_path: Path, conversions: Conversions) -> None:
    random = Random(SEED)
    for crash in range(CRASHES):
        await kill_after(random.randint(4, MOST_NOTES), tmp_path, SEED + crash)
        await require_all_of(tmp_path, conversions, known_from(tmp_path / "journal"))
    acknowledged = [line for line in (tmp_path / "journal").read_bytes().splitlines() if b'"done"' in line]
    assert len(acknowledged) > CRASHES


@pytest.mark.parametrize("place", WHERE_TO_DIE)
async def test_kills_halfway_through_a_commit_lose_nothing(
    tmp_path: Path, conversions: Conversions, place: str
) -> None:
    process = await started(tmp_path, str(SEED), place)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await process.communicate()
    assert process.returncode == -signal.SIGKILL
    await require_all_of(tmp_path, conversions, known_from(tmp_path / "journal"))
