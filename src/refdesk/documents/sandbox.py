"""Worker processes for conversions, with limits on time, memory, files and network.

A small hostile file can hang, crash or exhaust any parser. That costs one worker process: it is killed and replaced,
and the caller gets an error that says what happened.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import anyio
import orjson
from anyio.abc import ByteReceiveStream, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream

from refdesk.documents.sandbox_worker import HEADER, MAX_FRAME_BYTES, PROGRESS_SECONDS, frame
from refdesk.errors import (
    CannotConvert,
    ConverterCrashed,
    ConverterKilled,
    ConverterUnavailable,
    Overloaded,
    StorageError,
)

logger = logging.getLogger(__name__)

Progress = Callable[[float, float, str], Awaitable[None]]

MAX_WAITING = 64
"""Queued jobs. A job behind that many would wait longer than most callers do."""

START_SECONDS = 30.0
"""Timeout for a worker to report ready. It takes 0.1 s, and much longer on an overloaded machine."""

MAX_MESSAGE_CHARACTERS = 1_000
"""Limit for a message or a name sent by a worker; genuine ones are far shorter."""

REAP_SECONDS = 0.005
"""Poll interval for the exit of a killed process; most have exited at the first check."""

OUT_OF_MEMORY_PATTERNS = ("memory allocation of", "bad_alloc", "MemoryError", "out of memory", "cannot allocate memory")
"""Messages that libraries print when an allocation fails."""

OUTPUT_TAIL_BYTES = 4_096
"""Bytes kept from the end of a worker's output, for the log."""

ENVIRONMENT = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
"""Variables that a worker inherits. The rest of the server's environment may hold secrets."""

BOOT = """
import json, sys
given = json.loads(sys.argv[1])
sys.path[:] = given["path"]
from refdesk.documents.sandbox_worker import main
main(given)
"""
"""Start-up code of a worker: an isolated interpreter with the server's module path."""

