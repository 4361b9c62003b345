"""Conversions run apart from the server: real processes, real faults, and nothing left of them."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import anyio
import pytest

from refdesk.documents.sandbox import MAX_WAITING, Progress, Sandbox, SandboxLimits, open_sandbox
from refdesk.documents.sandbox_worker import PROGRESS_SECONDS
from refdesk.errors import CannotConvert, ConverterCrashed, ConverterKilled, Overloaded
from tests.processes import children
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

JOBS = "tests.documents.sandbox_jobs:run"
MEGABYTE = 1_048_576
PATIENCE = 60.0
"""Time limit of what happens in an instant, on a machine that may be busy."""

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up under /proc")


on_both_loops = pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"use_uvloop": True}), ("asyncio", {"use_uvloop": False})], ids=["uvloop", "asyncio"]
)


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    limits = SandboxLimits(memory_bytes=300 * MEGABYTE, output_bytes=MEGABYTE)
    async with open_sandbox(limits, jobs=JOBS) as sandbox:
        yield sandbox


def open_nothing() -> IO[bytes]:
    """A file for jobs that read and write none."""
    return open(os.devnull, "r+b")


async def do(
    sandbox: Sandbox, what: str, *, seconds: float = PATIENCE, progress: Progress | None = None, **more: Any
) -> dict[str, Any]:
    with open_nothing() as nothing:
        fd = nothing.fileno()
        return await sandbox.run({"do": what, **more}, source=fd, output=fd, seconds=seconds, progress=progress)


async def complaint(sandbox: Sandbox, what: str, **more: Any) -> str:
    """The sentence that a job which must fail ends in; the next job has to work."""
    with pytest.raises(CannotConvert) as caught:
        await do(sandbox, what, **more)
    assert await do(sandbox, "echo", text="still here") == {"echo": "still here"}
    return caught.value.detail


def of_the_sandbox(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What the sandbox itself logged; other parts of the process may have something to say at any time."""
    return [record for record in caplog.records if record.name == "refdesk.documents.sandbox"]


async def until_busy(sandbox: Sandbox, *, busy: int = 1, waiting: int = 0) -> None:
    await eventually(lambda: sandbox.state()["busy"] >= busy and sandbox.state()["waiting"] >= waiting)


