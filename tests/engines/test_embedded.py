"""The embedded engine is put through what every engine must do, and what is its own."""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from refdesk.calls import TenantId
from refdesk.config.models import ConvertConfig, EmbeddingConfig
from refdesk.documents.conversions import Conversions, open_conversions
from refdesk.documents.packed_document import PACKED_DOCUMENT_VERSION
from refdesk.engines.base import FileSource, NewDocument, TextSource
from refdesk.engines.embedded.embedding import Embedder, Vectors, open_embedder
from refdesk.engines.embedded.engine import EmbeddedEngine, open_embedded
from refdesk.engines.storage.databases import DATABASE
from refdesk.telemetry.log import Log
from refdesk.telemetry.metrics import Metrics
from tests.contracts.engine import ACME, FOXES, EngineContract, bring, finished, found
from tests.engines.desks import ACME_FOLDER, OnDisk, WordSums, engine_on
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def conversions(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Conversions]:
    async with open_conversions(ConvertConfig(), tmp_path_factory.mktemp("conversions"), Metrics()) as conversions:
        yield conversions


@pytest.fixture(scope="module")
async def embedder() -> AsyncIterator[Embedder | None]:
    async with open_embedder(EmbeddingConfig()) as embedder:
        yield embedder


class TestEmbedded(EngineContract):
    @pytest.fixture
    async def engine(
        self, tmp_path: Path, conversions: Conversions, embedder: Embedder | None
    ) -> AsyncIterator[EmbeddedEngine]:
        async with engine_on(tmp_path / "data", conversions, embedder) as engine:
            yield engine


# What is particular to it


class Counting(WordSums):
    """Counts what it embeds."""

    def __init__(self) -> None:
        self.embedded: list[str] = []

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        self.embedded += texts
        return await super().embed_passages(texts)


async def test_only_what_has_changed_is_embedded_again(tmp_path: Path, conversions: Conversions) -> None:
    model = Counting()
    async with engine_on(tmp_path, conversions, model) as engine:
        await engine.create_collection(ACME, "animals")
        words = [f"part {number} " + f"word{number} " * 150 for number in range(5)]
        for changed in ("old", "new"):
            text = "# Book\n\n" + "\n\n".join(f"## {word[:6]}\n\n{word}" for word in [*words, f"{changed} " * 150])
            [asked] = await engine.ingest(ACME, [NewDocument(TextSource("Book", text, "book"), "animals")])
            [status] = await finished(engine, [asked.id])
            assert status.status == "success"
        assert len(model.embedded) == len(set(model.embedded))
        assert [text for text in model.embedded if "part 3" in text] != []
        assert len([text for text in model.embedded if "new new" in text]) >= 1
        before = list(model.embedded)
        await bring(engine, "Book", text.replace("# Book", "# Book\n"), collection="copies")
        assert model.embedded == before
    OnDisk.read(tmp_path).require_agreement()


async def test_unchanged_document_is_ready_without_a_model(tmp_path: Path, conversions: Conversions) -> None:
    folders = tmp_path / "tenants", tmp_path / "shared"
    async with open_embedded(*folders, None, conversions, log=Log("error"), metrics=Metrics()) as engine:
        await engine.create_collection(ACME, "animals")
        page = tmp_path / "foxes.md"
        page.write_text(FOXES, "utf-8")
        for modified in (1_000_000_000, 2_000_000_000):
            os.utime(page, (modified, modified))
            [asked] = await engine.ingest(ACME, [NewDocument(FileSource(page, "foxes.md"), "animals")])
            [status] = await finished(engine, [asked.id])
            assert status.status == "success"


async def test_what_was_queued_when_it_closed_is_done_when_it_opens(tmp_path: Path, conversions: Conversions) -> None:
    async with engine_on(tmp_path, conversions) as engine:
        await engine.create_collection(ACME, "animals")
        given = [NewDocument(TextSource(f"t{number}", f"# T{number}\n\nfox"), "animals") for number in range(20)]
        asked = [status.id for status in await engine.ingest(ACME, given)]
    async with engine_on(tmp_path, conversions) as engine:
        assert {status.status for status in await finished(engine, asked)} == {"success"}
    disk = OnDisk.read(tmp_path)
    disk.require_agreement()
    assert len(disk.documents) == 20


async def test_indexes_that_are_made_anew_hold_what_they_held(tmp_path: Path, conversions: Conversions) -> None:
    async with engine_on(tmp_path, conversions) as engine:
        await bring(engine, "Foxes", "# Foxes\n\nfox")
        await bring(engine, "Hounds", "# Hounds\n\nhound")
        assert await engine.delete(ACME, "animals/hounds")
        order = tmp_path / "tenants" / ACME_FOLDER / "reindex"
        await engine.reindex(ACME)

        async def is_done() -> bool:
            assert [hit.document.id for hit in await found(engine, "fox", mode="fulltext")] == ["animals/foxes"]
            return not await anyio.Path(order).exists()

        await eventually(is_done)
    OnDisk.read(tmp_path).require_agreement()