TRY_ANOTHER_FORMAT = "Try it in another format, or save it again and retry."
TRY_AGAIN = "Try again; if it stays so, split the file into smaller ones."
SPLIT_FILE = "Split it into smaller files and convert those."
NOT_STARTED = "The converter could not be started. Try again; if it stays so, the server's log says why."
OUT_OF_MEMORY = f"This file needs more memory to convert than is allowed. {SPLIT_FILE}"
TOO_LARGE = f"What this file converts to is larger than is allowed. {SPLIT_FILE}"


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Number of workers and their resource limits."""

    workers: int = 2
    memory_bytes: int = 1_073_741_824
    """Address space of a worker, libraries included."""
    output_bytes: int = 268_435_456
    """Maximum size of a file that a worker writes; the only one is its output."""
    jobs_per_worker: int = 200
    """Jobs after which a worker is replaced, which bounds leaks. With 1, jobs share no process."""
    idle_seconds: float = 300
    """Idle time after which a worker is stopped."""


class _Misbehaved(Exception):
    """A worker violated the protocol."""


class _Gone(Exception):
    """A worker exited while the server was talking to it."""


@asynccontextmanager
async def open_sandbox(limits: SandboxLimits, *, jobs: str = "refdesk.documents.jobs:run") -> AsyncIterator[Sandbox]:
    """Open a sandbox whose workers call the function `jobs`, given as `module:function`.

    The function is called as `run(job, source, output, progress)` and returns a JSON-serializable dictionary. Workers
    start on demand, and all are gone when the sandbox closes.
    """
    raised: Exception | None = None
    # A single long-lived thread: the kernel kills a worker when the thread that started it ends.
    with ThreadPoolExecutor(1, "sandbox") as starter:
        async with anyio.create_task_group() as tasks:
            sandbox = Sandbox(limits, jobs, tasks, starter)
            tasks.start_soon(sandbox.stop_idle_workers)
            try:
                yield sandbox
            except Exception as error:  # noqa: BLE001 - raised again below; the task group would wrap it
                raised = error
            finally:
                with anyio.CancelScope(shield=True):
                    await sandbox.close()
                tasks.cancel_scope.cancel()
    if raised is not None:
        raise raised


class Sandbox:
    """Pool of worker processes that runs jobs in order of arrival."""

    def __init__(self, limits: SandboxLimits, jobs: str, tasks: TaskGroup, starter: Executor) -> None:
        self._limits = limits
        self._jobs = jobs
        self._tasks = tasks
        self._starter = starter
        self._slots = anyio.Semaphore(limits.workers, fast_acquire=True)
        self._workers: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._replaced = 0
        self._closed = False
        self.restrictions: frozenset[str] = frozenset()
        """Restrictions active in the worker started last; see `sandbox_worker.confine`."""

    async def run(
        self, job: Mapping[str, Any], *, source: int, output: int, seconds: float, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Run one job in a worker and return its result.

        `source` and `output` are open files that the caller closes; the worker moves their offsets and can open no
        other files. Open the source read-only, and pass a regular file as output. `seconds` starts once a worker has
        the job; time in the queue isn't limited. Raises `CannotConvert`, or `Overloaded` if the queue is full.
        """
        if self._slots.statistics().tasks_waiting >= MAX_WAITING:
            raise Overloaded("Too many conversions are waiting. Try again in a few seconds.", retry_after=5)
        async with self._slots:
            worker = await self._acquire_worker()
            try:
                return await worker.run(job, source, output, seconds, progress)
            finally:
                if self._closed or not worker.is_reusable or worker.jobs >= self._limits.jobs_per_worker:
                    self._replace_worker(worker)
                else:
                    worker.idle_since = anyio.current_time()
                    self._idle.append(worker)

    def state(self) -> dict[str, int]:
        """Return the numbers of workers, busy workers, queued jobs and replaced workers."""
        return {
            "workers": len(self._workers),
            "busy": len(self._workers) - len(self._idle),
            "waiting": self._slots.statistics().tasks_waiting,
            "replaced": self._replaced,
        }

    async def stop_idle_workers(self) -> None:
        """Stop workers that have been idle too long; runs until cancelled."""
        while True:
            await anyio.sleep(self._limits.idle_seconds / 4)
            since = anyio.current_time() - self._limits.idle_seconds
            for worker in [worker for worker in self._idle if worker.idle_since <= since]:
                self._idle.remove(worker)
                self._discard_worker(worker)

    async def close(self) -> None:
        """Kill all workers and wait for their exit; queued jobs are rejected."""
        self._closed = True
        self._idle.clear()
        for worker in self._workers:
            worker.kill()
        while self._workers:
            await self._workers.pop().reap()

    async def _acquire_worker(self) -> _Worker:
        """Return the most recently used idle worker, so that surplus workers stay idle, or start one."""
        if self._closed:
            raise Overloaded("The server is about to stop. Try again when it is back.")
        while self._idle:
            worker = self._idle.pop()
            if worker.is_healthy():
                return worker
            self._replace_worker(worker)
        return await self._start_worker()

    async def _start_worker(self) -> _Worker:
        worker = await _Worker.start(self._limits, self._jobs, self._starter)
        self._workers.add(worker)
        try:
            restrictions = await worker.wait_ready()
        except BaseException:
            self._replace_worker(worker)
            raise
        if restrictions != self.restrictions:
            self.restrictions = restrictions
            logger.info("conversion.confined", extra={"fields": {"walls": sorted(restrictions)}})
        return worker

    def _replace_worker(self, worker: _Worker) -> None:
        self._replaced += 1
        self._discard_worker(worker)

    def _discard_worker(self, worker: _Worker) -> None:
        """Kill a worker and reap it in the background."""
        worker.kill()
        if not self._closed:
            self._workers.discard(worker)
            self._tasks.start_soon(worker.reap)


