"""Worker process that converts files: runs jobs from a socket until the server closes it.

`sandbox` starts it in an interpreter of its own. Both sides exchange frames: four bytes of length, then JSON. Nothing
is pickled, so a compromised worker can send false results but can't run code in the server.

Before its first job, a worker gives up memory, files, processes and network for good. Each restriction is requested
from the kernel; `confine` returns those that took effect. A process that is compromised later can't lift them.
"""

from __future__ import annotations

import ctypes
import mimetypes
import os
import platform
import resource
import signal
import socket
import struct
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from errno import EDQUOT, EFBIG, ENOSPC, ENOSYS, EPERM
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson

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
Run = Callable[[dict[str, Any], int, int, Progress], dict[str, Any]]


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
    source, output = files
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


def _run_job(run: Run, job: dict[str, Any], source: int, output: int, progress: Progress) -> bytes:
    try:
        answer = frame({"kind": "answer", "answer": run(job, source, output, progress)})
        return frame({"kind": "too_large"}) if len(answer) > MAX_FRAME_BYTES else answer
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


OPEN_FILES = 128
"""Enough for Python, its libraries and one job; a leak fails long before the system runs out."""

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
CLONE_THREAD, CLONE_NEWUSER, CLONE_NEWNET = 0x10000, 0x10000000, 0x40000000
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446

READ_FILE, READ_DIRECTORY = 1 << 2, 1 << 3
FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""File access rights that Landlock can restrict, by the ABI version that introduced them."""

SCOPES = 3
"""Restrict signals and abstract sockets to the worker itself: it can't kill the server, although both have one owner.
"""

READABLE_PATHS = (
    "/lib /lib64 /usr/lib /usr/lib64 /usr/local/lib /nix/store /usr/share/fonts /usr/share/zoneinfo "
    "/etc/ld.so.cache /etc/localtime /dev/null /dev/urandom"
).split()
"""System files that libraries load on first use; none of them holds user data."""

FORBIDDEN_SYSCALLS = {
    # Sockets, programs, processes, namespaces, and system calls with a large attack surface:
    # socket socketpair fork vfork execve execveat ptrace process_vm_readv/writev unshare setns mount keyctl add_key
    # request_key bpf perf_event_open userfaultfd open_by_handle_at io_uring_setup pidfd_getfd; then calls that
    # change a file without opening it (chmod chown utime setxattr removexattr, in all their forms), that affect other
    # processes (kill sigqueue setpriority sched_set* ioprio_set) or share memory with them (shm sem msg).
    "x86_64": (41, 53, 57, 58, 59, 322, 101, 310, 311, 272, 308, 165, 250, 248, 249, 321, 298, 323, 304, 425, 438,
               90, 91, 268, 452, 92, 93, 94, 260, 132, 235, 261, 280, 188, 189, 190, 197, 198, 199,
               62, 129, 297, 424, 141, 142, 144, 203, 251, 314, 29, 64, 68),
    "aarch64": (198, 199, 221, 281, 117, 270, 271, 97, 268, 40, 219, 217, 218, 280, 241, 282, 265, 425, 438,
                52, 53, 452, 54, 55, 88, 5, 6, 7, 14, 15, 16,
                129, 138, 240, 424, 140, 118, 119, 122, 30, 274, 194, 190, 186),
}  # fmt: skip
PRLIMIT = {"x86_64": 302, "aarch64": 261}
CLONE = {"x86_64": 56, "aarch64": 220}
CLONE3 = 435
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_CALLS = 0x40000000
"""First number of the x32 ABI, which repeats the system calls of x86-64 under other numbers."""


def confine(memory_bytes: int, output_bytes: int) -> list[str]:
    """Apply every restriction that this system supports, and return those that are active.

    `memory`: address space is limited. `network`: no connections. `privileges`: none can be gained, and the process
    dies with the server. `files`: only files of Python and its libraries can be opened, to read. `processes`: no
    program and no other process can be started.
    """
    _lower_limit(resource.RLIMIT_CORE, 0)
    _lower_limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    _lower_limit(resource.RLIMIT_FSIZE, output_bytes)
    if sys.platform == "darwin":
        _lower_limit(resource.RLIMIT_NPROC, 0)  # elsewhere it counts threads, including those of other processes
    restrictions = {
        "memory": _lower_limit(resource.RLIMIT_AS, memory_bytes),
        # A namespace without interfaces. Root loses its file capabilities with it.
        "network": sys.platform == "linux" and bool(_load_libc().unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0),
        "privileges": _drop_privileges(),
        "files": _restrict_files(),
        "processes": _install_seccomp_filter(),
    }
    restrictions["network"] |= restrictions["processes"]  # the filter denies sockets, too
    return [name for name, is_active in restrictions.items() if is_active]


def limit_cpu_time(seconds: float) -> None:
    """Limit the CPU time of this process from now on. The server's own timeout normally fires first."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime + seconds) + 2, hard))


