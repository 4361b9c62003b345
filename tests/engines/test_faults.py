"""What goes wrong on a machine: each is told in a sentence, stops nothing else, and is made up for when it is over."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from errno import EMFILE, ENFILE, ENOMEM
from pathlib import Path
from time import monotonic
from typing import TypeVar, TypeVarTuple

import anyio
import pytest
from anyio import CapacityLimiter, to_thread

from refdesk.calls import TenantId, UserId
from refdesk.config.models import ConvertConfig
from refdesk.documents.conversions import Conversions, File, open_conversions
from refdesk.documents.fetch import Progress
from refdesk.engines.base import DocumentStatus, FileSource, NewDocument, Search, TextSource
from refdesk.engines.embedded.embedding import Vectors
from refdesk.engines.embedded.embedding.endpoint import open_endpoint
from refdesk.engines.embedded.engine import EmbeddedEngine
from refdesk.engines.embedded.fulltext import IndexDamaged
from refdesk.engines.embedded.ingest_worker import IngestWorker
from refdesk.engines.embedded.tenant_store import SearchThreads, TenantStore
from refdesk.engines.storage import records
from refdesk.engines.storage.databases import ConnectionPool
from refdesk.engines.storage.ingest_queue import IngestTask, SourceReader
from refdesk.engines.storage.search_history import MAX_USER_HISTORY, PastSearch, SearchHistory, open_search_history
from refdesk.errors import ConverterCrashed, ConverterKilled, ConverterUnavailable, DatabaseDamaged, EngineError
from refdesk.telemetry.metrics import Metrics
from tests.contracts.engine import ACME, bring, finished, found
from tests.engines.desks import ACME_FOLDER, SHORT_PAUSES, OnDisk, WordSums, engine_on, is_in_step
from tests.engines.model_endpoint import model_endpoint
from tests.programs import find_program
from tests.waiting import PATIENCE_SECONDS, eventually

ANN = UserId("ann")

pytestmark = pytest.mark.anyio

MEGABYTE = 1024 * 1024
IS_ROOT = os.geteuid() == 0

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@pytest.fixture(scope="module")
async def conversions(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Conversions]:
    async with open_conversions(ConvertConfig(), tmp_path_factory.mktemp("conversions"), Metrics()) as conversions:
        yield conversions


async def ingest_files(
    engine: EmbeddedEngine, folder: Path, *names: str, root: Path | None = None
) -> list[DocumentStatus]:
    """Files of a folder, once nothing more is done about them."""
    await engine.create_collection(ACME, "files")
    given = [NewDocument(FileSource(folder / name, name, root), "files") for name in names]
    asked = await engine.ingest(ACME, given)
    return list(await finished(engine, [status.id for status in asked]))


# Files


def nothing_there(path: Path) -> None:
    path.unlink(missing_ok=True)


def folder_there(path: Path) -> None:
    path.mkdir()


def pipe_there(path: Path) -> None:
    os.mkfifo(path)


def broken_link(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def no_text(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 40)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(200 * MEGABYTE)


WRONG: dict[str, Callable[[Path], None]] = {
    "gone.md": nothing_there,
    "folder.pdf": folder_there,
    "pipe.txt": pipe_there,
    "broken.md": broken_link,
    "circle.md": link_to_itself,
    "noise.txt": no_text,
    "noise.md": no_text,
    "large.txt": sparse,
}


@pytest.mark.parametrize("is_confined", [True, False], ids=["within a root", "anywhere"])
async def test_each_file_that_cannot_be_read_says_why_and_the_others_come_in(
    tmp_path: Path, conversions: Conversions, is_confined: bool
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for name, make in WRONG.items():
        make(folder / name)
    (folder / "good.md").write_text("# Good\n\nzebra")
    async with engine_on(tmp_path / "data", conversions) as engine:
        root = folder if is_confined else None
        *failures, good = await ingest_files(engine, folder, *WRONG, "good.md", root=root)
        assert good.status == "success"
        for failure in failures:
            name = failure.id.removeprefix("files/")
            assert (failure.status, failure.attempts) == ("failed", 1), failure
            assert failure.error
            assert name in failure.error
            assert failure.error.endswith((".", "?"))
        assert [hit.document.id for hit in await found(engine, "zebra", mode="fulltext")] == ["files/good.md"]


class CountingStore(TenantStore):
    """Counts how often each document is found by a reader that looks for work."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ACME, CapacityLimiter(4), SearchThreads(1))
        self.found: Counter[str] = Counter()

    async def run_with(self, limiter: CapacityLimiter, work: Callable[[sqlite3.Connection, *Ts], T], *args: *Ts) -> T:
        result = await super().run_with(limiter, work, *args)
        if isinstance(result, list):
            self.found.update(task.id for task in result if isinstance(task, IngestTask))
        return result


