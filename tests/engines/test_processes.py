"""Several processes on one data folder: one writes at a time, all read, and whoever is left finishes the work."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from refdesk.config.models import ConvertConfig
from refdesk.documents.conversions import Conversions, open_conversions
from refdesk.engines.base import Listing, NewDocument, TextSource
from refdesk.telemetry.metrics import Metrics
from tests.contracts.engine import ACME, bring, finished, found
from tests.engines.desks import OnDisk, engine_on
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(scope="module")
async def conversions(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Conversions]:
    async with open_conversions(ConvertConfig(), tmp_path_factory.mktemp("conversions"), Metrics()) as conversions:
        yield conversions


@asynccontextmanager
async def adding(data: Path, name: str, count: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another process that queues documents, has said so, and works on them until it ends or is killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.engines.adding", str(data), name, str(count), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await process.stdout.readline() == b"queued\n"
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()


async def test_what_another_process_adds_is_found_without_opening_anew(
    tmp_path: Path, conversions: Conversions
) -> None:
    async with engine_on(tmp_path, conversions) as reader:
        await bring(reader, "Foxes", "# Foxes\n\nfox")
        before = reader.revision(ACME)

        async def all_found() -> bool:
            return len(await found(reader, "hound", mode="semantic", collections=("animals",))) == 4

        async def all_counted() -> bool:
            return reader.cached_collections(ACME)[0].documents == 4

        async with adding(tmp_path, "hound", 3) as process:
            await eventually(all_found)
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await process.wait() == 0
        assert len(await found(reader, "hound", mode="fulltext")) == 3
        await eventually(all_counted)
        assert reader.revision(ACME) != before


async def test_a_tenant_that_another_process_brings_is_seen(tmp_path: Path, conversions: Conversions) -> None:
    async with engine_on(tmp_path, conversions) as reader:
        assert await found(reader, "hound") == []
        async with adding(tmp_path, "hound", 1) as process, asyncio.timeout(PATIENCE_SECONDS):
            assert await process.wait() == 0
        assert len(await found(reader, "hound", mode="fulltext")) == 1


async def test_documents_that_two_processes_queue_at_once_all_come_in_once(
    tmp_path: Path, conversions: Conversions
) -> None:
    async with engine_on(tmp_path, conversions) as engine, adding(tmp_path, "hound", 10) as process:
        await engine.create_collection(ACME, "animals")
        given = [TextSource(f"fox {n}", f"# Fox {n}\n\nfox", f"fox-{n}") for n in range(10)]
        asked = await engine.ingest(ACME, [NewDocument(source, "animals") for source in given])
        assert {status.status for status in await finished(engine, [status.id for status in asked])} == {"success"}
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await process.wait() == 0
        assert (await engine.documents(ACME, Listing(statuses=("success",))))[1] == 20
    disk = OnDisk.read(tmp_path)
    disk.require_agreement()
    assert len(disk.chunks) == 20


async def test_when_the_writer_dies_another_process_takes_over_its_queue(
    tmp_path: Path, conversions: Conversions
) -> None:
    async with adding(tmp_path, "hound", 30) as process, engine_on(tmp_path, conversions) as engine:
        process.send_signal(signal.SIGKILL)
        await process.wait()
        asked = [f"animals/hound-{number}" for number in range(30)]
        assert {status.status for status in await finished(engine, asked)} == {"success"}
    disk = OnDisk.read(tmp_path)
    disk.require_agreement()
    assert len(disk.documents) == len(disk.chunks) == 30