class _Worker:
    """Server side of one worker process."""

    def __init__(self, process: subprocess.Popen[bytes], channel: _Channel, chatter: _OutputTail) -> None:
        self._process = process
        self._channel = channel
        self._received = BufferedByteReceiveStream(channel)
        self._output = chatter
        self.jobs = 0
        self.idle_since = 0.0
        self.is_reusable = True
        """Whether the last job ended properly; only then may the worker get another one."""

    @classmethod
    async def start(cls, limits: SandboxLimits, jobs: str, starter: Executor) -> _Worker:
        """Start a process in its own session; a socket is all it shares with the server."""
        ours, theirs = socket.socketpair()
        channel = _Channel(ours)
        with theirs:
            printed, chatter = os.pipe()
            try:
                # Starting a process takes milliseconds, too long for the loop. Cancelled halfway, it would be orphaned.
                with anyio.CancelScope(shield=True):
                    process = await asyncio.get_running_loop().run_in_executor(
                        starter, _spawn, limits, jobs, theirs.fileno(), chatter
                    )
            except OSError as error:
                os.close(printed)
                await channel.aclose()
                logger.error("conversion.unavailable", extra={"fields": {"reason": str(error)}})
                raise ConverterUnavailable(NOT_STARTED) from error
            finally:
                os.close(chatter)
        return cls(process, channel, _OutputTail(printed))

    async def wait_ready(self) -> frozenset[str]:
        """Wait until the worker reports ready, and return its active restrictions."""
        try:
            with anyio.fail_after(START_SECONDS):
                message = await self._receive()
        except (_Gone, _Misbehaved, TimeoutError) as error:
            await self.reap()
            self._log("conversion.unavailable", reason=type(error).__name__)
            raise ConverterUnavailable(NOT_STARTED) from error
        match message:
            case {"kind": "ready", "walls": [*restrictions]}:
                return frozenset(map(str, restrictions))
        raise ConverterUnavailable(NOT_STARTED)

    async def run(
        self, job: Mapping[str, Any], source: int, output: int, seconds: float, progress: Progress | None
    ) -> dict[str, Any]:
        """Run one job; every failure is raised as `CannotConvert`."""
        self.jobs += 1
        self.is_reusable = False
        try:
            with anyio.move_on_after(seconds):
                await self._send(job, source, output, seconds)
                return await self._receive_outcome(progress)
        except _Gone:
            status = await self.reap()
            self._log("conversion.died", status=status)
            raise _explain_exit(status, seconds, self._output.text) from None
        except _Misbehaved as error:
            self._log("conversion.misbehaved", reason=str(error))
            raise CannotConvert(
                f"This file made the converter misbehave, and it was stopped. {TRY_ANOTHER_FORMAT}"
            ) from None
        raise CannotConvert(f"The conversion took longer than {seconds:g} s and was stopped. {SPLIT_FILE}")

    def is_healthy(self) -> bool:
        """Whether the worker is waiting for a job. Unexpected data or a closed socket means it isn't."""
        poll = select.poll()
        poll.register(self._channel.socket, select.POLLIN)
        return not self._received.buffer and not poll.poll(0)

    def kill(self) -> None:
        """Kill the worker's process group."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # already exited
                os.killpg(self._process.pid, signal.SIGKILL)

    async def reap(self) -> int:
        """Kill the worker if it still runs, wait for its exit, and return the exit status."""
        with anyio.CancelScope(shield=True):
            self.kill()
            while self._process.poll() is None:  # noqa: ASYNC110 - not every system has an event for this
                await anyio.sleep(REAP_SECONDS)
            await self._channel.aclose()
            self._output.close()
        return self._process.returncode

    async def _send(self, job: Mapping[str, Any], source: int, output: int, seconds: float) -> None:
        request = frame({"job": job, "seconds": seconds})
        try:
            await self._channel.send(request[: HEADER.size], [source, output])
            await self._channel.send(request[HEADER.size :])
        except anyio.BrokenResourceError as error:
            raise _Gone from error

    async def _receive(self) -> Any:
        """Return the next frame, whose content isn't trusted."""
        try:
            (length,) = HEADER.unpack(await self._received.receive_exactly(HEADER.size))
            if length > MAX_FRAME_BYTES:
                raise _Misbehaved(f"a frame of {length} bytes")
            return orjson.loads(await self._received.receive_exactly(length))
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError) as error:
            raise _Gone from error
        except orjson.JSONDecodeError as error:
            raise _Misbehaved("a frame that is not JSON") from error

    async def _receive_outcome(self, progress: Progress | None) -> dict[str, Any]:
        reported, is_worn = -math.inf, False
        while True:
            match await self._receive():
                case {"kind": "worn"}:
                    is_worn = True
                case {"kind": "answer", "answer": dict() as answer}:
                    self.is_reusable = not is_worn
                    return answer
                case {"kind": "refused", "detail": str() as detail}:
                    self.is_reusable = not is_worn
                    raise CannotConvert(detail[:MAX_MESSAGE_CHARACTERS])
                case {"kind": "progress", "done": int() | float() as done, "total": int() | float() as total,
                      "message": str() as message}:  # fmt: skip
                    # Workers limit the rate themselves, unless one is compromised.
                    if progress and anyio.current_time() - reported > PROGRESS_SECONDS / 2:
                        reported = anyio.current_time()
                        await progress(done, total, message[:MAX_MESSAGE_CHARACTERS])
                case {"kind": "out_of_memory"}:
                    raise CannotConvert(OUT_OF_MEMORY)
                case {"kind": "no_room"}:
                    raise StorageError("The disk is too full for the converted file", retry_after=60)
                case {"kind": "too_large"}:
                    raise CannotConvert(TOO_LARGE)
                case {"kind": "failed", "error": str() as error, "trace": str() as trace} if error.isidentifier():
                    self._log("conversion.failed", error=error, exception=trace)
                    reason = f"the converter failed ({error})"
                    raise CannotConvert(f"This file could not be converted: {reason}. {TRY_ANOTHER_FORMAT}")
                case _:
                    raise _Misbehaved("a frame of no known kind")

    def _log(self, event: str, **fields: Any) -> None:
        logger.warning(event, extra={"fields": {**fields, "pid": self._process.pid, "printed": self._output.text}})