async def test_a_file_that_failed_while_another_reader_looked_for_work_is_not_read_again(
    tmp_path: Path, conversions: Conversions
) -> None:
    names = [f"missing-{number}.md" for number in range(30)]
    given = [NewDocument(FileSource(tmp_path / name, name), "files") for name in names]
    with closing(CountingStore(tmp_path / "data")) as store:
        store.prepare()
        await store.run(lambda database: records.create_collection(database, "files", "", ""))
        ids = await store.run(lambda database: records.queue_documents(database, given))
        assert await IngestWorker(store, SourceReader(conversions), None, 4, Metrics(), lambda: None).run()
        failures = await store.run(lambda database: records.get_statuses(database, ids, {}))
    assert [(failure.status, failure.attempts) for failure in failures] == [("failed", 1)] * len(names)
    assert store.found == dict.fromkeys(ids, 1)


@pytest.mark.skipif(IS_ROOT, reason="root may read every file")
async def test_a_file_that_may_not_be_read_says_so(tmp_path: Path, conversions: Conversions) -> None:
    (tmp_path / "secret.md").write_text("# Secret")
    (tmp_path / "secret.md").chmod(0)
    async with engine_on(tmp_path / "data", conversions) as engine:
        for root in (None, tmp_path):
            [status] = await ingest_files(engine, tmp_path, "secret.md", root=root)
            assert status.status == "failed"
            assert status.error
            assert "secret.md" in status.error


@pytest.mark.parametrize("name", [b"two\nlines.md", b"caf\xe9.md", b"a#b.md", b"tab\there.md", "🦊.md".encode()])
async def test_a_file_of_any_name_comes_in(tmp_path: Path, conversions: Conversions, name: bytes) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    await anyio.Path(path).write_text("# Odd\n\nwombat")
    async with engine_on(tmp_path / "data", conversions) as engine:
        [status] = await ingest_files(engine, tmp_path, path.name)
        assert status.status == "success", status.error
        assert status.id.isprintable()
        [hit] = await found(engine, "wombat", mode="fulltext")
        assert hit.document.id == status.id
        assert hit.document.source.encode()
        assert await engine.delete(ACME, status.id)


class Meddled(Conversions):
    """Conversions between whose reading a file and converting it something happens to the file."""

    def __init__(self, conversions: Conversions, meddle: Callable[[], object]) -> None:
        self._conversions = conversions
        self._meddle = meddle

    async def pack(self, file: File, progress: Progress) -> bytes:
        await to_thread.run_sync(self._meddle)
        return await self._conversions.pack(file, progress)


async def test_a_file_that_vanishes_while_it_is_read_comes_in_whole(tmp_path: Path, conversions: Conversions) -> None:
    file = tmp_path / "fleeting.md"
    file.write_text("# Fleeting\n\nquokka")
    async with engine_on(tmp_path / "data", Meddled(conversions, file.unlink)) as engine:
        [status] = await ingest_files(engine, tmp_path, "fleeting.md")
        assert status.status == "success"
        assert len(await found(engine, "quokka", mode="fulltext")) == 1


@pytest.mark.parametrize("left", [0, 40], ids=["to nothing", "to a part"])
async def test_a_file_that_shrinks_while_it_is_read_is_right_the_next_time(
    tmp_path: Path, conversions: Conversions, left: int
) -> None:
    file, text = tmp_path / "shrinking.md", "# Shrinking\n\n" + "numbat echidna\n" * 20_000
    file.write_text(text)
    lengths = [left]

    def shrink() -> None:
        for length in lengths:
            os.truncate(file, length)

    async with engine_on(tmp_path / "data", Meddled(conversions, shrink)) as engine:
        [status] = await ingest_files(engine, tmp_path, "shrinking.md")
        assert status.status == "success" or status.error
        lengths.clear()
        file.write_text(text)
        [status] = await ingest_files(engine, tmp_path, "shrinking.md")
        assert status.status == "success"
        document = await engine.read(ACME, "files/shrinking.md")
        assert document is not None
        assert document.text.count("numbat") == 20_000


