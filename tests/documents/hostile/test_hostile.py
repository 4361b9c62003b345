"""Every file of the catalogue ends as it says there, within its bounds, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from refdesk.app import Desk, open_desk
from refdesk.calls import Answer, TenantId
from refdesk.config.loading import load
from refdesk.config.models import Config
from refdesk.documents.conversions import ConversionOptions, open_conversions, unheard
from refdesk.errors import CannotFetch
from refdesk.telemetry.metrics import Metrics
from tests.documents.fetching import connections
from tests.documents.hostile.catalogue import (
    BOUNDED,
    CALLING,
    CASES,
    CONVERTED,
    OUT_OF_MEMORY,
    OUT_OF_TIME,
    TRAPS,
    Calling,
    Case,
    Ends,
    Trap,
)
from tests.documents.hostile.watching import Used, watch_usage
from tests.documents.web import redirect, running_web
from tests.processes import children
from tests.waiting import eventually

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="what processes use is looked up under /proc"),
]

WORKERS = 2
MEMORY_BYTES = 512 * 1024 * 1024
"""Half of what a desk gives by default: a bomb is no less a bomb, and is over sooner."""

GROWTH_BYTES = 300 * 1024 * 1024
"""What the server itself may take for a moment: the largest file in the catalogue and its answer, several times."""

TIME_LIMITS: dict[Ends, float] = {OUT_OF_TIME: 0.75, BOUNDED: 0.75}
"""In seconds, for what may only end at its time limit: the usual minute each would be too long for a suite."""

PATIENCE_SECONDS = 500.0
"""Time limit of what has to end by itself, on a machine that may be busy."""

LOCAL = TenantId("local")

SECRET = "the-planted-secret"
SECRETS = (SECRET, "root:x:0:0")
"""What stands in files and variables that no conversion may read, and nowhere else."""

UNCLEAR = ("Traceback", "failed (", "crashed on it", "misbehave", "without an answer", "\n")
"""What a sentence for people does not hold; the last line of defence speaks so of faults that nobody foresaw."""

BOUND_SENTENCES: dict[Ends, str] = {
    OUT_OF_MEMORY: "memory",
    OUT_OF_TIME: "was stopped",
    BOUNDED: "was stopped|memory|larger than|no text",
}
"""How the sandbox speaks of a bound that was reached."""


@dataclass(frozen=True)
class Scene:
    """A desk, the one folder it may read, and what surrounds it."""

    desk: Desk
    config: Config
    root: Path
    scratch: Path
    listener: socket.socket
    apart: set[str]

    def address(self, way: str) -> str:
        """Where a file leads whoever follows it: to our listener, or to the secret."""
        host, port = self.listener.getsockname()
        return (
            f"http://{host}:{port}/called" if way == "http" else (self.root.parent / "outside" / "secret.txt").as_uri()
        )

    async def convert(self, tool: str, name: str) -> Answer:
        return await self.desk.call(tool, {"file_path": name})

    def parts(self) -> list[Path]:
        """Files that somebody is still writing, or has left."""
        return [*list_partial_files(self.config.data_path), *self.scratch.iterdir()]


def list_partial_files(folder: Path) -> list[Path]:
    return list(folder.rglob("*.part"))


def settings(folder: Path, **more: object) -> Config:
    convert = {"roots": [str(folder / "root")], "memory_bytes": MEMORY_BYTES, "workers": WORKERS, **more}
    given = {f"convert.{name}": value for name, value in convert.items()}
    return load(None, {}, {"data_dir": str(folder / "data"), "embedding.source": "none", **given})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The desk's surroundings: a folder it may read, one that it may not, and one for scratch files."""
    folder = tmp_path_factory.mktemp("hostile")
    for name in ("root", "outside", "scratch"):
        (folder / name).mkdir()
    (folder / "outside" / "secret.txt").write_text(SECRET)
    return folder


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    """A server of somebody's on loopback, which only counts who knocks."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


@pytest.fixture(scope="module")
async def scene(folder: Path, listener: socket.socket) -> AsyncIterator[Scene]:
    """One desk for the whole catalogue; when it closes, no process and no file of its workers is left."""
    apart, config = children(), settings(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFDESK_PLANTED", SECRET)
        patch.setattr(tempfile, "tempdir", str(folder / "scratch"))
        async with open_desk(config) as desk:
            scene = Scene(desk, config, folder / "root", folder / "scratch", listener, apart)
            yield scene
        assert children() <= apart
        assert scene.parts() == []


@contextmanager
def limit_time(desk: Desk, ends: Ends) -> Iterator[None]:
    """Set the time limit of conversions by how they have to end."""
    usual, seconds = desk.conversions.get_time_limit, TIME_LIMITS.get(ends, PATIENCE_SECONDS)
    desk.conversions.get_time_limit = lambda size: seconds
    try:
        yield
    finally:
        desk.conversions.get_time_limit = usual


def require_outcome(answer: Answer, ends: Ends, shows: str) -> None:
    """The outcome is of the kind that was foreseen, and told in words that help."""
    assert not any(secret in answer.text for secret in SECRETS)
    assert answer.is_error is (ends != CONVERTED) or ends == BOUNDED, answer.text
    assert re.search(shows, answer.text), answer.text
    if answer.is_error:
        assert not any(sign in answer.text for sign in UNCLEAR), answer.text
        assert re.search(BOUND_SENTENCES.get(ends, ""), answer.text), answer.text


async def require_exports(scene: Scene, answer: Answer) -> None:
    """What was converted can be written in every form; that is bounded too, and gives nothing away."""
    for form in ("markdown", "html", "json"):
        exported = await scene.desk.call(f"export_{form}", {"handle": answer.structured["handle"]})
        assert not exported.is_error, exported.text
        assert not any(secret in exported.text for secret in SECRETS)


async def require_all_well(scene: Scene, used: Used, name: str) -> None:
    """Memory stayed bounded, nothing is left, nobody was called, and the next file is converted."""
    assert used.addresses <= MEMORY_BYTES
    assert used.memory <= MEMORY_BYTES
    assert used.grown <= GROWTH_BYTES
    await require_service(scene, name)
    assert scene.parts() == []
    assert connections(scene.listener) == 0


async def require_service(scene: Scene, name: str) -> None:
    """An ordinary file is converted, by no more workers than there are to be."""
    (scene.root / "ordinary.md").write_text(f"# After {name}\n\nOrdinary words.\n")
    ordinary = await scene.convert("convert_docx", "ordinary.md")
    assert not ordinary.is_error, ordinary.text
    assert ordinary.structured["title"] == f"After {name}"
    assert scene.desk.conversions.check()["workers"] <= WORKERS


def test_the_catalogue_is_long_enough() -> None:
    names = [*(case.name for case in CASES), *(case.name for case in CALLING), *(trap.name for trap in TRAPS)]
    assert len(set(names)) == len(names) >= 45


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_hostile_file_ends_as_foreseen_and_harms_nobody(scene: Scene, case: Case) -> None:
    path = scene.root / case.name
    path.write_bytes(case.make())
    try:
        async with watch_usage(scene.apart) as used:
            with limit_time(scene.desk, case.ends):
                answer = await scene.convert(case.tool, case.name)
            require_outcome(answer, case.ends, case.shows)
            if case.ends == CONVERTED:
                await require_exports(scene, answer)
        await require_all_well(scene, used, case.name)
    finally:
        path.unlink()


@pytest.mark.parametrize("way", ["http", "file"])
@pytest.mark.parametrize("case", CALLING, ids=lambda case: case.name)
async def test_a_file_that_leads_outside_is_not_followed(scene: Scene, case: Calling, way: str) -> None:
    path = scene.root / case.name
    path.write_bytes(case.make(scene.address(way)))
    async with watch_usage(scene.apart) as used:
        with limit_time(scene.desk, case.ends):
            answer = await scene.convert(case.tool, case.name)
        require_outcome(answer, case.ends, case.shows)
        if not answer.is_error:
            await require_exports(scene, answer)
    await require_all_well(scene, used, f"{case.name} {way}")


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.name)
async def test_what_is_no_file_of_the_root_is_refused(scene: Scene, trap: Trap) -> None:
    trap.lay(scene.root / trap.name)
    async with watch_usage(scene.apart) as used:
        require_outcome(await scene.convert("convert_pdf", trap.name), "refused", trap.says)
    await require_all_well(scene, used, trap.name)


async def test_many_hostile_files_at_once_leave_room_for_an_ordinary_one(scene: Scene) -> None:
    hostile = [case for case in CASES if case.ends == OUT_OF_MEMORY]
    for case in hostile:
        (scene.root / f"many-{case.name}").write_bytes(case.make() + b"\n")
    async with watch_usage(scene.apart) as used:
        with limit_time(scene.desk, OUT_OF_MEMORY):
            async with asyncio.TaskGroup() as tasks:
                ends = [tasks.create_task(scene.convert(case.tool, f"many-{case.name}")) for case in hostile]
                await require_service(scene, "many")
    assert all(end.result().is_error for end in ends)
    await require_all_well(scene, used, "all of many")


async def test_a_desk_that_closes_ends_what_a_hostile_file_still_keeps_busy(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    case = next(case for case in CASES if case.name == "marks.rst")
    (tmp_path / "root" / case.name).write_bytes(case.make())
    before = children()
    async with open_desk(settings(tmp_path)) as desk:
        call = asyncio.create_task(desk.call(case.tool, {"file_path": case.name}))
        await eventually(lambda: desk.conversions.check()["busy"])
        assert children() > before
    assert children() <= before
    assert (await call).is_error
    assert list_partial_files(tmp_path) == []


async def test_a_name_that_turns_internal_is_not_followed(tmp_path: Path) -> None:
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])

    async def rebinding(host: str, port: int) -> Sequence[str]:
        return next(answers)

    config = settings(tmp_path, allow_networks="127.0.0.1/32", respect_robots=False).convert
    async with running_web() as web, open_conversions(config, tmp_path, Metrics(), resolver=rebinding) as conversions:
        with socket.create_server(("127.0.0.2", web.port)) as internal:
            internal.setblocking(False)
            web.pages["/"] = redirect("/secret").replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
            with pytest.raises(CannotFetch, match="no public address"):
                await conversions.convert_url(LOCAL, web.url("/", "rebind.example"), ConversionOptions(), unheard)
            assert web.paths == ["/"]
            assert connections(internal) == 0


async def test_the_watch_sees_a_child_and_the_listener_a_knock(listener: socket.socket) -> None:
    socket.create_connection(listener.getsockname()).close()
    assert connections(listener) == 1
    filled = "filled = b'x' * 50_000_000; input()"
    async with watch_usage(children()) as used:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", filled, stdin=asyncio.subprocess.PIPE)
        await eventually(lambda: used.memory >= 50_000_000)
        await process.communicate(b"\n")
    assert used.addresses > used.memory