class _Channel(ByteReceiveStream):
    """Socket to a worker.

    Unlike anyio's `UNIXSocketStream`, it logs no `InvalidStateError` if a wait is cancelled in the loop iteration in
    which data arrives.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.socket = connected

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        while True:
            try:
                data = self.socket.recv(max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self.socket)
            except OSError as error:
                raise anyio.BrokenResourceError from error
            else:
                if data:
                    return data
                raise anyio.EndOfStream

    async def send(self, data: bytes, files: Sequence[int] = ()) -> None:
        """Send data, with open files beside its first byte."""
        while data:
            try:
                data = data[socket.send_fds(self.socket, [data], files) :]
            except BlockingIOError:
                await anyio.wait_writable(self.socket)
            except OSError as error:
                raise anyio.BrokenResourceError from error
            else:
                files = ()

    async def aclose(self) -> None:
        self.socket.close()


class _OutputTail:
    """Reader of a worker's output that keeps the end of it, so that the worker never blocks on a full pipe."""

    def __init__(self, file: int) -> None:
        self._file: int | None = file
        self._tail = b""
        os.set_blocking(file, False)
        asyncio.get_running_loop().add_reader(file, self._read)

    @property
    def text(self) -> str:
        return self._tail.decode("utf-8", "replace")

    def close(self) -> None:
        """Read the rest, which fits into one read, and close the pipe."""
        self._read(is_last=True)

    def _read(self, *, is_last: bool = False) -> None:
        if self._file is None:
            return
        with suppress(BlockingIOError):
            data = os.read(self._file, 65_536)
            self._tail = (self._tail + data)[-OUTPUT_TAIL_BYTES:]
            is_last = is_last or not data
        if is_last:
            asyncio.get_running_loop().remove_reader(self._file)
            os.close(self._file)
            self._file = None


def _spawn(limits: SandboxLimits, jobs: str, channel: int, chatter: int) -> subprocess.Popen[bytes]:
    given = {
        "socket": channel,
        "path": [os.path.abspath(path) for path in sys.path],
        "jobs": jobs,
        "memory_bytes": limits.memory_bytes,
        "output_bytes": limits.output_bytes,
    }
    allowed = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-I", "-X", "utf8", "-c", BOOT, orjson.dumps(given).decode()],
        stdin=subprocess.DEVNULL,
        stdout=chatter,
        stderr=chatter,
        cwd="/",
        # Each malloc arena reserves 64 MB of the worker's address space.
        env={**allowed, "MALLOC_ARENA_MAX": "2"},
        pass_fds=(channel,),
        start_new_session=True,
    )


def _explain_exit(status: int, seconds: float, printed: str) -> CannotConvert:
    """Return the error of a worker that exited during a job. Exceeding a limit is final."""
    if status == -signal.SIGXCPU:
        return CannotConvert(f"The conversion computed for longer than {seconds:g} s and was stopped. {SPLIT_FILE}")
    if status == -signal.SIGXFSZ:
        return CannotConvert(TOO_LARGE)
    if any(sign in printed for sign in OUT_OF_MEMORY_PATTERNS):
        return ConverterCrashed(OUT_OF_MEMORY)
    if status in (-signal.SIGKILL, -signal.SIGTERM):
        return ConverterKilled(f"The converter was killed, maybe because the machine ran out of memory. {TRY_AGAIN}")
    if status == -signal.SIGABRT:
        return ConverterCrashed(f"The converter gave up on this file, most likely for want of memory. {SPLIT_FILE}")
    if status < 0:
        crash = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
        reason = f"the converter crashed on it ({crash})"
    else:
        reason = "the converter ended without an answer"
    return ConverterCrashed(f"This file could not be converted: {reason}. {TRY_ANOTHER_FORMAT}")