# Faults that pass


def fault(error: Exception, times: int) -> Callable[[], None]:
    """What fails so many times before it works."""
    left = [error] * times

    def meddle() -> None:
        if left:
            raise left.pop()

    return meddle


@pytest.mark.parametrize(
    ("error", "times"),
    [
        (OSError(EMFILE, "Too many open files"), 6),
        (OSError(ENFILE, "Too many open files in system"), 6),
        (OSError(ENOMEM, "Cannot allocate memory"), 6),
        (MemoryError(), 6),
        (ConverterUnavailable("The converter could not be started."), 6),
        (ConverterKilled("The converter was killed."), 2),
        (ConverterCrashed("The converter crashed on it."), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
async def test_a_fault_that_passes_fails_no_document(
    tmp_path: Path, conversions: Conversions, error: Exception, times: int
) -> None:
    (tmp_path / "good.md").write_text("# Good\n\nzebra")
    async with engine_on(tmp_path / "data", Meddled(conversions, fault(error, times))) as engine:
        [status] = await ingest_files(engine, tmp_path, "good.md")
        assert (status.status, status.error) == ("success", None)
        assert len(await found(engine, "zebra", mode="fulltext")) == 1


async def test_a_replacement_on_which_the_converter_crashes_twice_fails_and_says_what_is_shown(
    tmp_path: Path, conversions: Conversions
) -> None:
    (tmp_path / "good.md").write_text("# Good\n\nzebra")
    crash = fault(ConverterCrashed("The converter crashed on it."), 2)
    failures = [fault(ValueError("unused"), 0)]
    async with engine_on(tmp_path / "data", Meddled(conversions, lambda: failures[0]())) as engine:
        await ingest_files(engine, tmp_path, "good.md")
        failures[0] = crash
        (tmp_path / "good.md").write_text("# Good\n\nquokka")
        [status] = await ingest_files(engine, tmp_path, "good.md")
        assert (status.status, status.attempts) == ("failed", 2)
        assert status.error == "The previous version is shown. The converter crashed on it."
        assert len(await found(engine, "zebra", mode="fulltext")) == 1


# Open files


@contextmanager
def few_files(more: int) -> Iterator[None]:
    """The process may open so many more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as newest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (newest.fileno() + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
async def test_more_tenants_than_files_may_be_open_are_all_answered(tmp_path: Path, conversions: Conversions) -> None:
    tenants = [TenantId(f"tenant-{number}") for number in range(60)]
    with few_files(180):
        async with engine_on(tmp_path, conversions) as engine:

            async def use(tenant: TenantId) -> None:
                await engine.create_collection(tenant, "files")
                [asked] = await engine.ingest(tenant, [NewDocument(TextSource("Foxes", f"fox {tenant}"), "files")])
                assert await engine.search(tenant, Search("fox")) is not None
                [status] = await finished(engine, [asked.id], tenant=tenant)
                assert status.status == "success", status.error

            async with anyio.create_task_group() as tasks:
                for tenant in tenants:
                    tasks.start_soon(use, tenant)
            for tenant in tenants:
                [hit] = await engine.search(tenant, Search("fox", mode="fulltext"))
                assert hit.text.endswith(tenant)
                assert [info.id for info in engine.cached_collections(tenant)] == ["files"]
            assert [info.id for info in engine.cached_collections(tenants[0])] == ["files"]


# Failed calls


@pytest.mark.parametrize("begins", ["SELECT key FROM documents", "BEGIN"])
async def test_a_call_that_fails_leaves_no_query_or_transaction_open_for_the_next(tmp_path: Path, begins: str) -> None:
    left_open: list[sqlite3.Cursor] = []

    def fail(database: sqlite3.Connection) -> None:
        left_open.append(database.execute(begins))
        left_open[-1].fetchone()
        database.execute("SELECT count(*) FROM documents").fetchone()
        raise ValueError("in the middle of it")

    with closing(CountingStore(tmp_path)) as store:
        store.prepare()
        await store.run(lambda database: records.create_collection(database, "files", "", ""))
        given = [NewDocument(TextSource(f"Text {number}", "text"), "files") for number in range(2)]
        await store.run(lambda database: records.queue_documents(database, given))
        with pytest.raises(ValueError, match="in the middle"):
            await store.run(fail)
        with closing(sqlite3.connect(tmp_path / "knowledge.db")) as other, other:
            other.execute("UPDATE documents SET title = 'changed'")
        await store.run(lambda database: records.create_collection(database, "more", "", ""))


async def test_a_call_that_fails_leaves_no_file_open_after_the_store_is_closed(tmp_path: Path) -> None:
    def fail(database: sqlite3.Connection) -> None:
        rows = database.execute("SELECT name FROM sqlite_master")
        try:
            raise KeyError(next(rows))
        except KeyError as error:
            raise ValueError("in the middle of it") from error

    with closing(CountingStore(tmp_path)) as store:
        store.prepare()
        with pytest.raises(ValueError, match="in the middle") as raised:
            await store.run(fail)
    assert not (tmp_path / "knowledge.db-wal").exists()
    assert raised.traceback  # alive until here


def test_a_call_that_was_interrupted_leaves_no_log_after_the_store_is_closed(tmp_path: Path) -> None:
    (tmp_path / "knowledge.db").touch()
    with closing(ConnectionPool(tmp_path / "knowledge.db")) as pool:
        with pool.borrow("call") as database:
            database.execute("CREATE TABLE documents (id)")
            pool.interrupt("call")
        assert (tmp_path / "knowledge.db-wal").exists()
    assert not (tmp_path / "knowledge.db-wal").exists()


# The disk


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own, where the machine lets us have one."""
    folder.mkdir()
    mounted = subprocess.run(
        [find_program("mount"), "-t", "tmpfs", "-o", f"size={megabytes}m", "refdesk-test", folder],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip("mounting a file system needs root privileges")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(path: Path) -> None:
    """Take all the room that is left."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(b"\0" * 4096):
            pass


async def wait_for_error(engine: EmbeddedEngine) -> str:
    """Wait until the engine reports an error, and return it."""
    details: list[str] = []

    async def is_failing() -> bool:
        try:
            await engine.check()
        except EngineError as error:
            details.append(error.detail)
        return bool(details)

    await eventually(is_failing)
    return details[0]


async def test_a_full_disk_is_told_and_nothing_is_lost_when_there_is_room_again(
    tmp_path: Path, conversions: Conversions
) -> None:
    with small_disk(tmp_path / "disk", 24) as disk:
        async with (
            engine_on(disk / "data", conversions) as engine,
            open_search_history(disk / "data" / "tenants") as history,
        ):
            await bring(engine, "Foxes", "# Foxes\n\nfox")
            acknowledged = []
            ballast = disk / "ballast"
            await to_thread.run_sync(fill, ballast)
            with pytest.raises(EngineError, match=r"full|disk"):  # noqa: PT012 - some may still find room
                for number in range(1000):
                    source = TextSource(f"t{number}", f"# T{number}\n\nbear number {number}\n\n" + "padding " * 200)
                    acknowledged += [s.id for s in await engine.ingest(ACME, [NewDocument(source, "animals")])]
            assert await found(engine, "fox", mode="fulltext")
            for number in range(MAX_USER_HISTORY):
                history.add(ACME, ANN, PastSearch(f"search {number}", "animals", 1, datetime.now(UTC)))
            ballast.unlink()
            await eventually(lambda: is_remembered(history, f"search {MAX_USER_HISTORY - 1}"))
            statuses = await finished(engine, acknowledged)
            assert [status.status for status in statuses] == ["success"] * len(acknowledged)
            done = await bring(engine, "Hounds", "# Hounds\n\nhound")
            assert await found(engine, "hound", mode="fulltext")
            assert done.error is None
        OnDisk.read(disk / "data").require_agreement()


async def is_remembered(history: SearchHistory, query: str) -> bool:
    """Whether this was the last search, as far as it is written yet."""
    return [past.query for past in await history.list_recent(ACME, ANN, 1)] == [query]


async def test_a_disk_that_fills_up_while_documents_are_indexed_is_told_and_waited_for(
    tmp_path: Path, conversions: Conversions
) -> None:
    ballast = tmp_path / "disk" / "ballast"
    with small_disk(tmp_path / "disk", 24) as disk:
        async with engine_on(disk / "data", Meddled(conversions, lambda: fill(ballast))) as engine:
            await engine.create_collection(ACME, "animals")
            source = TextSource("Foxes", "# Foxes\n\n" + "\n\n".join(f"fox number {n}" for n in range(2000)))
            [asked] = await engine.ingest(ACME, [NewDocument(source, "animals")])
            assert "disk" in await wait_for_error(engine)

            async def is_indexed() -> bool:
                # The disk fills up once more for each attempt; an operator makes room again.
                ballast.unlink(missing_ok=True)
                status = await engine.status(ACME, asked.id)
                return status is not None and status.status == "success"

            await eventually(is_indexed)
            assert await found(engine, "fox", mode="fulltext")


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


async def test_a_data_folder_that_cannot_be_written_is_refused_with_its_name(
    tmp_path: Path, conversions: Conversions
) -> None:
    with small_disk(tmp_path / "disk", 8) as disk, read_only(disk), pytest.raises(EngineError, match=str(disk)):
        async with engine_on(disk / "data", conversions):
            pass


async def test_documents_on_a_disk_that_is_read_only_are_refused_with_its_name(
    tmp_path: Path, conversions: Conversions
) -> None:
    with small_disk(tmp_path / "disk", 24) as disk:
        async with engine_on(disk / "data", conversions) as engine:
            await bring(engine, "Foxes", "# Foxes\n\nfox")
        with read_only(disk), pytest.raises(EngineError, match=str(disk)):
            async with engine_on(disk / "data", conversions):
                pass
        async with engine_on(disk / "data", conversions) as engine:
            assert await found(engine, "fox", mode="fulltext")


# The indexes


def cut(path: Path) -> None:
    """Leave the first half of a file."""
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def overwrite(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


def flip(path: Path) -> None:
    """Flip the bits of a byte, which no reader notices by itself."""
    content = bytearray(path.read_bytes())
    content[4] ^= 0xFF
    path.write_bytes(content)


def replace_by_file(path: Path) -> None:
    shutil.rmtree(path)
    path.touch()


DAMAGE: list[tuple[str, Callable[[Path], object]]] = [
    ("fulltext/*.del", flip),
    ("fulltext/*.fast", flip),
    ("fulltext/*.term", flip),
    ("fulltext/*.idx", flip),
    ("fulltext/*.fieldnorm", flip),
    ("fulltext", replace_by_file),
    ("vectors", replace_by_file),
    ("fulltext/*.term", cut),
    ("fulltext/*.idx", overwrite),
    ("fulltext/*.fast", Path.unlink),
    ("fulltext/meta.json", empty),
    ("fulltext/meta.json", Path.unlink),
    ("fulltext", shutil.rmtree),
    ("vectors/manifest", cut),
    ("vectors/manifest", Path.unlink),
    ("vectors/*.segment", overwrite),
    ("vectors/*.segment", empty),
    ("vectors/*.segment", Path.unlink),
    ("vectors", shutil.rmtree),
]


@pytest.mark.slow
async def test_indexes_that_are_damaged_are_made_anew_when_they_are_opened(
    tmp_path: Path, conversions: Conversions
) -> None:
    data = tmp_path / "data"
    tenants = [TenantId(f"t{number}") for number in range(len(DAMAGE))]
    async with engine_on(data, conversions) as engine:
        for tenant in tenants:
            await engine.create_collection(tenant, "animals")
            given = [
                TextSource("Foxes", "# Foxes\n\nfox\n\n## Food\n\nberries"),
                TextSource("Hounds", "# Hounds\n\nhound"),
            ]
            await engine.ingest(tenant, [NewDocument(source, "animals") for source in given])
        for tenant in tenants:
            await finished(engine, ["animals/foxes", "animals/hounds"], tenant=tenant)
    for tenant, (pattern, harm) in zip(tenants, DAMAGE, strict=True):
        for path in list((data / "tenants" / f"n-{tenant}").glob(pattern)):
            harm(path)
    async with engine_on(data, conversions) as engine:
        for tenant in tenants:
            await in_step(data, f"n-{tenant}")
            for mode in ("fulltext", "semantic", "hybrid"):
                assert (await found(engine, "hound", mode=mode, tenant=tenant))[0].document.id == "animals/hounds"
    for tenant in tenants:
        OnDisk.read(data, f"n-{tenant}").require_agreement()


async def test_a_full_text_index_that_is_damaged_while_it_is_open_is_made_anew(
    tmp_path: Path, conversions: Conversions
) -> None:
    async with engine_on(tmp_path, conversions) as engine:
        await bring(engine, "Foxes", "# Foxes\n\nfox")
        for path in (tmp_path / "tenants" / ACME_FOLDER / "fulltext").glob("*.term"):
            overwrite(path)
        with pytest.raises(EngineError, match="damaged"):
            await found(engine, "fox", mode="fulltext")

        async def is_found_again() -> bool:
            with suppress(EngineError):
                return len(await found(engine, "fox", mode="fulltext")) == 1
            return False

        await eventually(is_found_again)
    OnDisk.read(tmp_path).require_agreement()


async def in_step(data: Path, tenant: str) -> None:
    """Wait until the indexes are whole again."""
    await eventually(lambda: to_thread.run_sync(_is_whole, data, tenant))


def _is_whole(data: Path, tenant: str) -> bool:
    try:
        return is_in_step(data, tenant)
    except IndexDamaged:
        return False


# The record


async def test_a_record_of_another_version_is_refused_and_left_alone(tmp_path: Path, conversions: Conversions) -> None:
    async with engine_on(tmp_path / "data", conversions) as engine:
        await bring(engine, "Foxes", "# Foxes\n\nfox")
    path = tmp_path / "data" / "tenants" / ACME_FOLDER / "knowledge.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(EngineError, match=r"knowledge\.db was written by another version.*schema 99"):
        async with engine_on(tmp_path / "data", conversions) as engine:
            await found(engine, "fox")
    assert path.read_bytes() == before


async def test_a_record_that_is_no_database_is_refused_with_its_path(tmp_path: Path, conversions: Conversions) -> None:
    folder = tmp_path / "data" / "tenants" / ACME_FOLDER
    folder.mkdir(parents=True)
    (folder / "knowledge.db").write_bytes(b"not at all" * 1000)
    with pytest.raises(DatabaseDamaged, match=str(folder)):
        async with engine_on(tmp_path / "data", conversions) as engine:
            await found(engine, "fox")


def without_tables(path: Path) -> None:
    """What is left if the write-ahead log with all tables is lost."""
    path.unlink()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")


OTHER = TenantId("other")


@pytest.mark.parametrize("lose", [Path.unlink, empty, without_tables])
async def test_a_lost_record_beside_its_indexes_is_refused_and_told(
    tmp_path: Path, conversions: Conversions, caplog: pytest.LogCaptureFixture, lose: Callable[[Path], object]
) -> None:
    path = tmp_path / "data" / "tenants" / ACME_FOLDER / "knowledge.db"
    async with engine_on(tmp_path / "data", conversions) as engine:
        await bring(engine, "Foxes", "# Foxes\n\nfox")
        await engine.create_collection(OTHER, "files")
    lose(path)
    remains = path.read_bytes() if path.exists() else None
    async with engine_on(tmp_path / "data", conversions) as engine:
        for _ in range(2):
            with pytest.raises(DatabaseDamaged, match=r"is missing or empty, but .* Restore knowledge\.db") as caught:
                await found(engine, "fox")
            assert not caught.value.retryable
        assert [info.id for info in await engine.collections(OTHER) if not info.shared] == ["files"]
        assert await engine.check() == "documents are searchable"
        [problem] = engine.problems()
        assert str(path) in problem
    logged = [record for record in caplog.records if record.message == "engine.unusable"]
    assert [record.__dict__["fields"]["folder"] for record in logged] == [str(path.parent)]
    assert (path.read_bytes() if path.exists() else None) == remains
    shutil.rmtree(path.parent)
    async with engine_on(tmp_path / "data", conversions) as engine:
        await bring(engine, "Foxes", "# Foxes\n\nfox")
        assert await found(engine, "fox")
        assert engine.problems() == []


async def test_a_record_that_is_lost_while_it_is_open_is_refused(tmp_path: Path, conversions: Conversions) -> None:
    path = tmp_path / "tenants" / ACME_FOLDER / "knowledge.db"
    async with engine_on(tmp_path, conversions) as engine:
        await bring(engine, "Foxes", "# Foxes\n\nfox")
        path.unlink()
        await eventually(lambda: bool(engine.problems()))
        with pytest.raises(EngineError, match="missing or empty"):
            await found(engine, "fox")


class Broken(WordSums):
    """A model with a bug."""

    def __init__(self) -> None:
        self.calls = 0

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        self.calls += 1
        raise RuntimeError("a bug")


async def test_an_engine_closes_while_ingestion_pauses_after_an_error(
    tmp_path: Path, conversions: Conversions, capsys: pytest.CaptureFixture[str]
) -> None:
    model, pauses = Broken(), replace(SHORT_PAUSES, error=10 * PATIENCE_SECONDS)
    async with engine_on(tmp_path, conversions, model, pauses=pauses) as engine:
        await engine.create_collection(ACME, "files")
        await engine.ingest(ACME, [NewDocument(TextSource("Foxes", "fox"), "files")])
        await eventually(lambda: "engine.stopped" in capsys.readouterr().err)
    assert model.calls == 1


async def test_indexes_follow_an_older_record_that_was_restored(tmp_path: Path, conversions: Conversions) -> None:
    path = tmp_path / "tenants" / ACME_FOLDER / "knowledge.db"
    async with engine_on(tmp_path, conversions) as engine:
        await bring(engine, "Foxes", "# Foxes\n\nfox")
    backup = path.read_bytes()
    async with engine_on(tmp_path, conversions) as engine:
        await bring(engine, "Hounds", "# Hounds\n\nhound")
        await bring(engine, "Bears", "# Bears\n\nbear")
    path.write_bytes(backup)
    async with engine_on(tmp_path, conversions) as engine:
        await bring(engine, "Wolves", "# Wolves\n\nwolf")
        await in_step(tmp_path, ACME_FOLDER)
        for word, count in (("fox", 1), ("wolf", 1), ("hound", 0)):
            assert len(await found(engine, word, mode="fulltext")) == count
    OnDisk.read(tmp_path).require_agreement()


# The model


async def test_while_the_model_is_away_words_find_and_vectors_follow_when_it_is_back(
    tmp_path: Path, conversions: Conversions
) -> None:
    def now() -> float:
        """A clock on which the circuit breaker's time-out is over soon."""
        return 100 * monotonic()

    async with model_endpoint() as endpoint:
        endpoint.is_away = True
        async with (
            open_endpoint(endpoint.url, None, "tiny", 60, now=now) as embedder,
            engine_on(tmp_path / "data", conversions, embedder) as engine,
        ):
            await engine.create_collection(ACME, "animals")
            [asked] = await engine.ingest(ACME, [NewDocument(TextSource("Foxes", "# Foxes\n\nfox"), "animals")])
            status = await with_an_error(engine, asked.id)
            assert (status.status, status.embedded) == ("embedding", 0)
            assert status.error
            assert any(words in status.error for words in ("out of order", "left alone", "several times in a row"))
            assert status.attempts >= 1
            assert [hit.document.id for hit in await found(engine, "fox", mode="fulltext")] == ["animals/foxes"]
            assert [hit.document.id for hit in await found(engine, "fox", mode="hybrid")] == ["animals/foxes"]
            endpoint.is_away = False
            [status] = await finished(engine, [asked.id])
            assert (status.status, status.embedded, status.error) == ("success", 1, None)
            assert [hit.document.id for hit in await found(engine, "fox", mode="semantic")] == ["animals/foxes"]
    OnDisk.read(tmp_path / "data").require_agreement()


async def with_an_error(engine: EmbeddedEngine, id: str) -> DocumentStatus:
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            [status] = await engine.wait(ACME, [id], seconds=5)
            if status.error:
                return status


@pytest.mark.parametrize("index", ["fulltext", "vectors"])
async def test_an_index_that_is_removed_while_it_is_in_use_is_made_anew(
    tmp_path: Path, conversions: Conversions, index: str
) -> None:
    data = tmp_path / "data"
    folder = data / "tenants" / ACME_FOLDER
    to_remove: list[Path] = []

    def remove() -> None:
        for path in to_remove:
            shutil.rmtree(path)

    async with engine_on(data, Meddled(conversions, remove)) as engine:
        for number, path in enumerate(([], [folder / index], [])):
            to_remove[:] = path
            await bring(engine, f"t{number}", f"# T{number}\n\nfox number {number}")
        await in_step(data, ACME_FOLDER)
        for mode in ("fulltext", "semantic"):
            hits = await found(engine, "fox number", mode=mode)
            assert {hit.document.id for hit in hits} == {"animals/t0", "animals/t1", "animals/t2"}
    OnDisk.read(data).require_agreement()