async def until_gone(pid: int) -> None:
    await eventually(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def open_files() -> set[tuple[str, str]]:
    """The number of each open file, and what it leads to."""
    found = set()
    for entry in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the folder's own, which is closed by now
            found.add((entry, os.readlink(f"/proc/self/fd/{entry}")))
    return found


@on_both_loops
async def test_a_job_reads_and_writes_the_files_it_is_handed_and_answers(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a page")
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("wb") as output:
        answer = await sandbox.run({"do": "copy"}, source=source.fileno(), output=output.fileno(), seconds=PATIENCE)
    assert answer == {"copied": 6}
    assert (tmp_path / "out").read_bytes() == b"a page"


async def test_a_worker_is_kept_for_the_next_job(sandbox: Sandbox) -> None:
    first, second = await do(sandbox, "chatter"), await do(sandbox, "chatter")
    assert first == second
    assert sandbox.state() == {"workers": 1, "busy": 0, "waiting": 0, "replaced": 0}


async def test_a_worker_is_replaced_after_so_many_jobs() -> None:
    async with open_sandbox(SandboxLimits(jobs_per_worker=2), jobs=JOBS) as sandbox:
        pids = [(await do(sandbox, "chatter"))["pid"] for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]


async def test_an_idle_worker_is_let_go() -> None:
    async with open_sandbox(SandboxLimits(idle_seconds=0.1), jobs=JOBS) as sandbox:
        await do(sandbox, "echo", text="hello")
        await eventually(lambda: not sandbox.state()["workers"])
        assert await do(sandbox, "echo", text="hello") == {"echo": "hello"}
        assert sandbox.state()["replaced"] == 0


@on_both_loops
async def test_progress_arrives_and_no_more_often_than_anybody_looks(sandbox: Sandbox) -> None:
    seen: list[tuple[float, float, str]] = []

    async def note(done: float, total: float, message: str) -> None:
        seen.append((done, total, message))

    began = anyio.current_time()
    assert await do(sandbox, "report", steps=2000, progress=note) == {"steps": 2000}
    assert seen[0] == (0.0, 2000.0, "step 0")
    assert len(seen) <= 1 + (anyio.current_time() - began) / (PROGRESS_SECONDS / 2)


async def test_an_error_in_the_progress_callback_reaches_the_caller(sandbox: Sandbox) -> None:
    async def raise_disconnect(done: float, total: float, message: str) -> None:
        raise ConnectionError("the client is gone")

    with pytest.raises(ConnectionError):
        await do(sandbox, "report", steps=1, progress=raise_disconnect)
    assert await do(sandbox, "echo", text="next") == {"echo": "next"}


async def test_a_refusal_of_the_job_passes_unchanged_and_keeps_the_worker(sandbox: Sandbox) -> None:
    assert await complaint(sandbox, "refuse") == "This file is locked with a password. Unlock it first."
    assert sandbox.state()["replaced"] == 0


async def test_an_exception_is_named_to_the_caller_and_traced_in_the_log(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    sentence = await complaint(sandbox, "fail")
    assert sentence.startswith("This file could not be converted: the converter failed (ZeroDivisionError).")
    assert "secret" not in sentence
    (record,) = of_the_sandbox(caplog)
    assert record.message == "conversion.failed"
    assert "in _fail\n" in record.__dict__["fields"]["exception"]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("panic", "the converter failed (BaseException)"),
        ("unsendable", "the converter failed (TypeError)"),
        ("long_answer", "larger than is allowed"),
        ("eat_memory", "needs more memory"),
        ("give_up_for_want_of_memory", "needs more memory"),
        ("abort", "gave up on this file"),
        ("segfault", "crashed on it (SIGSEGV)"),
        ("exit", "ended without an answer"),
        ("half_frame", "ended without an answer"),
        ("garbage", "misbehave"),
        ("huge_frame", "misbehave"),
    ],
)
async def test_each_fault_has_its_sentence_and_costs_only_its_worker(sandbox: Sandbox, what: str, said: str) -> None:
    assert said in await complaint(sandbox, what)
    assert sandbox.state()["replaced"] == 1


@on_both_loops
@pytest.mark.parametrize(
    ("number", "said", "kind"),
    [
        (signal.SIGXCPU, f"computed for longer than {PATIENCE:g} s", CannotConvert),
        (signal.SIGXFSZ, "larger than is allowed", CannotConvert),
        (signal.SIGKILL, "The converter was killed", ConverterKilled),
        (signal.SIGTERM, "The converter was killed", ConverterKilled),
        (signal.SIGBUS, "crashed on it (SIGBUS)", ConverterCrashed),
    ],
)
async def test_each_signal_that_ends_a_worker_is_explained(
    sandbox: Sandbox, number: int, said: str, kind: type[CannotConvert]
) -> None:
    with pytest.raises(CannotConvert, match=re.escape(said)) as caught:
        await do(sandbox, "signal", signal=number)
    assert type(caught.value) is kind
    assert await do(sandbox, "echo", text="still here") == {"echo": "still here"}


@pytest.mark.parametrize(
    "message",
    [
        [],
        {"kind": "answer", "answer": "no object"},
        {"kind": "refused", "detail": 1},
        {"kind": "progress", "done": "1", "total": 2, "message": ""},
        {"kind": "failed", "error": "not a name", "trace": ""},
        {"kind": "ready", "walls": []},
    ],
)
async def test_a_frame_of_another_shape_is_not_believed(sandbox: Sandbox, message: Any) -> None:
    assert "misbehave" in await complaint(sandbox, "strange_frame", message=message)


async def test_a_worker_that_speaks_unasked_gets_no_other_job(sandbox: Sandbox) -> None:
    first = await do(sandbox, "speak_later")
    second = await do(sandbox, "chatter")
    assert second["pid"] != first["pid"]


@only_linux
async def test_a_worker_that_dies_between_two_jobs_is_replaced_unnoticed(sandbox: Sandbox) -> None:
    first = await do(sandbox, "chatter")
    os.kill(first["pid"], signal.SIGKILL)
    await until_gone(first["pid"])
    assert (await do(sandbox, "chatter"))["pid"] != first["pid"]


@on_both_loops
@pytest.mark.parametrize("what", ["loop", "sleep"])
async def test_a_job_that_takes_too_long_is_stopped(sandbox: Sandbox, what: str) -> None:
    sentence = await complaint(sandbox, what, seconds=0.3)
    assert sentence.startswith("The conversion took longer than 0.3 s and was stopped.")


async def test_output_over_the_bound_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as output:
        job = {"do": "fill", "bytes": 2 * MEGABYTE}
        with pytest.raises(CannotConvert, match="larger than is allowed"):
            await sandbox.run(job, source=output.fileno(), output=output.fileno(), seconds=PATIENCE)
    assert (tmp_path / "out").stat().st_size <= MEGABYTE


@on_both_loops
async def test_what_a_job_prints_never_holds_it_up_and_its_end_is_logged(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    await do(sandbox, "chatter")
    await complaint(sandbox, "abort")
    (record,) = of_the_sandbox(caplog)
    assert record.levelno == logging.WARNING
    assert record.__dict__["fields"]["printed"].endswith("noise ")


@only_linux
async def test_no_child_of_a_job_outlives_its_worker(sandbox: Sandbox) -> None:
    answer = await do(sandbox, "leave_child")
    if "processes" in sandbox.restrictions:
        assert "refused" in answer
    else:
        await complaint(sandbox, "exit")
        await until_gone(answer["child"])


async def test_a_job_may_start_threads(sandbox: Sandbox) -> None:
    assert await do(sandbox, "start_thread") == {"heard": ["thread"]}


async def test_a_job_cannot_reach_the_network(sandbox: Sandbox) -> None:
    await do(sandbox, "echo", text="to learn of the walls")
    if "network" not in sandbox.restrictions:
        pytest.skip("this system does not let a process give up the network")
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert "the converter failed" in await complaint(sandbox, "connect", port=server.getsockname()[1])
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


async def test_a_job_cannot_open_files_of_its_own_choice(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the key to everything")
    seen = await do(sandbox, "open_files", path=str(tmp_path / "secret"), folder=str(tmp_path))
    if "files" not in sandbox.restrictions:
        pytest.skip("this system does not let a process give up its files")
    assert set(seen.values()) == {"PermissionError"}


async def test_a_job_cannot_harm_the_server(sandbox: Sandbox) -> None:
    await do(sandbox, "echo", text="to learn of the walls")
    if "files" not in sandbox.restrictions:
        pytest.skip("this system does not let a process give up its signals")
    assert "the converter failed (PermissionError)" in await complaint(sandbox, "kill_server")


async def test_a_worker_that_has_held_much_memory_gets_no_other_job() -> None:
    async with open_sandbox(SandboxLimits(workers=1, memory_bytes=400 * MEGABYTE), jobs=JOBS) as sandbox:
        small = await do(sandbox, "fatten", bytes=MEGABYTE)
        large = await do(sandbox, "fatten", bytes=110 * MEGABYTE)
        assert large["pid"] == small["pid"]
        assert (await do(sandbox, "fatten", bytes=MEGABYTE))["pid"] != large["pid"]


async def test_what_the_server_holds_does_not_wear_its_workers_out() -> None:
    held = bytearray(200 * MEGABYTE).replace(b"\0", b"\1")
    async with open_sandbox(SandboxLimits(workers=1, memory_bytes=400 * MEGABYTE), jobs=JOBS) as sandbox:
        first = await do(sandbox, "fatten", bytes=MEGABYTE)
        assert (await do(sandbox, "fatten", bytes=MEGABYTE))["pid"] == first["pid"]
    assert len(held) == 200 * MEGABYTE


@only_linux
async def test_a_job_cannot_meddle_with_the_server_or_with_files(sandbox: Sandbox, tmp_path: Path) -> None:
    file = tmp_path / "own.txt"
    file.write_text("x")
    file.chmod(0o600)
    seen = await do(sandbox, "meddle", path=str(file))
    if "processes" not in sandbox.restrictions:
        pytest.skip("this system does not let a process give up system calls")
    assert set(seen.values()) == {"PermissionError"}
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_worker_sees_nothing_of_the_servers_environment(
    monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox
) -> None:
    monkeypatch.setenv("REFDESK_SECRET", "hunter2")
    monkeypatch.setenv("PYTHONSTARTUP", "/tmp/evil.py")
    seen = await do(sandbox, "describe", seconds=7)
    assert set(seen["environment"]) <= {"LANG", "LC_ALL", "LC_CTYPE", "TZ", "MALLOC_ARENA_MAX"}
    assert seen["cwd"] == "/"
    assert seen["session"] == seen["pid"]
    assert seen["CORE"] == 0
    assert 7 <= seen["CPU"] <= 12


async def test_every_converter_can_be_loaded_behind_the_walls(sandbox: Sandbox) -> None:
    assert await do(sandbox, "import_converters") == {"imported": True}


@on_both_loops
@only_linux
async def test_a_cancelled_job_is_killed_and_disturbs_nobody(sandbox: Sandbox) -> None:
    before = children()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(do, sandbox, "loop")
        await until_busy(sandbox)
        (worker,) = children() - before
        tasks.cancel_scope.cancel()
    await until_gone(int(worker))
    assert await do(sandbox, "echo", text="next") == {"echo": "next"}
    assert sandbox.state()["replaced"] == 1


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})], ids=["asyncio"])
@only_linux
async def test_cancellation_as_the_worker_dies_logs_no_error(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    workers: list[int] = []

    async def note(done: float, total: float, message: str) -> None:
        workers.append(int(message))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(do, sandbox, "report_and_loop", progress=note))
        await eventually(lambda: bool(workers))
        (worker,) = workers
        # The loop sees the end of the worker in the iteration that begins with the cancellation.
        asyncio.get_running_loop().call_soon(tasks.cancel_scope.cancel)
        os.kill(worker, signal.SIGKILL)
        os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - the loop must not run before
    assert await do(sandbox, "echo", text="next") == {"echo": "next"}
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_job_in_another_worker_goes_on_through_every_fault(sandbox: Sandbox) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(do, sandbox, "loop")
        await until_busy(sandbox)
        for what in ("abort", "garbage", "exit", "refuse"):
            await complaint(sandbox, what)
        assert sandbox.state()["busy"] == 1
        tasks.cancel_scope.cancel()