async def test_each_tenant_has_a_folder_of_its_own_within_that_of_all(tmp_path: Path, conversions: Conversions) -> None:
    names = ["acme", "Acme", "../acme", "/acme", "acme/", ".", "..", "a" * 300, "n-acme", "ä", "a\0b", "con"]
    async with engine_on(tmp_path / "data", conversions) as engine:
        for name in names:
            await engine.create_collection(TenantId(name), f"of {name}")
        for name in names:
            assert [entry.name for entry in await engine.collections(TenantId(name)) if not entry.shared] == [
                f"of {name}"
            ]
    assert len(os.listdir(tmp_path / "data" / "tenants")) == len(names)
    assert os.listdir(tmp_path) == ["data"]


class Another(WordSums):
    """Another model, with other dimensions."""

    name = "another"
    dimensions = 48


@pytest.mark.parametrize(("heading", "counts"), [("", True), ("## Habits\n\n", False)])
async def test_neighbouring_chunks_count_in_text_without_sections(
    tmp_path: Path, conversions: Conversions, heading: str, counts: bool
) -> None:
    asked_for, related, unrelated = "fox den " * 100, "fox river " * 100, "stone moss " * 100
    async with engine_on(tmp_path, conversions, WordSums()) as engine:
        for title, rest in (("Moss", unrelated), ("River", related)):
            await bring(engine, title, f"# {title}\n\n{heading}{asked_for}\n\n{rest}")
        scores = {hit.document.title: hit.score for hit in await found(engine, "fox den", mode="semantic")}
    assert (scores["Moss"] < 0.95 * scores["River"]) == counts


async def test_another_model_embeds_everything_anew(tmp_path: Path, conversions: Conversions) -> None:
    async with engine_on(tmp_path, conversions, WordSums()) as engine:
        await bring(engine, "Foxes", FOXES)
    async with engine_on(tmp_path, conversions, Another()) as engine:

        async def is_found() -> bool:
            return bool(await found(engine, "quick fox den", mode="semantic"))

        await eventually(is_found)
        assert (await finished(engine, ["animals/foxes"]))[0].status == "success"
    OnDisk.read(tmp_path).require_agreement()


def as_older_version(folder: Path) -> None:
    """Let the stored documents be those of the previous version, which had no record of it."""
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        for key, body in database.execute("SELECT document, body FROM contents").fetchall():
            packed = bytearray(zlib.decompress(body))
            packed[60:64] = (PACKED_DOCUMENT_VERSION - 1).to_bytes(4, "big")
            database.execute("UPDATE contents SET body = ? WHERE document = ?", (zlib.compress(packed), key))
        database.execute("PRAGMA application_id = 0")
        database.commit()


async def test_files_that_an_older_version_converted_are_converted_again_and_the_log_says_so(
    tmp_path: Path, conversions: Conversions
) -> None:
    pages = [tmp_path / "foxes.md", tmp_path / "gone.md"]
    async with engine_on(tmp_path, conversions) as engine:
        await engine.create_collection(ACME, "animals")
        for page in pages:
            page.write_text(f"{FOXES}\n\nThe fox of {page.stem}.", "utf-8")
        given = [NewDocument(FileSource(page, page.name), "animals") for page in pages]
        ids = [status.id for status in await engine.ingest(ACME, given)]
        await finished(engine, ids)
    as_older_version(tmp_path / "tenants" / ACME_FOLDER)
    pages[1].unlink()

    async def read_versions() -> list[int]:
        opened = [await engine.open(ACME, id) for id in ids]
        return [packed.version for packed in opened if packed is not None]

    async def is_upgraded() -> bool:
        return await read_versions() == [PACKED_DOCUMENT_VERSION, PACKED_DOCUMENT_VERSION - 1]

    log_file = tmp_path / "log"
    folders = tmp_path / "tenants", tmp_path / "shared"
    with closing(Log("info", "json", log_file)) as log:
        async with open_embedded(*folders, WordSums(), conversions, log=log, metrics=Metrics()) as engine:
            await eventually(is_upgraded)
            assert [status.status for status in await finished(engine, ids)] == ["success", "success"]
            assert {hit.document.id for hit in await found(engine, "quick fox")} == set(ids)
    assert '"engine.converting_again"' in log_file.read_text("utf-8")
    OnDisk.read(tmp_path).require_agreement()
