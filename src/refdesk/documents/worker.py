"""Worker process that converts files: runs jobs from a socket until the server closes it.

`sandbox` starts it in an interpreter of its own. Both sides exchange frames: four bytes of length, then JSON. Nothing
is pickled, so a compromised worker can send false results but can't run code in the server.
"""

from __future__ import annotations

import mimetypes
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from errno import EDQUOT, EFBIG, ENOSPC
from importlib import import_module
from typing import Any

import orjson

from refdesk.documents.sandbox_limits import confine, limit_cpu_time
from refdesk.errors import CannotConvert

HEADER = struct.Struct("!I")

MAX_FRAME_BYTES = 4_194_304
"""Maximum size of a frame. Documents go into the output file; parsing this much blocks the loop for 20 ms."""

MAX_TRACE_CHARACTERS = 8_000
"""Characters kept from the end of a traceback, for the log."""

WORN_MEMORY_SHARE = 0.4
"""Share of the memory limit: a worker that has held more is fragmented, and the next file would run out."""

MAX_STATUS_BYTES = 16_384

NICENESS = 10
"""Requests to the server take precedence over conversions."""

PROGRESS_SECONDS = 0.1
"""Interval of progress reports, short enough for a moving progress bar."""

ORPHAN_SECONDS = 1.0
"""Interval of checks whether the server still runs."""

Progress = Callable[[float, float, str], None]
Run = Callable[[dict[str, Any], int | None, int | None, Progress], dict[str, Any]]


def main(config: Mapping[str, Any]) -> None:
    """Confine this process and run jobs until the server closes the socket."""
    server = socket.socket(fileno=config["socket"])
    module, _, function = config["jobs"].partition(":")
    run: Run = getattr(import_module(module), function)
    memory = _Memory(config["memory_bytes"])
    os.nice(NICENESS)
    restrictions = confine(config["memory_bytes"], config["output_bytes"])
    # The system's media type lists can't be opened any more, and docutils would read them.
    mimetypes.knownfiles.clear()
    if "privileges" not in restrictions:
        threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    server.sendall(frame({"kind": "ready", "walls": restrictions}))
    while (received := _receive(server)) is not None:
        _serve(server, run, *received, memory)


def frame(message: Mapping[str, Any]) -> bytes:
    """Encode a message as a frame."""
    body = orjson.dumps(message)
    return HEADER.pack(len(body)) + body


def _exit_with_parent(server: int) -> None:
    """Kill this process group soon after the server exits, where the kernel doesn't do it."""
    while os.getppid() == server:
        time.sleep(ORPHAN_SECONDS)
    os.killpg(0, signal.SIGKILL)


def _receive(server: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next job and its files, or None at the end."""
    header, files, _, _ = socket.recv_fds(server, HEADER.size, 2)
    if len(header) < HEADER.size:
        return None
    (left,) = HEADER.unpack(header)
    body = bytearray()
    while len(body) < left:
        if not (data := server.recv(left - len(body))):
            return None
        body += data
    return orjson.loads(body), files


class _Memory:
    """Peak memory of this process.

    On Linux, `ru_maxrss` includes the peak of the parent process: every worker of a large server would seem worn. The
    own peak is in a file that can't be opened later, so it is opened first.
    """

    def __init__(self, allowed_bytes: int) -> None:
        self._allowed_bytes = allowed_bytes
        self._status = os.open("/proc/self/status", os.O_RDONLY) if sys.platform == "linux" else None

    def is_worn(self) -> bool:
        """Whether the peak was so high that the next file would run out of memory."""
        if self._status is None:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        else:
            lines = os.pread(self._status, MAX_STATUS_BYTES, 0).decode("ascii", "replace").splitlines()
            peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
        return peak > self._allowed_bytes * WORN_MEMORY_SHARE


def _serve(server: socket.socket, run: Run, request: dict[str, Any], files: list[int], memory: _Memory) -> None:
    source = files[0] if request["source"] else None
    output = files[-1] if request["output"] else None
    limit_cpu_time(request["seconds"])
    try:
        outcome = _run_job(run, request["job"], source, output, _ProgressReporter(server))
        if memory.is_worn():
            server.sendall(frame({"kind": "worn"}))
        server.sendall(outcome)
    finally:
        for file in files:
            with suppress(OSError):  # the job may have closed it
                os.close(file)


def _run_job(run: Run, job: dict[str, Any], source: int | None, output: int | None, progress: Progress) -> bytes:
    try:
        answer = frame({"kind": "answer", "answer": run(job, source, output, progress)})
        if len(answer) > MAX_FRAME_BYTES:
            return frame({"kind": "too_large"})
        return answer
    except CannotConvert as error:
        return frame({"kind": "refused", "detail": _replace_surrogates(error.detail)})
    except BaseException as error:  # noqa: BLE001 - panics of native libraries aren't Exceptions
        # orjson reports that memory ran out as invalid JSON.
        if isinstance(error, MemoryError) or (isinstance(error, orjson.JSONDecodeError) and "memory" in error.msg):
            return frame({"kind": "out_of_memory"})
        if isinstance(error, OSError) and error.errno == EFBIG:
            return frame({"kind": "too_large"})
        if isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT):
            return frame({"kind": "no_room"})
        trace = "".join(traceback.format_exception(error))[-MAX_TRACE_CHARACTERS:]
        return frame({"kind": "failed", "error": type(error).__name__, "trace": _replace_surrogates(trace)})


def _replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which file names can hold and JSON can't."""
    return text.encode("utf-8", "replace").decode()


class _ProgressReporter:
    """Rate-limited progress reports to the server."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._last = 0.0

    def __call__(self, done: float, total: float, message: str) -> None:
        now = time.monotonic()
        if now - self._last >= PROGRESS_SECONDS:
            self._last = now
            self._server.sendall(frame({"kind": "progress", "done": done, "total": total, "message": message}))