@on_both_loops
async def test_many_jobs_share_few_workers_each_with_its_own_answer(sandbox: Sandbox) -> None:
    answers: dict[int, dict[str, Any]] = {}

    async def ask(number: int) -> None:
        answers[number] = await do(sandbox, "echo", text=f"number {number}")

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(ask, number)
    assert answers == {number: {"echo": f"number {number}"} for number in range(50)}
    assert sandbox.state() == {"workers": 2, "busy": 0, "waiting": 0, "replaced": 0}


class LeapingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be put forward."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"loop_factory": LeapingLoop})], ids=["leaping"])
async def test_jobs_have_their_turn_in_the_order_they_came_and_waiting_costs_no_time(tmp_path: Path) -> None:
    finished: list[int] = []

    async def ask(sandbox: Sandbox, number: int) -> None:
        await do(sandbox, "echo", text="")
        finished.append(number)

    async def copy(sandbox: Sandbox, source: int) -> None:
        with (tmp_path / "out").open("wb") as output:
            await sandbox.run({"do": "copy"}, source=source, output=output.fileno(), seconds=1000 * PATIENCE)

    loop = asyncio.get_running_loop()
    assert isinstance(loop, LeapingLoop)
    with pipe() as (source, sink):
        async with open_sandbox(SandboxLimits(workers=1), jobs=JOBS) as sandbox, anyio.create_task_group() as tasks:
            await do(sandbox, "echo", text="to have a worker ready")
            tasks.start_soon(copy, sandbox, source)
            await until_busy(sandbox)
            for number in range(5):
                tasks.start_soon(ask, sandbox, number)
            await until_busy(sandbox, waiting=5)
            loop.ahead += 100 * PATIENCE
            await anyio.wait_all_tasks_blocked()
            assert finished == []
            os.write(sink, b"go on")
    assert finished == [0, 1, 2, 3, 4]


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe's two ends: for reading, and for writing."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