def _lower_limit(which: int, value: int) -> bool:
    """Lower a resource limit for good; return whether the system supports it."""
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    try:
        resource.setrlimit(which, (value, value))
    except (ValueError, OSError):
        return False
    return True


def _drop_privileges() -> bool:
    """Ignore setuid programs, and die with the thread that started this process."""
    if sys.platform != "linux":
        return False
    # After the namespace: changing credentials clears the signal.
    died = _load_libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return bool(died == 0 and _load_libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)


def _restrict_files() -> bool:
    """Deny writing, and reading outside of Python's own files, with Landlock."""
    if sys.platform != "linux":
        return False
    libc = _load_libc()
    version = libc.syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    rights = FILE_RIGHTS[max(known for known in FILE_RIGHTS if known <= version)]
    asked = struct.pack("QQQ", rights, 0, SCOPES) if version >= 6 else struct.pack("Q", rights)
    ruleset = libc.syscall(LANDLOCK_CREATE_RULESET, asked, ctypes.c_size_t(len(asked)), 0)
    if ruleset < 0:
        return False
    try:
        for path in _list_python_paths():
            rights = READ_FILE | READ_DIRECTORY if path.is_dir() else READ_FILE
            below = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                libc.syscall(LANDLOCK_ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, below), 0)
            finally:
                os.close(below)
        return bool(libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _list_python_paths() -> Iterator[Path]:
    """Yield the folders of installed modules and libraries, but not everything on `sys.path`."""
    own = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    own += [f"{prefix}/lib" for prefix in (sys.prefix, sys.base_prefix)]
    installed = [path for path in sys.path if any(Path(path).glob("*.dist-info"))]
    package = str(Path(__file__).parents[1])
    for path in map(Path, {*own, *installed, *READABLE_PATHS, package}):
        with suppress(OSError):
            yield path.resolve(strict=True)


def _install_seccomp_filter() -> bool:
    """Make the calls of `FORBIDDEN_SYSCALLS` fail, with seccomp; threads can still be started."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in FORBIDDEN_SYSCALLS or sys.byteorder != "little":
        return False
    program = b"".join(_build_seccomp_filter(machine))
    held = ctypes.create_string_buffer(program, len(program))
    filters = struct.pack("@HP", len(program) // 8, ctypes.addressof(held))
    return bool(_load_libc().prctl(PR_SET_SECCOMP, 2, filters, 0, 0) == 0)


def _build_seccomp_filter(machine: str) -> Iterator[bytes]:
    """Yield the BPF instructions of the filter; each test is followed by its action."""
    load, equal, at_least, any_bit, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill, refuse, unknown = 0x7FFF0000, 0x80000000, 0x00050000 | EPERM, 0x00050000 | ENOSYS
    number, architecture, first_argument = 0, 4, 16

    def encode(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    yield encode(load, architecture)
    yield encode(equal, AUDIT_ARCH[machine], yes=1)
    yield encode(answer, kill)
    yield encode(load, number)
    yield encode(at_least, X32_CALLS, no=1)
    yield encode(answer, refuse)
    for forbidden in FORBIDDEN_SYSCALLS[machine]:
        yield encode(equal, forbidden, no=1)
        yield encode(answer, refuse)
    # A filter can't inspect its flags, which are in memory. The C library falls back to `clone`, where it can.
    yield encode(equal, CLONE3, no=1)
    yield encode(answer, unknown)
    # A worker may lower its own limits (process 0), not the server's.
    yield encode(equal, PRLIMIT[machine], no=3)
    yield encode(load, first_argument)
    yield encode(equal, 0, yes=5)
    yield encode(answer, refuse)
    yield encode(equal, CLONE[machine], no=3)
    yield encode(load, first_argument)
    yield encode(any_bit, CLONE_THREAD, yes=1)
    yield encode(answer, refuse)
    yield encode(answer, allow)


def _load_libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