async def test_a_full_queue_refuses_at_once() -> None:
    async with open_sandbox(SandboxLimits(workers=1), jobs=JOBS) as sandbox, anyio.create_task_group() as tasks:
        for _ in range(1 + MAX_WAITING):
            tasks.start_soon(do, sandbox, "loop")
        await until_busy(sandbox, waiting=MAX_WAITING)
        with pytest.raises(Overloaded) as caught:
            await do(sandbox, "echo", text="too late")
        assert caught.value.retry_after
        tasks.cancel_scope.cancel()


async def test_a_worker_that_cannot_start_is_told_of_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with open_sandbox(SandboxLimits(), jobs="tests.documents.no_such_module:run") as sandbox:
        with pytest.raises(CannotConvert, match="could not be started"):
            await do(sandbox, "echo", text="")
        assert sandbox.state()["workers"] == 0
    (record,) = of_the_sandbox(caplog)
    assert "no_such_module" in record.__dict__["fields"]["printed"]


@on_both_loops
@only_linux
async def test_a_closed_sandbox_leaves_no_process_and_no_open_file() -> None:
    processes, files = children(), open_files()
    async with open_sandbox(SandboxLimits(memory_bytes=300 * MEGABYTE), jobs=JOBS) as sandbox:
        for what in ("abort", "garbage", "refuse", "eat_memory"):
            await complaint(sandbox, what)
        await complaint(sandbox, "loop", seconds=0.2)
        assert children() - processes
    assert children() <= processes
    assert open_files() <= files


@on_both_loops
@only_linux
async def test_closing_ends_jobs_that_still_run_and_refuses_those_that_wait() -> None:
    before = children()
    errors: list[Exception] = []

    async def ask(sandbox: Sandbox) -> None:
        try:
            await do(sandbox, "loop")
        except (CannotConvert, Overloaded) as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks, open_sandbox(SandboxLimits(workers=1), jobs=JOBS) as sandbox:
        tasks.start_soon(ask, sandbox)
        tasks.start_soon(ask, sandbox)
        await until_busy(sandbox, waiting=1)
    assert len(errors) == 2
    assert children() <= before


SERVER = """
import anyio, sys
from refdesk.documents.sandbox import SandboxLimits, open_sandbox

async def report(done, total, message):
    print(message, flush=True)

async def serve():
    async with open_sandbox(SandboxLimits(), jobs=sys.argv[1]) as sandbox:
        await sandbox.run({"do": "report_and_loop"}, source=0, output=1, seconds=60, progress=report)

anyio.run(serve)
"""


@only_linux
async def test_no_worker_outlives_a_server_that_is_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    async with await anyio.open_process([sys.executable, "-c", SERVER, JOBS], env=environment, stderr=None) as server:
        assert server.stdout
        worker = int(await server.stdout.receive())
        assert is_running(worker)
        server.kill()
    await until_gone(worker)
